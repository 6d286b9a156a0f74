//! Names that exactly one call affects. Their fate can be judged without a search.

use std::collections::BTreeMap;

use lockstep_types::{FileName, Ino, MetaRequest};

use crate::history::{CallId, CallRecord, Fate};
use crate::op::Op;

/// A name made by a call that succeeded, which no other call can have changed.
#[derive(Debug)]
pub(super) struct Untouched {
    /// The call that made the name.
    pub maker: CallId,
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: FileName,
    /// The inode to which the name leads.
    pub ino: Ino,
}

/// Returns all such names of a history.
pub(super) fn names(calls: &CallRecord) -> Vec<Untouched> {
    let mut touched: BTreeMap<(Ino, &FileName), u32> = BTreeMap::new();
    let may_act = |fate| !matches!(fate, Fate::Refused(_));
    for (_, call) in calls.iter().filter(|(_, call)| may_act(call.fate())) {
        for place in places(&call.op).into_iter().flatten() {
            *touched.entry(place).or_default() += 1;
        }
    }
    let done = calls.iter().filter(|(_, call)| call.fate() == Fate::Done);
    let made = done.filter_map(|(id, call)| Some((id, made(&call.op)?)));
    made.filter(|(_, (parent, name, _))| touched.get(&(*parent, name)) == Some(&1))
        .map(|(maker, (parent, name, ino))| Untouched {
            maker,
            parent,
            name: name.clone(),
            ino,
        })
        .collect()
}

/// Returns the name that an operation makes, and its inode.
const fn made(op: &Op) -> Option<(Ino, &FileName, Ino)> {
    match op {
        Op::Change(
            MetaRequest::Create {
                parent, name, ino, ..
            }
            | MetaRequest::Link { ino, parent, name },
        ) => Some((*parent, name, *ino)),
        _ => None,
    }
}

/// Returns the names that an operation changes.
const fn places(op: &Op) -> [Option<(Ino, &FileName)>; 2] {
    match op {
        Op::Change(
            MetaRequest::Create { parent, name, .. }
            | MetaRequest::Link { parent, name, .. }
            | MetaRequest::Unlink { parent, name }
            | MetaRequest::Rmdir { parent, name },
        ) => [Some((*parent, name)), None],
        Op::Change(MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            ..
        }) => [Some((*parent, name)), Some((*new_parent, new_name))],
        _ => [None, None],
    }
}
