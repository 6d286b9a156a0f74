//! The names and attributes that a resync changes, as entries of the list.
//!
//! Only what this node had is listed: a name, an inode or an attribute that comes new from the primary loses nothing.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::ControlFlow;

use lockstep_types::{Ino, InodeFlags, NodeKind};

use super::list::{Entry, NAME_ENTRY, Path, PreservedList};
use crate::error::StoreError;
use crate::namespace::record::{self, Body, EntryRecord, Inode};
use crate::namespace::{Namespace, keys};
use crate::text::escaped;

/// Deepest directory that gets a path.
const DEPTH_MAX: usize = 1000;

/// Lists the old side of changes that are about to be made.
pub fn note<'a>(
    namespace: &Namespace,
    changes: impl Iterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)>,
    list: &mut PreservedList,
) -> Result<(), StoreError> {
    for (key, new) in changes {
        let (Some(table), Some(ino)) = (key.first(), keys::ino_of(key)) else {
            continue;
        };
        if ![keys::ENTRIES, keys::INODES, keys::XATTRS].contains(table) {
            continue;
        }
        let Some(old) = namespace.get(key)? else {
            continue;
        };
        match *table {
            keys::ENTRIES => note_name(namespace, (ino, key), &old, new.as_deref(), list)?,
            keys::INODES => note_inode(ino, &old, new.as_deref(), list),
            _ => note_xattr((ino, key), &old, new.as_deref(), list),
        }
    }
    Ok(())
}

fn note_name(
    namespace: &Namespace,
    (directory, key): (Ino, &[u8]),
    old: &[u8],
    new: Option<&[u8]>,
    list: &mut PreservedList,
) -> Result<(), StoreError> {
    let old: Option<EntryRecord> = record::decode(old);
    let new: Option<EntryRecord> = new.and_then(record::decode);
    let Some(old) = old.filter(|old| new.is_none_or(|new| new.ino != old.ino)) else {
        return Ok(());
    };
    let above = directory_path(namespace, directory, list, 0)?;
    let path = format!("{above}/{}", escaped(keys::rest_of(key)));
    let detail = new.map_or_else(
        || "the name is gone".to_owned(),
        |new| format!("the name leads to inode {:x} now", new.ino.get()),
    );
    list.add(&Entry {
        what: NAME_ENTRY,
        ino: Some(old.ino),
        path: Path::Known(&path),
        detail: &detail,
        place: "",
    });
    list.remember(old.ino, &path);
    Ok(())
}

/// The path of a directory on this node: by an entry of the list, or by the names that are left.
fn directory_path(
    namespace: &Namespace,
    directory: Ino,
    list: &PreservedList,
    depth: usize,
) -> Result<String, StoreError> {
    if directory == Ino::ROOT {
        return Ok(String::new());
    }
    if let Some(path) = list.path_of(directory) {
        return Ok(path.to_owned());
    }
    let unknown = || format!("(inode {:x})", directory.get());
    let body = namespace.inode(directory)?.map(|inode| inode.body);
    let Some(Body::Directory { parent, .. }) = body.filter(|_| depth < DEPTH_MAX) else {
        return Ok(unknown());
    };
    let mut name = None;
    namespace.scan(&keys::of_ino(keys::ENTRIES, parent), &mut |key, value| {
        let entry: Option<EntryRecord> = record::decode(value);
        if entry.is_some_and(|entry| entry.ino == directory) {
            name = Some(escaped(keys::rest_of(key)));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    match name {
        Some(name) => {
            let above = directory_path(namespace, parent, list, depth + 1)?;
            Ok(format!("{above}/{name}"))
        }
        None => Ok(unknown()),
    }
}

fn note_inode(ino: Ino, old: &[u8], new: Option<&[u8]>, list: &mut PreservedList) {
    let Some(old) = record::decode::<Inode>(old).map(|inode| shown(&inode)) else {
        return;
    };
    let Some(new) = new.and_then(record::decode::<Inode>) else {
        let all: Vec<String> = old
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        return list.add(&Entry {
            what: "inode removed",
            ino: Some(ino),
            path: Path::Unknown,
            detail: &all.join(", "),
            place: "",
        });
    };
    let new = shown(&new);
    let mut detail = String::new();
    for (name, old) in &old {
        let new = new.get(name).map_or("nothing", String::as_str);
        if new != old {
            let comma = if detail.is_empty() { "" } else { ", " };
            // Writing to a String cannot fail.
            let _ = write!(detail, "{comma}{name} {old} before, {new} now");
        }
    }
    if !detail.is_empty() {
        list.add(&Entry {
            what: "attributes",
            ino: Some(ino),
            path: Path::Unknown,
            detail: &detail,
            place: "",
        });
    }
}

/// The attributes that the list shows. The times of a directory follow from its names, which the list shows too.
fn shown(inode: &Inode) -> BTreeMap<&'static str, String> {
    let attr = inode.attr(Ino::ROOT);
    let mut shown = BTreeMap::from([
        ("kind", format!("{:?}", attr.kind).to_lowercase()),
        ("mode", format!("{:o}", inode.bits.mode)),
        ("uid", inode.uid.to_string()),
        ("gid", inode.gid.to_string()),
    ]);
    if inode.bits.flags != InodeFlags::NONE {
        shown.insert("flags", inode.bits.flags.to_string());
    }
    if attr.kind != NodeKind::Directory {
        shown.insert("mtime", inode.mtime.to_string());
    }
    match &inode.body {
        Body::File { size } => {
            shown.insert("size", size.to_string());
        }
        Body::Symlink { target } => {
            shown.insert("target", escaped(target));
        }
        Body::CharDevice { rdev } | Body::BlockDevice { rdev } => {
            shown.insert("device", rdev.to_string());
        }
        Body::Directory { .. } | Body::Fifo | Body::Socket => {}
    }
    shown
}

fn note_xattr((ino, key): (Ino, &[u8]), old: &[u8], new: Option<&[u8]>, list: &mut PreservedList) {
    let fate = if new.is_some() { "changed" } else { "removed" };
    let name = escaped(keys::rest_of(key));
    let detail = format!("{name} {fate}, before: {}", escaped(old));
    list.add(&Entry {
        what: "extended attribute",
        ino: Some(ino),
        path: Path::Unknown,
        detail: &detail,
        place: "",
    });
}
