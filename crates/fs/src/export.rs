//! Writing a node's store out as a plain tree, without node, peer or mount; or a snapshot of a store that a node has open.
//!
//! The store is only read: recovery after a crash happens in memory, and nothing in the store's directory changes.
//! Memory grows with the largest directories on one path and with the inodes that have several names, not with the
//! depth or the size of the tree.

mod content_reader;
mod error;
mod links;
mod list;
mod lost;
mod manifest;
mod place;
mod source;
mod tree_walk;
mod unfinished;

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use blake3::Hasher;
use lockstep_types::{Attr, Ino, NodeKind};
use serde::{Deserialize, Serialize};

pub use error::ExportError;
pub use list::{list, write_list};
pub use lost::Lost;
pub use manifest::HEADER;
pub use source::ExportSource;

use crate::namespace::snapshot_list::SnapshotBytes;
use crate::store::{SnapshotAccess, Store};
use crate::text::{escaped, hex};
use crate::view::StoreView;
use content_reader::{ContentPiece, ContentReader, PIECE_BYTES};
use links::Links;
use manifest::{Manifest, ManifestLine, no_content};
use place::{Created, FailedCall, Loss, Losses};
use rustix::io::Errno;
use tree_walk::{NamedInode, TreeWalk, WalkStep};
pub(crate) use unfinished::Unfinished;
use unfinished::check_empty;

/// Counts of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportSummary {
    /// Names created, without the root.
    pub names: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Regular files. A file with several names counts once.
    pub files: u64,
    /// Bytes of content copied; holes are none.
    pub bytes: u64,
    /// Losses: parts that the destination could not take, each reported as a [`Lost`].
    pub lost: u64,
    /// Losses that are missing names: of files, directories or special files.
    pub missing: u64,
    /// A resync had begun to change the copy, and had not ended: its files are of different moments.
    pub is_mixed: bool,
    /// The snapshot is torn: some of its bytes may be of an earlier moment.
    pub is_torn: bool,
}

/// The places that an export makes.
#[derive(Clone, Copy, Debug)]
pub struct ExportPlaces<'a> {
    /// The copy: missing, or an empty directory.
    pub dest: &'a Path,
    /// A list of all names, which must not exist.
    pub manifest: Option<&'a Path>,
}

/// The watcher of an export.
pub struct ExportWatch<'a> {
    /// Is told each loss.
    pub report: &'a mut dyn FnMut(&Lost),
    /// Whether the export goes on.
    pub goes_on: &'a dyn Fn() -> bool,
}

/// Writes a store out to `dest`, as it is or as one of its snapshots sees it; `dest` must be missing or an empty directory. Writes a list of all names
/// to `manifest` (see [`HEADER`]), which must not exist. Until they are complete, both have names that end with
/// `.partial`. An existing `dest` is filled in place.
///
/// The copy keeps modes with set-id and sticky bits, owners, times of access and modification, extended attributes with
/// access control lists, symbolic and hard links, holes, and device nodes, pipes and sockets. Inodes without a name are
/// left out. Reserved space is not kept: a copy takes the space of its data. If the destination cannot hold a name, a
/// file of that size or an attribute, the loss is reported to `report` and to the manifest, and the export goes on. The
/// export stops if the destination fails or is full.
pub fn export<'a>(
    source: impl Into<ExportSource<'a>>,
    dest: &Path,
    manifest: Option<&Path>,
    report: &mut dyn FnMut(&Lost),
) -> Result<ExportSummary, ExportError> {
    let source = source.into();
    let opened = source.open()?;
    let goes_on = || true;
    let watch = ExportWatch {
        report,
        goes_on: &goes_on,
    };
    let summary = write_out(
        (source.store, &*opened.view()),
        ExportPlaces { dest, manifest },
        watch,
    )?;
    Ok(ExportSummary {
        is_mixed: opened.is_mixed(),
        is_torn: opened.is_torn(),
        ..summary
    })
}

/// The same for a snapshot of the store in `dir`, which a node has open.
///
/// # Errors
/// The store has no such snapshot, the snapshot was deleted meanwhile, `watch` has ended the export, or as in [`export`].
pub fn export_open(
    (dir, store): (&Path, &Store),
    at: &str,
    places: ExportPlaces<'_>,
    watch: ExportWatch<'_>,
) -> Result<ExportSummary, ExportError> {
    let source = ExportSource {
        store: dir,
        at: Some(at),
    };
    let id = source.find(store, at)?;
    let snapshots = SnapshotAccess::of(store);
    let gone = || ExportError::SnapshotGone {
        name: at.to_owned(),
    };
    let view = snapshots.view(id).ok_or_else(gone)?;
    let is_torn = view.snapshot().bytes == SnapshotBytes::Torn;
    let written = write_out((dir, &view), places, watch);
    match (written, snapshots.get(id)) {
        (Ok(summary), _) => Ok(ExportSummary { is_torn, ..summary }),
        (Err(ExportError::Incomplete { path, source }), None) if source.is_of_reading() => {
            let source = Box::new(gone());
            Err(ExportError::Incomplete { path, source })
        }
        (Err(error), _) => Err(error),
    }
}

/// Writes a view of the store in a directory out.
fn write_out(
    (store_dir, view): (&Path, &dyn StoreView),
    places: ExportPlaces<'_>,
    watch: ExportWatch<'_>,
) -> Result<ExportSummary, ExportError> {
    let list = places.manifest.map(Unfinished::file).transpose()?;
    let tree = Unfinished::directory(places.dest)?;
    let root = prepare(store_dir, &tree.path).map_err(|error| error.about(places.dest))?;
    let manifest = list.as_ref().map(|list| Manifest::create(&list.path));
    let manifest = manifest.transpose().inspect_err(|_| tree.forget())?;
    // A closure lives as short as the view.
    let ExportWatch { report, goes_on } = watch;
    let mut report = |lost: &Lost| report(lost);
    let watch = ExportWatch {
        report: &mut report,
        goes_on,
    };
    let mut export = Export::new(view, root, manifest, watch)?;
    let summary = export.tree().and_then(|()| export.finish(&tree.path));
    let summary = summary.map_err(|error| tree.incomplete(error))?;
    list.map_or(Ok(()), Unfinished::finish)?;
    tree.finish()?;
    Ok(summary)
}

/// Makes the destination if it is missing.
pub(crate) fn prepare(store_dir: &Path, dest: &Path) -> Result<OwnedFd, ExportError> {
    let name = || escaped(dest.as_os_str().as_encoded_bytes());
    match std::fs::create_dir(dest) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => check_empty(dest)?,
        made => made.map_err(ExportError::write("make directory", name()))?,
    }
    if is_inside(dest, store_dir) {
        // The directory is still empty: leave no directory of an export in the store.
        let _ = std::fs::remove_dir(dest);
        return Err(ExportError::InsideStore { path: dest.into() });
    }
    let opened = place::open_directory(rustix::fs::CWD, dest.as_os_str().as_encoded_bytes());
    let root = opened.map_err(|failure| refused(failure, name()))?;
    place::drop_lists(&root).map_err(|failure| refused(failure, name()))?;
    Ok(root)
}

fn is_inside(inner: &Path, outer: &Path) -> bool {
    match (inner.canonicalize(), outer.canonicalize()) {
        (Ok(inner), Ok(outer)) => inner.starts_with(outer),
        _ => false,
    }
}

fn refused((operation, errno): FailedCall, name: String) -> ExportError {
    ExportError::write(operation, name)(errno)
}

/// An export under way.
struct Export<'a> {
    walk: TreeWalk<'a>,
    links: Links,
    manifest: Option<Manifest>,
    watch: ExportWatch<'a>,
    summary: ExportSummary,
    /// The deepest directory on the path that was created.
    current: OwnedFd,
    /// Directories on the path below `current`, which could not be created.
    missing: usize,
    /// The directories up to the root, which get their attributes once all of their names are written.
    directories: Vec<NamedInode>,
    buffer: Vec<u8>,
}

impl<'a> Export<'a> {
    fn new(
        view: &'a dyn StoreView,
        root: OwnedFd,
        manifest: Option<Manifest>,
        watch: ExportWatch<'a>,
    ) -> Result<Self, ExportError> {
        let is_taken = |name: &[u8]| {
            lockstep_types::FileName::new(name)
                .is_ok_and(|name| view.lookup(Ino::ROOT, &name).is_ok())
        };
        let links = Links::new(root.as_fd(), is_taken);
        Ok(Self {
            walk: TreeWalk::new(view),
            links: links.map_err(|failure| refused(failure, ".".to_owned()))?,
            manifest,
            watch,
            summary: ExportSummary::default(),
            current: root,
            missing: 0,
            directories: Vec::new(),
            buffer: vec![0; PIECE_BYTES],
        })
    }

    fn check<T>(&self, made: Result<T, FailedCall>) -> Result<T, ExportError> {
        made.map_err(|failure| refused(failure, self.walk.name()))
    }

    /// Reports the attributes that a new inode lacks.
    fn report_losses(&mut self, made: Result<Losses, FailedCall>) -> Result<(), ExportError> {
        for (loss, errno) in self.check(made)? {
            self.report_loss(&loss, errno)?;
        }
        Ok(())
    }

    /// Reports a part that the destination cannot hold.
    fn report_loss(&mut self, loss: &Loss, errno: Errno) -> Result<(), ExportError> {
        let entry = Lost::new(self.walk.name(), loss, errno);
        self.summary.lost += 1;
        self.summary.missing += u64::from(loss.is_of_name());
        (self.watch.report)(&entry);
        match &mut self.manifest {
            Some(manifest) => manifest.loss(&entry),
            None => Ok(()),
        }
    }

    /// Counts a new inode, or reports that the destination cannot hold it.
    fn count_created<T>(
        &mut self,
        made: Result<Created<T>, FailedCall>,
        loss: &Loss,
    ) -> Result<Option<T>, ExportError> {
        match self.check(made)? {
            Ok(made) => {
                self.summary.names += 1;
                Ok(Some(made))
            }
            Err(errno) => {
                self.report_loss(loss, errno)?;
                Ok(None)
            }
        }
    }

    /// Writes everything but the root's attributes.
    fn tree(&mut self) -> Result<(), ExportError> {
        while let Some(step) = self.walk.next()? {
            self.check_goes_on()?;
            match step {
                WalkStep::Name(inode) if inode.attr.kind == NodeKind::Directory => {
                    self.directory(inode)?;
                }
                WalkStep::Name(inode) => self.leaf(&inode)?,
                WalkStep::Leave => self.leave()?,
            }
        }
        Ok(())
    }

    fn check_goes_on(&self) -> Result<(), ExportError> {
        if (self.watch.goes_on)() {
            Ok(())
        } else {
            Err(ExportError::Stopped)
        }
    }

    /// Starts with a directory. The root is there.
    fn directory(&mut self, directory: NamedInode) -> Result<(), ExportError> {
        if self.directories.is_empty() {
            self.summary.directories += 1;
        } else {
            self.go_into(&directory.name)?;
        }
        self.line(&directory, no_content())?;
        self.directories.push(directory);
        Ok(())
    }

    /// Gives the finished directory its attributes and returns to its parent.
    fn leave(&mut self) -> Result<(), ExportError> {
        let Some(directory) = self.directories.pop() else {
            return Ok(());
        };
        if self.missing > 0 {
            self.missing -= 1;
        } else {
            let above = self.check(place::open_directory(self.current.as_fd(), b".."))?;
            let NamedInode { attr, xattrs, .. } = &directory;
            let finished = place::finish(self.current.as_fd(), attr, xattrs);
            self.report_losses(finished)?;
            self.current = above;
        }
        Ok(())
    }

    /// Creates a directory and goes on in it. A directory that cannot be created is walked all the same.
    fn go_into(&mut self, name: &[u8]) -> Result<(), ExportError> {
        let made = if self.missing > 0 {
            self.report_loss(&Loss::Below, Errno::NOENT)?;
            None
        } else {
            let made = place::make_directory(self.current.as_fd(), name);
            self.count_created(made, &Loss::Directory)?
        };
        match made {
            Some(made) => {
                self.current = made;
                self.summary.directories += 1;
            }
            None => self.missing += 1,
        }
        Ok(())
    }

    /// Exports an inode that is no directory.
    fn leaf(&mut self, inode: &NamedInode) -> Result<(), ExportError> {
        let is_to_make = self.is_to_make(inode.attr.ino, &inode.name)?;
        let content = match inode.attr.kind {
            NodeKind::File => self.file(inode, is_to_make)?,
            _ => self.node(inode, is_to_make)?,
        };
        self.line(inode, content)
    }

    /// Whether the inode of a name is yet to be created. If not, the inode was created before, or cannot be created.
    fn is_to_make(&mut self, ino: Ino, name: &[u8]) -> Result<bool, ExportError> {
        if self.missing > 0 {
            self.report_loss(&Loss::Below, Errno::NOENT)?;
            return Ok(false);
        }
        let linked = self.links.link(ino, self.current.as_fd(), name);
        match self.check(linked)? {
            None => Ok(true),
            Some(Err(Errno::MLINK)) => {
                self.report_loss(&Loss::Links, Errno::MLINK)?;
                let forgotten = self.links.forget(ino);
                self.check(forgotten)?;
                Ok(true)
            }
            Some(linked) => {
                self.count_created(Ok(linked), &Loss::Name)?;
                Ok(false)
            }
        }
    }

    /// Remembers a new inode for its further names.
    fn remember(&mut self, attr: &Attr, name: &[u8]) -> Result<(), ExportError> {
        let kept = self.links.remember(attr, self.current.as_fd(), name);
        self.report_losses(kept)
    }

    fn line(&mut self, inode: &NamedInode, content: String) -> Result<(), ExportError> {
        match &mut self.manifest {
            None => Ok(()),
            Some(manifest) => manifest.line(&ManifestLine {
                path: self.walk.path(),
                attr: &inode.attr,
                content,
                xattrs: &inode.xattrs,
            }),
        }
    }

    fn node(&mut self, inode: &NamedInode, is_to_make: bool) -> Result<String, ExportError> {
        let NamedInode { attr, xattrs, name } = inode;
        let target = self.walk.target(attr)?;
        if is_to_make {
            let made = place::make_node(self.current.as_fd(), name, attr, &target, xattrs);
            if let Some(losses) = self.count_created(made, &Loss::Node)? {
                self.report_losses(Ok(losses))?;
                self.remember(attr, name)?;
            }
        }
        Ok(match attr.kind {
            NodeKind::Symlink => escaped(&target),
            _ => no_content(),
        })
    }

    /// Exports a regular file. The content of a file that is not to be created is only hashed.
    fn file(&mut self, inode: &NamedInode, is_to_make: bool) -> Result<String, ExportError> {
        let NamedInode { attr, xattrs, name } = inode;
        let content = self.walk.content(attr)?;
        let mut file = None;
        if is_to_make {
            let made = place::make_file(self.current.as_fd(), name);
            file = self.count_created(made, &Loss::Name)?;
        }
        let hash = self.copy(content, attr.size, (name, &mut file))?;
        if let Some(file) = file {
            self.report_losses(place::finish(file.as_fd(), attr, xattrs))?;
            self.summary.files += 1;
            self.remember(attr, name)?;
        }
        Ok(hash)
    }

    /// Copies data, leaves holes, and returns the hash of the content. A file that gets too large is removed.
    fn copy(
        &mut self,
        mut content: ContentReader,
        size: u64,
        (name, file): (&[u8], &mut Option<File>),
    ) -> Result<String, ExportError> {
        let copied_before = self.summary.bytes;
        let grown = file.as_ref().map_or(Ok(()), |file| file.set_len(size));
        self.check_size(grown, "set the length of", (name, file))?;
        let mut hasher = self.manifest.is_some().then(Hasher::new);
        let mut buffer = std::mem::take(&mut self.buffer);
        while file.is_some() || hasher.is_some() {
            self.check_goes_on()?;
            let Some(piece) = self.walk.read(content.next(&mut buffer))? else {
                break;
            };
            if let (ContentPiece::Data(at, bytes), Some(open)) = (&piece, file.as_ref()) {
                let written = open.write_all_at(bytes, *at);
                self.summary.bytes += bytes.len() as u64;
                self.check_size(written, "write", (name, file))?;
            }
            if let Some(hasher) = &mut hasher {
                piece.hash(hasher);
            }
        }
        self.buffer = buffer;
        if file.is_none() {
            self.summary.bytes = copied_before;
        }
        Ok(hasher.map_or_else(String::new, |hasher| hex(hasher.finalize())))
    }

    /// Removes a file that is too large for the destination, and reports the loss.
    fn check_size(
        &mut self,
        done: std::io::Result<()>,
        operation: &'static str,
        (name, file): (&[u8], &mut Option<File>),
    ) -> Result<(), ExportError> {
        match done {
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                *file = None;
                self.check(place::remove(self.current.as_fd(), name))?;
                self.summary.names -= 1;
                self.report_loss(&Loss::Content, Errno::FBIG)
            }
            done => done.map_err(ExportError::write(operation, self.walk.name())),
        }
    }

    /// Gives the root its attributes and makes the copy durable.
    fn finish(mut self, dest: &Path) -> Result<ExportSummary, ExportError> {
        let name = escaped(dest.as_os_str().as_encoded_bytes());
        let removed = self.links.finish();
        removed.map_err(|failure| refused(failure, name.clone()))?;
        if let Some(root) = self.directories.pop() {
            let finished = place::finish(self.current.as_fd(), &root.attr, &root.xattrs);
            self.report_losses(finished)?;
        }
        rustix::fs::syncfs(&self.current).map_err(ExportError::write("sync", name.clone()))?;
        self.manifest.map_or(Ok(()), Manifest::finish)?;
        Ok(self.summary)
    }
}
