//! The gate: a snapshot gets its place in the order of operations while no write and no metadata operation is under way (rule P35).
//!
//! From the moment at which the operation of a snapshot has its locks, later writes and metadata operations that have theirs are *parked*, in
//! order. When none of those that were numbered before is under way, the operation is prepared, numbered, sent and applied on both
//! nodes like other metadata operations. Its end opens the gate. Reads and syncs pass.
//!
//! Invariants:
//! - At most one operation has the gate: each operation on snapshots holds the lock of the list of snapshots.
//! - While an operation with the gate has a number, no other operation has one that is under way: each earlier one is over on both nodes, and no
//!   later one begins on either node.
//! - Before it has a number, an operation loses the gate after a limit, and when the state allows no snapshot: nothing was done for
//!   it then, and it ends with [`Errno::Busy`].

use std::collections::VecDeque;

use lockstep_types::Errno;
use lockstep_types::mutants::{Mutant, is_active};

use super::pending::NodePart;
use super::{Core, Effect, Effects, OpId, OpKind};
use crate::state::State;

/// How far the operation with the gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Earlier operations are under way.
    Waits,
    /// The driver is about to ask for the number.
    Prepared,
    /// The operation has its number.
    Numbered,
}

/// See the head of this file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gate {
    op: OpId,
    stage: Stage,
    /// When the operation loses the gate, unless it has its number, in the time of the events.
    ends_ms: u64,
    /// Operations that have their locks and wait until the gate opens, in order.
    parked: Vec<OpId>,
}

/// Operations that have their locks and may not begin yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HeldOps {
    /// Those that wait for the state to change, in order.
    pub for_state: VecDeque<OpId>,
    /// The gate, while it is closed.
    pub gate: Option<Gate>,
}

impl HeldOps {
    /// Number of operations that wait.
    pub fn len(&self) -> usize {
        let gate = self.gate.as_ref();
        let of_gate = gate.map_or(0, |gate| {
            gate.parked.len() + usize::from(!gate.is_numbered())
        });
        self.for_state.len() + of_gate
    }

    /// Takes out all operations that wait, also the one with the gate unless it has its number. The gate then has nothing parked.
    pub fn take_all(&mut self) -> Vec<OpId> {
        let mut all: Vec<OpId> = std::mem::take(&mut self.for_state).into();
        if let Some(gate) = &mut self.gate {
            all.append(&mut gate.parked);
            all.extend((!gate.is_numbered()).then_some(gate.op));
        }
        all
    }

    /// When the operation with the gate loses it, unless it gets its number before.
    pub fn gate_ends_ms(&self) -> Option<u64> {
        let gate = self.gate.as_ref()?;
        (!gate.is_numbered()).then_some(gate.ends_ms)
    }

    /// Parks an operation if the gate is closed for it. Returns whether it is parked.
    pub fn park(&mut self, id: OpId, kind: OpKind) -> bool {
        let Some(gate) = &mut self.gate else {
            return false;
        };
        let passes = match kind {
            OpKind::Read | OpKind::Sync => true,
            OpKind::Write => is_active(Mutant::GateLetsWriteThrough),
            OpKind::Meta | OpKind::Snapshot => id == gate.op,
        };
        if !passes {
            gate.parked.push(id);
        }
        !passes
    }
}

impl Gate {
    const fn is_numbered(&self) -> bool {
        matches!(self.stage, Stage::Numbered)
    }
}

/// Whether a snapshot may be made in a state. In a resync the copy of the other node is of no moment.
const fn allows_snapshot(state: State) -> bool {
    matches!(state, State::Unmirrored | State::OutOfSync | State::Synced)
}

impl Core {
    /// Closes the gate for the operation of a snapshot, which has its locks.
    pub(super) fn close_gate(&mut self, op: OpId) {
        let ends_ms = self
            .clock
            .now_ms()
            .saturating_add(self.config.gate_limit_ms);
        self.held.gate = Some(Gate {
            op,
            stage: Stage::Waits,
            ends_ms,
            parked: Vec::new(),
        });
    }

    /// Lets the operation with the gate go on when nothing else is under way, or ends it when it may not be made or has waited for too long.
    pub(super) fn advance_gate(&mut self, effects: &mut Effects) {
        // The next operation may have the gate then.
        while let Some(op) = self.overdue_at_gate() {
            if let Some(op) = self.ops.get_mut(op) {
                op.local = NodePart::Done(Err(Errno::Busy));
            }
            self.finish_if_over(op, effects);
        }
        if let Some(gate) = &self.held.gate
            && let (op, Stage::Waits) = (gate.op, gate.stage)
            && !self.is_any_under_way(op)
        {
            self.set_stage(Stage::Prepared);
            effects.push(Effect::Prepare { op });
        }
    }

    /// The operation that loses the gate now.
    fn overdue_at_gate(&self) -> Option<OpId> {
        let gate = self.held.gate.as_ref()?;
        let is_late = self.clock.now_ms() >= gate.ends_ms;
        let is_due = !gate.is_numbered() && (is_late || !allows_snapshot(self.state));
        is_due.then_some(gate.op)
    }

    /// Whether an operation but `op` has a number and is not over.
    fn is_any_under_way(&self, op: OpId) -> bool {
        let ignored = |kind| kind == OpKind::Write && is_active(Mutant::GateLetsWriteThrough);
        let counts = |id, kind| id != op && !ignored(kind);
        !self.metas.is_empty() || self.ops.has_numbered(counts)
    }

    /// The moment from which on [`Event::Tick`](super::Event::Tick) ends a pause, or the wait of a snapshot for its number.
    pub fn next_tick_ms(&self) -> Option<u64> {
        let all = [self.pause_ends().tick_ms, self.held.gate_ends_ms()];
        all.into_iter().flatten().min()
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Some(gate) = &mut self.held.gate {
            gate.stage = stage;
        }
    }

    /// Whether an operation that asks for a number gets none now: it is parked, or it has lost the gate and is over.
    pub(super) fn is_kept_from_number(&mut self, id: OpId) -> bool {
        match self.ops.get(id).map(|op| op.kind) {
            None => true,
            Some(kind) => self.held.park(id, kind),
        }
    }

    /// Notes that an operation has its number.
    pub(super) fn note_numbered(&mut self, id: OpId, effects: &mut Effects) {
        if self.held.gate.as_ref().is_some_and(|gate| gate.op == id) {
            self.set_stage(Stage::Numbered);
            if is_active(Mutant::GateOpensEarly) {
                self.open_gate_of(id, effects);
            }
        }
    }

    /// Opens the gate if `id`, which is over, has it.
    pub(super) fn open_gate_of(&mut self, id: OpId, effects: &mut Effects) {
        let gate = self.held.gate.take_if(|gate| gate.op == id);
        for parked in gate.into_iter().flat_map(|gate| gate.parked) {
            self.admit(parked, effects);
        }
    }
}
