//! Metadata operations happened exactly once: one order of them explains every answer that clients
//! received and the namespace at the end.
//!
//! The check looks for an order with these properties:
//!
//! - Each acknowledged operation stands in it once, between its invocation and its return.
//! - Each open operation stands in it at most once, after its invocation. An operation of a process that has ended stands
//!   before the next programs are let in (rule P4, [`History::deadline`]).
//! - The model (`check/exactly_once/namespace.rs`) answers as the datastore did: with success or the same error,
//!   the same links, modes, owners, extended attributes and names.
//!
//! An operation done twice, or not at all, or in two orders, leaves a link count, a name or an
//! error that no such order explains.
//!
//! Every correct run has such an order. The reason is that metadata operations are applied one
//! after the other (rule P2), under locks held until the answer, and looks see only applied
//! operations. Some cases need care:
//!
//! - **Loss.** There is one log. A power loss cuts the log at some point. The result is the effect
//!   of a first part of the order. This part holds every durable operation. This check permits that
//!   operations under way happen later. No client received an answer to such an operation, so no
//!   client can see the difference.
//! - **Freed inodes.** The time when an inode without a name is freed is not specified. So an
//!   operation on such an inode may also return that the inode is stale.
//! - **Listing.** A directory that changed while it was listed may show any mixture.
//! - **Lookup.** The search of the name and the read of the attributes may happen at two moments.
//! - **Numbers.** No number is given out twice, also after the loss of its inode (rule P13). The model has one inode for each
//!   number.
//!
//! The search is bounded ([`WORK_MAX`]). A history that is too complex to decide is not accused.
//! One of 60,000 worlds of the tests was too complex.

mod ending;
mod namespace;
mod prune;
mod search;
mod situation;
mod step;
mod touches;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lockstep_types::{Errno, Ino, MetaRequest};

use search::Search;
use situation::Verdict;
use step::{Expected, Sight, Step, What};

use super::dump::Dump;
use super::synced::Synced;
use super::untouched;
use super::violation::Violation;
use crate::history::loss::Loss;
use crate::history::{Answer, Call, CallId, CallRecord, Fate, History};
use crate::op::Op;

/// Number of steps tried and compared before a history is left undecided. This takes some tenths of
/// a second.
pub const WORK_MAX: u64 = 3_000_000;

/// Judges all answers about the namespace, and the primary's store at the end. An undecided history
/// passes. [`decide`] distinguishes the two cases.
pub fn check(history: &History, last: &Dump) -> Result<(), Violation> {
    decide(history, last).map(|_| ())
}

/// Judges as [`check`] does. Returns `false` if the history could not be decided.
pub fn decide(history: &History, last: &Dump) -> Result<bool, Violation> {
    if let Some(twice) = made_twice(history.calls()) {
        let what = "an inode number is given out twice".to_owned();
        return Err(Violation::new("exactly_once", what).calls(history, twice));
    }
    let mut steps = steps(history);
    let losses = history.nodes().losses().into_iter();
    let losses: Vec<_> = losses.filter(Loss::takes_names).collect();
    let untouched = untouched::names(history.calls());
    let untouched = untouched.into_iter().map(|it| (it.parent, it.name));
    prune::narrow(&mut steps, &losses, last, untouched.collect());
    let mut search = Search::new(steps, last);
    match search.run(WORK_MAX) {
        Verdict::Explained => Ok(true),
        Verdict::Undecided => Ok(false),
        Verdict::Unexplained(stuck) => {
            let what = "no order of the operations explains the observations".to_owned();
            let violation = Violation::new("exactly_once", what)
                .line(format!("explained are all calls but {}, then:", stuck.left));
            let violation = stuck.notes.into_iter().fold(violation, Violation::line);
            Err(violation.calls(history, stuck.calls))
        }
    }
}

/// Returns two calls that have made an inode of the same number, if there are two (rule P13). A handle of the one would
/// lead to the other, also if the one was in a copy that was given up.
fn made_twice(calls: &CallRecord) -> Option<[CallId; 2]> {
    let mut made: BTreeMap<Ino, CallId> = BTreeMap::new();
    let mut calls = calls.every();
    calls.find_map(|(id, call)| {
        let ino = call.op.makes().filter(|_| call.fate() == Fate::Done)?;
        made.insert(ino, id).map(|before| [before, id])
    })
}

/// Returns the steps for which the search must find an order.
fn steps(history: &History) -> Vec<Step<'_>> {
    let synced = Synced::of(history);
    let losses = history.nodes().losses();
    let mut steps: Vec<_> = losses
        .iter()
        .filter(|loss| loss.takes_names())
        .map(|loss| Step::at_moment(loss.at, What::Loss(*loss)))
        .collect();
    for (id, call) in history.calls().iter() {
        for what in step_kinds(history.calls(), call) {
            steps.push(Step {
                call: Some(id),
                invoked: call.invoked,
                over: call.latest().min(history.deadline(id)),
                is_certain: call.fate() != Fate::Unsure,
                durable: match what {
                    What::Change(..) => synced.namespace(call),
                    _ => u64::MAX,
                },
                seen_until: 0,
                lost_at: None,
                what,
            });
        }
    }
    steps.extend(settled(&steps));
    steps.sort_by_key(|step| (step.invoked, Reverse(step.over)));
    steps
}

/// Returns the moments by which open calls have happened, or never happen.
fn settled<'a>(steps: &[Step<'a>]) -> Vec<Step<'a>> {
    let changes = steps.iter().filter(|step| !step.changes_nothing());
    let uncertain = changes.filter(|step| !step.is_certain && step.over != u64::MAX);
    let moments: BTreeSet<u64> = uncertain.map(|step| step.over).collect();
    let moments = moments.into_iter();
    moments
        .map(|moment| Step::at_moment(moment, What::Settled))
        .collect()
}

/// Returns the changes of a call to the namespace, and the observations of the call.
fn step_kinds<'a>(calls: &'a CallRecord, call: &'a Call) -> Vec<What<'a>> {
    if matches!(call.fate(), Fate::Refused(errno) if is_limit(errno)) {
        return Vec::new();
    }
    if let Op::Change(request) = &call.op {
        let expected = match (call.fate(), call.answer()) {
            (Fate::Refused(errno), _) => Expected::Refusal(errno),
            (_, Some(Answer::Attr(attr))) => Expected::Attr(attr),
            (Fate::Done, _) => Expected::Success,
            _ => Expected::Anything,
        };
        return vec![What::Change(request, expected)];
    }
    let sights = match &call.returned {
        Some((_, Ok(answer))) => sights(calls, call, answer),
        Some((_, Err(errno))) => refused_sight(&call.op, *errno).into_iter().collect(),
        None => Vec::new(),
    };
    sights.into_iter().map(What::Sight).collect()
}

/// Returns whether an error says that something was too large. The model has no limits.
const fn is_limit(errno: Errno) -> bool {
    use Errno::{NameTooLong, Range, TooBig, TooManyLinks};
    matches!(errno, NameTooLong | Range | TooBig | TooManyLinks)
}

fn sights<'a>(calls: &CallRecord, call: &'a Call, answer: &'a Answer) -> Vec<Sight<'a>> {
    match (&call.op, answer) {
        (Op::Lookup { parent, name }, Answer::Attr(attr)) => vec![
            Sight::Entry(*parent, name, Some(attr.ino)),
            Sight::Attr(attr),
        ],
        (Op::GetAttr { .. }, Answer::Attr(attr)) => vec![Sight::Attr(attr)],
        (Op::ReadDir { directory }, Answer::Entries(entries))
            if !changes_meanwhile(calls, call, *directory) =>
        {
            vec![Sight::Entries(*directory, entries)]
        }
        (Op::GetXattr { ino, name }, Answer::Value(value)) => {
            vec![Sight::Xattr(*ino, name, Some(value))]
        }
        (Op::ReadLink { ino }, Answer::Value(target)) => vec![Sight::Target(*ino, target)],
        (Op::Read { ino, .. }, _) => vec![Sight::File(*ino)],
        (Op::Write(write), _) => vec![Sight::File(write.ino)],
        _ => Vec::new(),
    }
}

fn refused_sight(op: &Op, errno: Errno) -> Option<Sight<'_>> {
    let ino = match op {
        Op::Lookup { parent, name } if errno == Errno::NoEntry => {
            return Some(Sight::Entry(*parent, name, None));
        }
        Op::GetXattr { ino, name } if errno == Errno::NoData => {
            return Some(Sight::Xattr(*ino, name, None));
        }
        Op::GetAttr { ino } | Op::ReadLink { ino } | Op::Read { ino, .. } => *ino,
        Op::Write(write) => write.ino,
        Op::ReadDir { directory } => *directory,
        _ => return None,
    };
    (errno == Errno::Stale).then_some(Sight::Gone(ino))
}

/// Returns whether the entries of a directory may have changed while a call was under way.
fn changes_meanwhile(calls: &CallRecord, call: &Call, directory: Ino) -> bool {
    let concurrent = |other: &Call| other.invoked <= call.over() && call.invoked <= other.latest();
    let may_act = |other: &Call| !matches!(other.fate(), Fate::Refused(_));
    let mut others = calls.iter().map(|(_, other)| other);
    others.any(|other| concurrent(other) && may_act(other) && changes(&other.op, directory))
}

fn changes(op: &Op, directory: Ino) -> bool {
    match op {
        Op::Change(
            MetaRequest::Create { parent, .. }
            | MetaRequest::Link { parent, .. }
            | MetaRequest::Unlink { parent, .. }
            | MetaRequest::Rmdir { parent, .. },
        ) => *parent == directory,
        Op::Change(MetaRequest::Rename {
            parent, new_parent, ..
        }) => *parent == directory || *new_parent == directory,
        _ => false,
    }
}
