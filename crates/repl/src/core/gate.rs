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
//!   it then, and it ends with `EBUSY`.

use std::collections::VecDeque;

use lockstep_types::mutants::{Mutant, is_active};

use super::event::OpKind;
use crate::lock::OpId;
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
pub(super) struct SnapshotGate {
    op: OpId,
    stage: Stage,
    /// When the operation loses the gate, unless it has its number, in the time of the events.
    ends_ms: u64,
    /// Operations that have their locks and wait until the gate opens, in order.
    parked: Vec<OpId>,
}

impl SnapshotGate {
    /// Whether the operation of the gate has its number.
    const fn is_numbered(&self) -> bool {
        matches!(self.stage, Stage::Numbered)
    }
}

/// The next step of the operation with the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateStep {
    /// It is to be prepared.
    Prepare(OpId),
    /// It loses the gate, and is over.
    End(OpId),
}

/// Operations that have their locks and may not begin yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HeldOps {
    /// Those that wait for the state to change, in order.
    pub for_state: VecDeque<OpId>,
    /// The gate, while it is closed.
    gate: Option<SnapshotGate>,
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

    /// Whether no operation has the gate.
    pub const fn is_gate_open(&self) -> bool {
        self.gate.is_none()
    }

    /// When the operation with the gate loses it, unless it gets its number before.
    pub fn gate_ends_ms(&self) -> Option<u64> {
        let gate = self.gate.as_ref()?;
        (!gate.is_numbered()).then_some(gate.ends_ms)
    }

    /// Closes the gate for an operation, which has its locks.
    pub fn close_gate(&mut self, op: OpId, ends_ms: u64) {
        self.gate = Some(SnapshotGate {
            op,
            stage: Stage::Waits,
            ends_ms,
            parked: Vec::new(),
        });
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

    /// The next step of the operation with the gate at `now_ms`, if one is due. `is_any_under_way` says whether an operation of a
    /// kind that counts, other than this one, has a number and is not over.
    pub fn next_step(
        &mut self,
        now_ms: u64,
        state: State,
        is_any_under_way: impl FnOnce(&dyn Fn(OpId, OpKind) -> bool) -> bool,
    ) -> Option<GateStep> {
        let gate = self.gate.as_mut()?;
        let op = gate.op;
        if gate.is_numbered() {
            return None;
        }
        if now_ms >= gate.ends_ms || !allows_snapshot(state) {
            return Some(GateStep::End(op));
        }
        let counts = |id: OpId, kind: OpKind| {
            let is_ignored = kind == OpKind::Write && is_active(Mutant::GateLetsWriteThrough);
            id != op && !is_ignored
        };
        if gate.stage != Stage::Waits || is_any_under_way(&counts) {
            return None;
        }
        gate.stage = Stage::Prepared;
        Some(GateStep::Prepare(op))
    }

    /// Notes that an operation has its number. Returns the operations that go on.
    pub fn note_numbered(&mut self, id: OpId) -> Vec<OpId> {
        if let Some(gate) = self.gate.as_mut().filter(|gate| gate.op == id) {
            gate.stage = Stage::Numbered;
            if is_active(Mutant::GateOpensEarly) {
                return self.open_gate_of(id);
            }
        }
        Vec::new()
    }

    /// Opens the gate if `id`, which is over, has it. Returns the operations that go on, in order.
    pub fn open_gate_of(&mut self, id: OpId) -> Vec<OpId> {
        let gate = self.gate.take_if(|gate| gate.op == id);
        gate.map_or_else(Vec::new, |gate| gate.parked)
    }
}

/// Whether a snapshot may be made in a state. In a resync the copy of the other node is of no moment.
const fn allows_snapshot(state: State) -> bool {
    matches!(state, State::Unmirrored | State::OutOfSync | State::Synced)
}
