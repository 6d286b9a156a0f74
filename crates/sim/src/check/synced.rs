//! What had to be on stable storage by when.
//!
//! - A sync of a file that succeeded covers every change of its content that returned before the
//!   sync was invoked.
//! - A durable write covers its own bytes.
//! - Either covers every metadata operation that returned before it was invoked: the log is one, and
//!   is synced whole (docs/protocol.md, "Durability").
//! - Where everything answered is durable, each call covers itself.
//! - A store that is closed in order covers all that was answered before (P12).
//!
//! A sync covers nothing that a loss may have taken back before it was over. What else it may have
//! taken along is not counted: nobody was promised it.

use std::collections::BTreeMap;

use lockstep_types::Ino;

use crate::history::{Call, Fate, History, Loss};
use crate::workload::Op;

/// When syncs ran: invoked, returned.
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
    /// Collects them.
    pub fn of(history: &History) -> Self {
        let mut synced = Self {
            always: history.is_always(),
            losses: history.losses(),
            of_file: BTreeMap::new(),
            of_log: Vec::new(),
            closes: history.closes().into_iter().map(|at| (at, at)).collect(),
        };
        let done = history.calls().map(|(_, call)| call);
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

    /// When at the latest the change of the content of `ino` by `call` was durable; never if the
    /// call has not succeeded.
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

    /// When at the latest the effect of `call` on the namespace was durable; never if the call has
    /// not succeeded.
    pub fn namespace(&self, call: &Call) -> u64 {
        if call.fate() != Fate::Done {
            u64::MAX
        } else if self.always {
            call.over()
        } else {
            self.first_after(&self.of_log, call.over())
        }
    }

    /// The first end of a span, or a close, that began after `time`, if no loss came before that.
    fn first_after(&self, spans: &[(u64, u64)], time: u64) -> u64 {
        let losses = self.losses.iter().map(|loss| loss.at);
        let next_loss = losses.filter(|at| *at >= time).min().unwrap_or(u64::MAX);
        let spans = spans.iter().chain(&self.closes);
        let begun = spans.filter(|(invoked, _)| *invoked > time);
        let first = begun.map(|(_, returned)| *returned).min();
        first.filter(|end| *end <= next_loss).unwrap_or(u64::MAX)
    }
}
