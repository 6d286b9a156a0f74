//! The changes that had to be on stable storage, with the time for each.
//!
//! - A successful sync of a file covers every change of its content that returned before the sync
//!   was invoked.
//! - A durable write covers its own bytes.
//! - Both cover every metadata operation that returned before they were invoked. The reason is that
//!   there is one log, and a sync covers all of it (docs/protocol/README.md, "Durability").
//! - Where every answered operation is durable, each call covers itself.
//! - A cleanly closed store covers every operation that was answered before the close (P12).
//!
//! A sync does not cover a change that a loss may have undone before the sync was over. A sync may
//! have made further data durable. The check ignores such data, because no client was promised its
//! durability.

use std::collections::BTreeMap;

use lockstep_types::Ino;

use crate::history::loss::Loss;
use crate::history::{Call, Fate, History};
use crate::op::Op;

/// The times of syncs: invoked, returned.
type Spans = Vec<(u64, u64)>;

/// All syncs of a history.
pub(super) struct Synced {
    always: bool,
    losses: Vec<Loss>,
    of_file: BTreeMap<Ino, Spans>,
    of_log: Spans,
    closes: Spans,
}

impl Synced {
    /// Collects the syncs of a history.
    pub fn of(history: &History) -> Self {
        let mut synced = Self {
            always: history.is_always(),
            losses: history.nodes().losses(),
            of_file: BTreeMap::new(),
            of_log: Vec::new(),
            closes: history
                .nodes()
                .closes()
                .into_iter()
                .map(|at| (at, at))
                .collect(),
        };
        let done = history.calls().iter().map(|(_, call)| call);
        for call in done.filter(|call| call.fate() == Fate::Done) {
            let span = (call.invoked, call.over());
            match &call.op {
                Op::Sync { ino } => {
                    synced.of_file.entry(*ino).or_default().push(span);
                    synced.of_log.push(span);
                }
                Op::Write(write) if write.durable => synced.of_log.push(span),
                _ => {}
            }
        }
        synced
    }

    /// Returns the latest time at which the change of the content of `ino` by `call` became
    /// durable. Returns `u64::MAX`, for never, if the call has not succeeded.
    pub fn content(&self, ino: Ino, call: &Call) -> u64 {
        let durable = matches!(&call.op, Op::Write(write) if write.durable);
        if call.fate() != Fate::Done {
            u64::MAX
        } else if self.always || durable {
            call.over()
        } else {
            let spans = self.of_file.get(&ino).map_or(&[][..], |spans| spans);
            self.first_after(spans, call.over())
        }
    }

    /// Returns the latest time at which the effect of `call` on the namespace became durable.
    /// Returns `u64::MAX`, for never, if the call has not succeeded.
    pub fn namespace(&self, call: &Call) -> u64 {
        if call.fate() != Fate::Done {
            u64::MAX
        } else if self.always {
            call.over()
        } else {
            self.first_after(&self.of_log, call.over())
        }
    }

    /// Returns the first end of a span, or of a close, that began after `time`, if no loss came
    /// before that end. Otherwise returns `u64::MAX`.
    fn first_after(&self, spans: &[(u64, u64)], time: u64) -> u64 {
        let losses = self.losses.iter().map(|loss| loss.at);
        let next_loss = losses.filter(|at| *at >= time).min().unwrap_or(u64::MAX);
        let spans = spans.iter().chain(&self.closes);
        let begun = spans.filter(|(invoked, _)| *invoked > time);
        let first = begun.map(|(_, returned)| *returned).min();
        first.filter(|end| *end <= next_loss).unwrap_or(u64::MAX)
    }
}
