//! The manifest of a store without a copy.

use std::ops::ControlFlow;
use std::path::Path;

use blake3::Hasher;
use lockstep_types::NodeKind;

use super::content_reader::PIECE_BYTES;
use super::error::ExportError;
use super::manifest::{Manifest, ManifestLine, no_content};
use super::source::ExportSource;
use super::tree_walk::{NamedInode, TreeWalk, WalkStep};
use super::unfinished::Unfinished;
use crate::text::{escaped, hex};
use crate::view::StoreView;

/// Calls `visit` with the lines of the manifest of a store, without the header and without line ends. Ends early when
/// `visit` says so. The store is only read, and no node may have it open.
pub fn list<'a>(
    source: impl Into<ExportSource<'a>>,
    visit: &mut dyn FnMut(String) -> ControlFlow<()>,
) -> Result<(), ExportError> {
    let opened = source.into().open()?;
    visit_lines(&*opened.view(), &mut |line| Ok(visit(line.to_string())))
}

/// Writes the manifest of a store to a file, which must not exist. It is called FILE.partial until it is complete.
/// Returns the number of names, with the root.
pub fn write_list<'a>(
    source: impl Into<ExportSource<'a>>,
    file: &Path,
) -> Result<u64, ExportError> {
    let opened = source.into().open()?;
    let unfinished = Unfinished::file(file)?;
    let mut manifest = Manifest::create(&unfinished.path)?;
    let mut names = 0;
    let listed = visit_lines(&*opened.view(), &mut |line| {
        names += 1;
        manifest.line(line)?;
        Ok(ControlFlow::Continue(()))
    });
    let listed = listed.and_then(|()| manifest.finish());
    listed.inspect_err(|_| unfinished.forget_file())?;
    unfinished.finish()?;
    Ok(names)
}

fn visit_lines(
    view: &dyn StoreView,
    visit: &mut dyn FnMut(&ManifestLine<'_>) -> Result<ControlFlow<()>, ExportError>,
) -> Result<(), ExportError> {
    let mut walk = TreeWalk::new(view);
    let mut buffer = vec![0; PIECE_BYTES];
    while let Some(step) = walk.next()? {
        let WalkStep::Name(inode) = step else {
            continue;
        };
        let content = content(&walk, &inode, &mut buffer)?;
        let NamedInode { attr, xattrs, .. } = &inode;
        let line = ManifestLine {
            path: walk.path(),
            attr,
            content,
            xattrs,
        };
        if visit(&line)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// The column `content` of a name.
fn content(
    walk: &TreeWalk<'_>,
    NamedInode { attr, .. }: &NamedInode,
    buffer: &mut [u8],
) -> Result<String, ExportError> {
    match attr.kind {
        NodeKind::File => {
            let mut content = walk.content(attr)?;
            let mut hasher = Hasher::new();
            while let Some(piece) = walk.read(content.next(buffer))? {
                piece.hash(&mut hasher);
            }
            Ok(hex(hasher.finalize()))
        }
        NodeKind::Symlink => Ok(escaped(&walk.target(attr)?)),
        _ => Ok(no_content()),
    }
}
