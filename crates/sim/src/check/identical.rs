//! Nodes in sync have identical stores: every block, attribute, entry, cookie, extended attribute
//! and inode number. Only the allocated space may differ. It is not in a [`Dump`].
//!
//! The check applies when both nodes report that they are in sync and no work is in progress.

use std::collections::BTreeSet;
use std::fmt::Debug;

use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Hash128, Ino};

use super::dump::{Body, Dump, Entry, Inode};
use super::violation::Violation;

/// Maximum number of differences in the message. Further differences are only counted.
const SHOWN_MAX: usize = 20;

/// Judges two stores that are in sync.
pub fn check(primary: &Dump, secondary: &Dump) -> Result<(), Violation> {
    let differences = differences(primary, secondary);
    if differences.is_empty() {
        return Ok(());
    }
    let count = differences.len();
    let what = format!("the stores differ in {count} ways (primary here, secondary there)");
    let violation = Violation::new("identical", what);
    Err(differences
        .into_iter()
        .take(SHOWN_MAX)
        .fold(violation, Violation::line))
}

/// Returns all differences, by inode number.
pub(super) fn differences(primary: &Dump, secondary: &Dump) -> Vec<String> {
    let mut found = Vec::new();
    let inos: BTreeSet<&Ino> = primary
        .inodes
        .keys()
        .chain(secondary.inodes.keys())
        .collect();
    for ino in inos {
        match (primary.inodes.get(ino), secondary.inodes.get(ino)) {
            (Some(here), Some(there)) if here != there => compare(*ino, here, there, &mut found),
            (Some(_), None) => found.push(format!("#{ino} is here only")),
            (None, Some(_)) => found.push(format!("#{ino} is there only")),
            _ => {}
        }
    }
    found
}

fn compare(ino: Ino, here: &Inode, there: &Inode, found: &mut Vec<String>) {
    let mut field = |name: &str, here: &dyn Debug, there: &dyn Debug| {
        let (here, there) = (format!("{here:?}"), format!("{there:?}"));
        if here != there {
            found.push(format!("#{ino} {name}: {here} here, {there} there"));
        }
    };
    field("kind", &here.kind, &there.kind);
    field("mode", &here.mode, &there.mode);
    field("owner", &(here.uid, here.gid), &(there.uid, there.gid));
    field("links", &here.nlink, &there.nlink);
    field("device", &here.rdev, &there.rdev);
    field("size", &here.size, &there.size);
    field("atime", &here.atime, &there.atime);
    field("mtime", &here.mtime, &there.mtime);
    field("ctime", &here.ctime, &there.ctime);
    let names: BTreeSet<_> = here.xattrs.keys().chain(there.xattrs.keys()).collect();
    for name in names {
        let what = format!("xattr {}", name.escape_ascii());
        let text = |inode: &Inode| {
            inode
                .xattrs
                .get(name)
                .map(|value| value.escape_ascii().to_string())
        };
        field(&what, &text(here), &text(there));
    }
    compare_bodies(ino, &here.body, &there.body, found);
}

fn compare_bodies(ino: Ino, here: &Body, there: &Body, found: &mut Vec<String>) {
    match (here, there) {
        (Body::File(here), Body::File(there)) => compare_blocks(ino, here, there, found),
        (Body::Directory(here), Body::Directory(there)) => {
            compare_entries(ino, here, there, found);
        }
        (here, there) if here != there => {
            found.push(format!("#{ino}: {here:?} here, {there:?} there"));
        }
        _ => {}
    }
}

fn compare_blocks(ino: Ino, here: &[u8], there: &[u8], found: &mut Vec<String>) {
    let block = |bytes: &[u8], number: usize| {
        let bytes = bytes.chunks(BLOCK_BYTES).nth(number).unwrap_or_default();
        (bytes.len(), Hash128::of(bytes))
    };
    let blocks = here.len().max(there.len()).div_ceil(BLOCK_BYTES);
    for number in (0..blocks).filter(|number| block(here, *number) != block(there, *number)) {
        let differ = |(one, two): (&u8, &u8)| one != two;
        let start = number * BLOCK_BYTES;
        let (one, two) = (here.iter().skip(start), there.iter().skip(start));
        let first = one.zip(two).position(differ).unwrap_or(0);
        let (one, two) = (here.get(start + first), there.get(start + first));
        found.push(format!(
            "#{ino} block {number}, byte {first} of it: {one:02x?} here, {two:02x?} there"
        ));
    }
}

fn compare_entries(ino: Ino, here: &[Entry], there: &[Entry], found: &mut Vec<String>) {
    let only = |these: &[Entry], those: &[Entry], where_: &str, found: &mut Vec<String>| {
        let missing = these.iter().filter(|entry| !those.contains(entry));
        found.extend(missing.map(|entry| {
            let Entry {
                cookie,
                name,
                ino: to,
            } = entry;
            format!("#{ino} {where_} only: entry {name:?} to #{to} at cookie {cookie}")
        }));
    };
    let before = found.len();
    only(here, there, "here", found);
    only(there, here, "there", found);
    if found.len() == before && here != there {
        found.push(format!("#{ino}: the same entries in another order"));
    }
}
