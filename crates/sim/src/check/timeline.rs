//! What a history says of the content of each file: changes and looks, each as effects on ranges.
//!
//! Beyond its end a file holds nothing at all ([`Value::Absent`]): so the size needs no rule of its
//! own. A write or truncation that moves the end up makes zeros of nothing, and a reader who learns
//! the size learns where there is something and where there is not.

use std::collections::BTreeMap;

use lockstep_types::{AllocateMode, Attr, Ino, MetaRequest, NodeKind};

use super::dump::Dump;
use super::synced::Synced;
use crate::history::{Answer, Call, CallId, Fate, History};
use crate::workload::mark::runs;
use crate::workload::{Mark, Op, Run};

/// What is known of a byte at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// It is that of this write.
    Mark(Mark),
    /// It is zero.
    Zero,
    /// It is beyond the end of the file.
    Absent,
    /// It is zero or absent: a hole was punched here.
    Cleared,
    /// It is anything but absent: the file reaches beyond it.
    Present,
}

impl Value {
    /// Whether no byte can be both at one moment.
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

/// Something that changed content or looked at it.
#[derive(Debug)]
pub(super) struct Touch {
    /// The call; `None` for the final content.
    pub call: Option<CallId>,
    /// When it was invoked.
    pub invoked: u64,
    /// When its effect was over; never if it may come at any time, or not at all.
    pub over: u64,
    /// When at the latest it was durable. For looks: never.
    pub durable: u64,
    /// What it made of the bytes, or saw; disjoint ranges.
    pub pieces: Vec<Piece>,
}

impl Touch {
    /// What it made of the byte at `offset`, or saw there.
    pub fn at(&self, offset: u64) -> Option<Value> {
        let inside = |(from, to, _): &&Piece| *from <= offset && offset < *to;
        self.pieces.iter().find(inside).map(|piece| piece.2)
    }
}

/// All that touched one file, by the time of invocation.
#[derive(Debug, Default)]
pub(super) struct File {
    /// What changed it.
    pub changes: Vec<Touch>,
    /// What looked at it.
    pub looks: Vec<Touch>,
}

/// All that touched the content of files, by file.
pub(super) fn files(history: &History) -> BTreeMap<Ino, File> {
    let synced = Synced::of(history);
    let mut files: BTreeMap<Ino, File> = BTreeMap::new();
    for (id, call) in history.calls() {
        if let Some((ino, pieces)) = change(call) {
            files.entry(ino).or_default().changes.push(Touch {
                call: Some(id),
                invoked: call.invoked,
                over: call.over(),
                durable: synced.content(ino, call),
                pieces,
            });
        }
        if let Some((ino, pieces)) = look(call) {
            files.entry(ino).or_default().looks.push(Touch {
                call: Some(id),
                invoked: call.invoked,
                over: call.over(),
                durable: u64::MAX,
                pieces,
            });
        }
    }
    files
}

/// The look at a file that the final content is: after everything else.
pub(super) fn last_look(last: &Dump, ino: Ino) -> Option<Touch> {
    let bytes = last.bytes(ino)?;
    Some(Touch {
        call: None,
        invoked: u64::MAX - 1,
        over: u64::MAX - 1,
        durable: u64::MAX,
        pieces: seen(0, u64::MAX, bytes.len() as u64, &runs(ino, 0, bytes)),
    })
}

/// What a call makes, or may make, of the content of a file.
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

/// What a call saw of the content of a file.
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

/// What a reader saw who asked for `wanted` bytes at `offset` and got `length`.
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

/// What somebody saw who learned the size of a file.
fn sized(attr: &Attr) -> Vec<Piece> {
    vec![
        (0, attr.size, Value::Present),
        (attr.size, u64::MAX, Value::Absent),
    ]
}
