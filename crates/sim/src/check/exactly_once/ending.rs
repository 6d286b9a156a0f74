//! Compares the namespace of the model with the store at the end.
//!
//! Inodes without a name may be present or absent, because the time when a store frees them is not
//! specified.

use std::fmt::Debug;

use lockstep_types::Ino;

use super::namespace::{Namespace, Node};
use crate::check::dump::{Body, Dump, Inode};

/// Returns the first inode whose state in the store differs from the model, and a description of
/// the difference.
pub(super) fn difference(model: &Namespace, last: &Dump) -> Option<(Ino, String)> {
    let live = model.nodes().filter(|(_, node)| node.nlink > 0);
    for (ino, node) in live {
        let Some(found) = last.inodes.get(&ino) else {
            return Some((ino, format!("#{ino} is missing at the end: {node:?}")));
        };
        if let Some(how) = difference_of(model, ino, node, found) {
            return Some((ino, format!("at the end #{ino} has {how}")));
        }
    }
    let is_dead = |ino: Ino| model.node(ino).is_none_or(|node| node.nlink == 0);
    let mut found = last.inodes.iter();
    let extra = found.find(|(ino, found)| is_dead(**ino) && found.nlink > 0);
    extra.map(|(ino, _)| (*ino, format!("#{ino} should not be there at the end")))
}

fn difference_of(model: &Namespace, ino: Ino, node: &Node, found: &Inode) -> Option<String> {
    let expected_access = (node.mode, node.uid, node.gid);
    let access = (found.mode, found.uid, found.gid);
    let xattrs: Vec<_> = model.xattrs(ino).collect();
    mismatch(
        "kind, links, device",
        &(node.kind, node.nlink, node.rdev),
        &(found.kind, found.nlink, found.rdev),
    )
    // The root's mode and owner are not in the model.
    .or_else(|| mismatch("mode, owner", &expected_access, &access).filter(|_| ino != Ino::ROOT))
    .or_else(|| {
        mismatch(
            "extended attributes",
            &xattrs,
            &found.xattrs.iter().collect(),
        )
    })
    .or_else(|| difference_of_body(model, ino, node, &found.body))
}

fn difference_of_body(model: &Namespace, ino: Ino, node: &Node, body: &Body) -> Option<String> {
    match body {
        Body::Directory(entries) => {
            let mut found: Vec<_> = entries
                .iter()
                .map(|entry| (&entry.name, entry.ino))
                .collect();
            found.sort_unstable();
            mismatch("entries", &model.entries(ino).collect(), &found)
        }
        Body::Symlink(target) => mismatch("target", &node.target, target),
        _ => None,
    }
}

/// Returns the difference in words, if there is one.
fn mismatch<T: Debug + PartialEq>(what: &str, expected: &T, found: &T) -> Option<String> {
    (expected != found).then(|| format!("{what} {found:?}, not {expected:?}"))
}
