//! Metadata operations happened exactly once: one order of them explains every answer that clients
//! got and the namespace at the end.
//!
//! Looked for is an order in which each acknowledged operation stands once, between its invocation
//! and its return, each open one at most once, after its invocation, and in which the
//! model (`check/namespace.rs`) answers as the datastore did: with success or the same error, the same
//! links, modes, owners, extended attributes, names. An operation done twice, or not at all, or in
//! two orders, leaves a link count, a name or an error that no such order explains.
//!
//! Why every correct run has such an order: metadata operations are applied one after the other
//! (rule P2), under locks held until the answer, and looks see what is applied.
//!
//! - **Loss.** The log is one, and is cut somewhere by a power loss: what is left is the effect of a
//!   first part of the order. It holds everything that was durable. What was under way may still
//!   happen later, for all that this check says: nobody was answered, so nobody can tell.
//! - **Freed inodes.** When an inode without a name is freed is not said: an operation on one may also
//!   have been answered that it is stale.
//! - **Listing.** A directory that changed while it was listed may show any mixture.
//! - **Lookup.** Finding the name and reading the attributes may be two moments.
//!
//! The search is bounded ([`WORK_MAX`]): a history too entangled to decide is not accused. Of 60,000
//! worlds of the tests one was.

use std::cmp::Reverse;

use lockstep_types::{Errno, Ino, MetaRequest};

use super::dump::Dump;
use super::evidence;
use super::search::{Search, Verdict};
use super::step::{Expected, Sight, Step, What};
use super::synced::Synced;
use super::untouched;
use super::violation::Violation;
use crate::history::{Answer, Call, Fate, History, Loss};
use crate::workload::Op;

/// Steps tried and compared before a history is left undecided: some tenths of a second.
pub const WORK_MAX: u64 = 3_000_000;

/// Judges all answers about the namespace, and the store of the primary at the end. A history that
/// could not be decided passes; [`decide`] tells the two apart.
pub fn check(history: &History, last: &Dump) -> Result<(), Violation> {
    decide(history, last).map(|_| ())
}

/// As [`check`]; `false` if the history could not be decided.
pub fn decide(history: &History, last: &Dump) -> Result<bool, Violation> {
    let mut steps = steps(history);
    let losses: Vec<_> = history.losses();
    let losses: Vec<_> = losses.into_iter().filter(Loss::takes_names).collect();
    let untouched = untouched::names(history);
    let untouched = untouched.into_iter().map(|it| (it.parent, it.name));
    evidence::weigh(&mut steps, &losses, last, untouched.collect());
    let mut search = Search::new(steps, last);
    match search.run(WORK_MAX) {
        Verdict::Explained => Ok(true),
        Verdict::Undecided => Ok(false),
        Verdict::Unexplained(stuck) => {
            let what = "no order of the operations explains what was seen".to_owned();
            let violation = Violation::new("exactly_once", what)
                .line(format!("explained are all calls but {}, then:", stuck.left));
            let violation = stuck.notes.into_iter().fold(violation, Violation::line);
            Err(violation.calls(history, stuck.calls))
        }
    }
}

/// What has to be put in order.
fn steps(history: &History) -> Vec<Step<'_>> {
    let synced = Synced::of(history);
    let losses = history.losses();
    let mut steps: Vec<_> = losses
        .iter()
        .filter(|loss| loss.takes_names())
        .map(|loss| Step {
            call: None,
            invoked: loss.at,
            over: loss.at,
            is_certain: true,
            durable: u64::MAX,
            seen_until: 0,
            lost_at: None,
            what: What::Loss(*loss),
        })
        .collect();
    for (id, call) in history.calls() {
        for what in whats(history, call) {
            steps.push(Step {
                call: Some(id),
                invoked: call.invoked,
                over: call.latest(),
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
    steps.sort_by_key(|step| (step.invoked, Reverse(step.over)));
    steps
}

/// What a call did to the namespace, or saw of it.
fn whats<'a>(history: &'a History, call: &'a Call) -> Vec<What<'a>> {
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
        Some((_, Ok(answer))) => sights(history, call, answer),
        Some((_, Err(errno))) => refused_sight(&call.op, *errno).into_iter().collect(),
        None => Vec::new(),
    };
    sights.into_iter().map(What::Sight).collect()
}

/// Whether an error says that something was too large: the model has no limits.
const fn is_limit(errno: Errno) -> bool {
    use Errno::{NameTooLong, Range, TooBig, TooManyLinks};
    matches!(errno, NameTooLong | Range | TooBig | TooManyLinks)
}

fn sights<'a>(history: &History, call: &'a Call, answer: &'a Answer) -> Vec<Sight<'a>> {
    match (&call.op, answer) {
        (Op::Lookup { parent, name }, Answer::Attr(attr)) => vec![
            Sight::Entry(*parent, name, Some(attr.ino)),
            Sight::Attr(attr),
        ],
        (Op::GetAttr { .. }, Answer::Attr(attr)) => vec![Sight::Attr(attr)],
        (Op::ReadDir { directory }, Answer::Entries(entries))
            if !changes_meanwhile(history, call, *directory) =>
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

/// Whether the entries of a directory may have changed while a call was under way.
fn changes_meanwhile(history: &History, call: &Call, directory: Ino) -> bool {
    let concurrent = |other: &Call| other.invoked <= call.over() && call.invoked <= other.latest();
    let may_act = |other: &Call| !matches!(other.fate(), Fate::Refused(_));
    let mut others = history.calls().map(|(_, other)| other);
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
