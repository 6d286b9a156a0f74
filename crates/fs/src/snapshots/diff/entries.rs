//! The entries of one page: the findings of the walk, with names and paths.
//!
//! The entry of an inode tells of the name by which the inode has come, gone or moved. Further names of an inode are entries of their own.

use std::collections::BTreeSet;

use lockstep_types::Ino;

use super::entry::{DiffChange, DiffEntry, changed_attributes};
use super::fates::{Fate, Fates, Then};
use super::sides::Sides;
use super::walk::{DiffFinding, FoundInode, FoundName};
use crate::error::{OpError, StoreError};
use crate::namespace::record::Inode;
use crate::view::directory_paths::{DirectoryPaths, join};
use crate::view::named_place::ParentAndName;

/// The paths of directories at both moments.
#[derive(Default)]
pub struct BothPaths {
    old: DirectoryPaths,
    new: DirectoryPaths,
}

/// An entry whose paths are not known yet.
struct EntryDraft {
    /// The entry, without paths.
    entry: DiffEntry,
    /// The name; `None` for the root.
    name: Option<ParentAndName>,
    /// The name at the older moment that is told besides.
    from: Option<ParentAndName>,
}

/// The entries of these findings.
pub fn entries(
    sides: &Sides<'_>,
    found: Vec<DiffFinding>,
    paths: &mut BothPaths,
) -> Result<Vec<DiffEntry>, OpError> {
    let inos: BTreeSet<Ino> = found
        .iter()
        .map(|found| match found {
            DiffFinding::Inode(inode) => inode.ino,
            DiffFinding::Name(name) => name.ino,
        })
        .collect();
    let fates = Fates::of(sides, &inos)?;
    let mut drafts = Vec::new();
    for found in found {
        match found {
            DiffFinding::Inode(inode) => {
                if let Some(fate) = fates.get(inode.ino) {
                    of_inode(sides, inode, fate, &mut drafts)?;
                }
            }
            DiffFinding::Name(name) => {
                drafts.extend(fates.get(name.ino).and_then(|fate| of_name(name, fate)));
            }
        }
    }
    with_paths(sides, drafts, paths)
}

/// The entries of an inode: none if it is as it was; two if another one has its number.
fn of_inode(
    sides: &Sides<'_>,
    found: FoundInode,
    fate: &Fate,
    drafts: &mut Vec<EntryDraft>,
) -> Result<(), OpError> {
    let (ino, continued) = (found.ino, found.continued);
    match (&fate.old, &fate.new) {
        (_, Some(new)) if continued => {
            let mut draft = draft(DiffChange::Changed, ino, new);
            draft.entry.continued = true;
            draft.entry.ranges = found.ranges;
            drafts.push(draft);
        }
        (Some(old), Some(new)) if fate.is_same => {
            let change = if fate.is_moved() {
                DiffChange::Renamed
            } else {
                DiffChange::Changed
            };
            let mut draft = draft(change, ino, new);
            draft.from = old.name.clone().filter(|_| fate.is_moved());
            draft.entry.attributes = changed_attributes(&old.inode, &new.inode);
            draft.entry.xattrs = found.xattrs && sides.xattrs_differ(ino)?;
            draft.entry.ranges = found.ranges;
            let entry = &draft.entry;
            let is_told = fate.is_moved()
                || entry.xattrs
                || !entry.attributes.is_empty()
                || !entry.ranges.is_empty();
            drafts.extend(is_told.then_some(draft));
        }
        (old, new) => {
            let old = old.as_ref().filter(|_| !continued);
            drafts.extend(old.map(|old| draft(DiffChange::Deleted, ino, old)));
            drafts.extend(new.as_ref().map(|new| {
                let mut draft = draft(DiffChange::Created, ino, new);
                draft.entry.ranges = found.ranges;
                draft
            }));
        }
    }
    Ok(())
}

/// The entry of a name, unless the entry of its inode tells of the name.
fn of_name(found: FoundName, fate: &Fate) -> Option<EntryDraft> {
    let then = if found.has_come { &fate.new } else { &fate.old };
    let name = (found.directory, found.name);
    if fate.tells(then.as_ref(), &name) {
        return None;
    }
    let change = if found.has_come {
        DiffChange::Linked
    } else {
        DiffChange::Unlinked
    };
    let mut draft = draft(change, found.ino, then.as_ref()?);
    if found.has_come && fate.is_same {
        draft.from = fate.old.as_ref().and_then(|old| old.name.clone());
    }
    draft.name = Some(name);
    Some(draft)
}

fn draft(change: DiffChange, ino: Ino, then: &Then) -> EntryDraft {
    let Inode { body, .. } = &then.inode;
    EntryDraft {
        entry: DiffEntry {
            change,
            path: Vec::new(),
            from: None,
            node: (ino, body.kind()),
            size: body.file_size(),
            attributes: Vec::new(),
            xattrs: false,
            ranges: Vec::new(),
            continued: false,
        },
        name: then.name.clone(),
        from: None,
    }
}

fn with_paths(
    sides: &Sides<'_>,
    drafts: Vec<EntryDraft>,
    paths: &mut BothPaths,
) -> Result<Vec<DiffEntry>, OpError> {
    let (mut old, mut new) = (BTreeSet::new(), BTreeSet::new());
    for draft in &drafts {
        let side = if draft.entry.is_gone() {
            &mut old
        } else {
            &mut new
        };
        side.extend(draft.name.as_ref().map(|(directory, _)| *directory));
        old.extend(draft.from.as_ref().map(|(directory, _)| *directory));
    }
    paths.old.find(&sides.from, &old)?;
    if sides.to_id.is_none() {
        // Names of the present change from page to page.
        paths.new = DirectoryPaths::default();
    }
    paths.new.find(&*sides.to, &new)?;
    let mut entries = Vec::new();
    for draft in drafts {
        let (side, is_snapshot) = if draft.entry.is_gone() {
            (&paths.old, true)
        } else {
            (&paths.new, sides.to_id.is_some())
        };
        let mut entry = draft.entry;
        let path = match &draft.name {
            Some(name) => path(side, name, is_snapshot)?,
            None => Some(b".".to_vec()),
        };
        if let Some(from) = &draft.from {
            entry.from = path_of(&paths.old, from)?;
        }
        // A name of the present without a path has left the tree meanwhile.
        if let Some(path) = path {
            entries.push(DiffEntry { path, ..entry });
        }
    }
    Ok(entries)
}

fn path(
    paths: &DirectoryPaths,
    name: &ParentAndName,
    is_snapshot: bool,
) -> Result<Option<Vec<u8>>, OpError> {
    if is_snapshot {
        return path_of(paths, name);
    }
    Ok(paths.of(name.0).map(|above| join(above, &name.1)))
}

/// The path in a snapshot, where none is missing.
fn path_of(
    paths: &DirectoryPaths,
    (directory, name): &ParentAndName,
) -> Result<Option<Vec<u8>>, OpError> {
    match paths.of(*directory) {
        Some(above) => Ok(Some(join(above, name))),
        None => Err(StoreError::Damaged {
            what: format!("directory {directory} of a snapshot has entries, and no path"),
        }
        .into()),
    }
}
