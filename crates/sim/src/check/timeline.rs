//! The information of a history about the content of each file: changes and looks, each as effects
//! on ranges.
//!
//! Beyond its end a file has no bytes ([`Value::Absent`]). So the size needs no rule of its own. A
//! write or truncation that moves the end up replaces absent bytes with zeros. A reader that learns
//! the size learns which bytes are present and which are absent.

use std::collections::BTreeMap;

use lockstep_types::{AllocateMode, Attr, Ino, MetaRequest, NodeKind};

use super::dump::Dump;
use super::synced::Synced;
use crate::history::{Answer, Call, CallId, Fate, History};
use crate::op::mark::runs;
use crate::op::{Mark, Op, Run};

/// The known value of a byte at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// The byte comes from the write with this mark.
    Mark(Mark),
    /// The byte is zero.
    Zero,
    /// The byte is beyond the end of the file.
    Absent,
    /// The byte is zero or absent, because a hole was punched at its offset.
    Cleared,
    /// The byte is anything but absent, because the file reaches beyond it.
    Present,
}

impl Value {
    /// Returns whether no byte can have both values at one moment.
    pub fn excludes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Mark(one), Self::Mark(two)) => one != two,
            (Self::Mark(_), Self::Zero | Self::Absent | Self::Cleared)
            | (Self::Zero | Self::Absent | Self::Cleared, Self::Mark(_))
            | (Self::Zero | Self::Present, Self::Absent)
            | (Self::Absent, Self::Zero | Self::Present) => true,
            _ => false,
        }
    }
}

/// A value on a range of bytes: from, to, value.
pub(super) type Piece = (u64, u64, Value);

/// A call that changed content or looked at it.
#[derive(Debug)]
pub(super) struct Touch {
    /// The call. `None` for the final content.
    pub call: Option<CallId>,
    /// Time of the invocation.
    pub invoked: u64,
    /// Time when its effect was over. `u64::MAX`, for never, if the effect may happen at any time,
    /// or not at all.
    pub over: u64,
    /// Latest time at which the change became durable. For looks: never.
    pub durable: u64,
    /// The change has no effect after this time ([`History::deadline`]).
    pub deadline: u64,
    /// The values that the call gave to the bytes, or saw. The ranges are disjoint.
    pub pieces: Vec<Piece>,
}

impl Touch {
    /// Returns the value that the call gave to the byte at `offset`, or saw there.
    pub fn at(&self, offset: u64) -> Option<Value> {
        let inside = |(from, to, _): &&Piece| *from <= offset && offset < *to;
        self.pieces.iter().find(inside).map(|piece| piece.2)
    }
}

/// All touches of one file, by the time of invocation.
#[derive(Debug, Default)]
pub(super) struct File {
    /// The changes of the file.
    pub changes: Vec<Touch>,
    /// The looks at the file.
    pub looks: Vec<Touch>,
}

/// Returns all touches of the content of files, by file.
pub(super) fn files(history: &History) -> BTreeMap<Ino, File> {
    let synced = Synced::of(history);
    let mut files: BTreeMap<Ino, File> = BTreeMap::new();
    for (id, call) in history.calls().iter() {
        if let Some((ino, pieces)) = change(call) {
            files.entry(ino).or_default().changes.push(Touch {
                call: Some(id),
                invoked: call.invoked,
                over: call.over(),
                durable: synced.content(ino, call),
                deadline: history.deadline(id),
                pieces,
            });
        }
        if let Some((ino, pieces)) = look(call) {
            files.entry(ino).or_default().looks.push(Touch {
                call: Some(id),
                invoked: call.invoked,
                over: call.over(),
                durable: u64::MAX,
                deadline: u64::MAX,
                pieces,
            });
        }
    }
    files
}

/// Returns the final content of a file as a look, after everything else.
pub(super) fn last_look(last: &Dump, ino: Ino) -> Option<Touch> {
    let bytes = last.bytes(ino)?;
    Some(Touch {
        call: None,
        invoked: u64::MAX - 1,
        over: u64::MAX - 1,
        durable: u64::MAX,
        deadline: u64::MAX,
        pieces: seen(0, u64::MAX, bytes.len() as u64, &runs(ino, 0, bytes)),
    })
}

/// Returns the values that a call gives, or may give, to the content of a file.
fn change(call: &Call) -> Option<(Ino, Vec<Piece>)> {
    if matches!(call.fate(), Fate::Refused(_)) {
        return None;
    }
    match &call.op {
        Op::Write(write) => {
            let mark = Value::Mark(write.mark);
            let below = (0, write.offset, Value::Present);
            Some((write.ino, vec![(write.offset, write.end(), mark), below]))
        }
        Op::Change(MetaRequest::Truncate { ino, size, .. }) => {
            let beyond = (*size, u64::MAX, Value::Absent);
            Some((*ino, vec![beyond, (0, *size, Value::Present)]))
        }
        Op::Change(MetaRequest::Allocate {
            ino,
            offset,
            length,
            mode,
        }) => Some((*ino, allocated(*offset, offset + length, *mode))),
        _ => None,
    }
}

fn allocated(from: u64, to: u64, mode: AllocateMode) -> Vec<Piece> {
    match mode {
        AllocateMode::Allocate => vec![(0, to, Value::Present)],
        AllocateMode::AllocateKeepSize => Vec::new(),
        AllocateMode::PunchHole | AllocateMode::ZeroRangeKeepSize => {
            vec![(from, to, Value::Cleared)]
        }
        AllocateMode::ZeroRange => vec![(from, to, Value::Zero), (0, from, Value::Present)],
    }
}

/// Returns the values that a call saw in the content of a file.
fn look(call: &Call) -> Option<(Ino, Vec<Piece>)> {
    match (call.answer()?, &call.op) {
        (
            Answer::Data { length, runs },
            Op::Read {
                ino,
                offset,
                length: wanted,
            },
        ) => Some((*ino, seen(*offset, *wanted, *length, runs))),
        (Answer::Attr(attr), op) if attr.kind == NodeKind::File && op.makes().is_none() => {
            Some((attr.ino, sized(attr)))
        }
        _ => None,
    }
}

/// Returns the values that a reader saw when it requested `wanted` bytes at `offset` and received
/// `length`.
fn seen(offset: u64, wanted: u64, length: u64, runs: &[Run]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = runs
        .iter()
        .map(|run| {
            let value = run.mark.map_or(Value::Zero, Value::Mark);
            (run.from, run.to, value)
        })
        .collect();
    if length > 0 && offset > 0 {
        pieces.push((0, offset, Value::Present));
    }
    if length < wanted {
        pieces.push((offset + length, u64::MAX, Value::Absent));
    }
    pieces
}

/// Returns the values that a call saw when it learned the size of a file.
fn sized(attr: &Attr) -> Vec<Piece> {
    vec![
        (0, attr.size, Value::Present),
        (attr.size, u64::MAX, Value::Absent),
    ]
}
