//! Room on the way to the peer (rule P19): a bound on the bytes of mirrored operations in flight, and the order in which
//! waiting operations get room.
//!
//! Operations that hold their locks at the same time commute (rule P4), and an operation is numbered only after it has
//! room. So a small operation may overtake large ones that wait. There are three lanes: names, small writes, and large
//! writes. Large writes leave a part of the room to the others, and follow the pace of the way ([`LinkPace`]).
//!
//! Invariants: no operation overtakes another one of its lane. Operations of other lanes overtake the first waiting
//! large write with a bounded number of bytes, so it does not wait forever.

use std::collections::VecDeque;

use lockstep_types::mutants::{Mutant, is_active};

use super::OpKind;
use super::link_pace::{Dispatch, LinkPace};
use super::pending::Op;
use crate::lock::OpId;

/// The part of the room, one of so many, that large writes leave free.
const PART_FOR_SMALL: u64 = 8;
/// A write with at most the room divided by this number is small: 64 KiB of 16 MiB.
const SMALL_WRITES_IN_ROOM: u64 = 256;

/// The lanes, by precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Metadata operations.
    Names,
    /// Small writes.
    Small,
    /// Large writes.
    Bulk,
}

impl Lane {
    /// All lanes, by precedence.
    pub const ALL: [Self; 3] = [Self::Names, Self::Small, Self::Bulk];
}

/// See the head of this file.
pub(super) struct SendRoom {
    /// Most bytes in flight. One operation alone may have more.
    bytes_max: u64,
    /// Bytes of the operations that were given room and are not over.
    bytes: u64,
    /// Operations that have their locks and wait for room, in order.
    names: VecDeque<OpId>,
    small: VecDeque<OpId>,
    bulk: VecDeque<OpId>,
    /// Bytes that were given room before the large write that waits now.
    overtook: u64,
    pace: LinkPace,
}

impl SendRoom {
    pub fn new(bytes_max: u64, now_ms: u64) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            names: VecDeque::new(),
            small: VecDeque::new(),
            bulk: VecDeque::new(),
            overtook: 0,
            pace: LinkPace::new(bytes_max, now_ms),
        }
    }

    /// Bytes of the operations that were given room and are not over.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of operations that wait.
    pub fn waiting(&self) -> usize {
        self.names.len() + self.small.len() + self.bulk.len()
    }

    /// A connection begins: nothing is known of its way.
    pub fn begin_connection(&mut self, now_ms: u64) {
        self.pace = LinkPace::new(self.bytes_max, now_ms);
    }

    /// The lane of an operation.
    pub const fn lane(&self, kind: OpKind, bytes: u64) -> Lane {
        match kind {
            OpKind::Write if bytes > self.bytes_max / SMALL_WRITES_IN_ROOM => Lane::Bulk,
            OpKind::Write => Lane::Small,
            _ => Lane::Names,
        }
    }

    /// Whether an operation that comes now finds room.
    pub fn is_open(&self, lane: Lane, bytes: u64) -> bool {
        self.queue(lane).is_empty() && self.fits(lane, bytes)
    }

    /// Whether the next operation of a lane fits. One operation alone always fits.
    fn fits(&self, lane: Lane, bytes: u64) -> bool {
        if self.bytes == 0 || is_active(Mutant::SendWithoutRoom) {
            return true;
        }
        let limit = self.pace.limit();
        let (most, is_in_pace) = match lane {
            Lane::Names => (self.bytes_max, true),
            Lane::Small => (self.bytes_max, self.bytes < limit.saturating_mul(2)),
            Lane::Bulk => (
                self.bytes_max - self.bytes_max / PART_FOR_SMALL,
                self.bytes < limit && !self.pace.is_measuring(),
            ),
        };
        let is_fair = lane == Lane::Bulk || self.overtook < self.bytes_max;
        is_in_pace && is_fair && self.bytes.saturating_add(bytes) <= most
    }

    /// Gives an operation room, unless it has some. Returns whether the operation has room now.
    pub fn take(&mut self, op: &mut Op, now_ms: u64) -> bool {
        if op.dispatch.is_some() {
            return true;
        }
        let lane = self.lane(op.kind, op.bytes);
        if !self.fits(lane, op.bytes) {
            return false;
        }
        op.dispatch = Some(Dispatch {
            at_ms: now_ms,
            was_alone: self.bytes == 0,
        });
        self.bytes = self.bytes.saturating_add(op.bytes);
        self.overtook = match lane {
            Lane::Bulk => 0,
            _ if self.bulk.is_empty() => 0,
            _ => self.overtook.saturating_add(op.bytes),
        };
        true
    }

    /// Takes back the room of an operation that is over.
    pub fn give_back(&mut self, op: &Op, now_ms: u64) {
        if let Some(dispatch) = op.dispatch {
            self.bytes = self.bytes.saturating_sub(op.bytes);
            let is_busy = self.waiting() > 0;
            self.pace.ended(dispatch, op.bytes, is_busy, now_ms);
        }
    }

    const fn queue(&self, lane: Lane) -> &VecDeque<OpId> {
        match lane {
            Lane::Names => &self.names,
            Lane::Small => &self.small,
            Lane::Bulk => &self.bulk,
        }
    }

    const fn queue_mut(&mut self, lane: Lane) -> &mut VecDeque<OpId> {
        match lane {
            Lane::Names => &mut self.names,
            Lane::Small => &mut self.small,
            Lane::Bulk => &mut self.bulk,
        }
    }

    /// Lets an operation wait.
    pub fn push(&mut self, lane: Lane, op: OpId) {
        self.queue_mut(lane).push_back(op);
    }

    /// The operation of a lane that has waited for longest.
    pub fn first(&self, lane: Lane) -> Option<OpId> {
        self.queue(lane).front().copied()
    }

    /// The first operation of a lane waits no more.
    pub fn pop(&mut self, lane: Lane) {
        self.queue_mut(lane).pop_front();
    }

    /// Removes all operations that wait.
    pub fn take_waiting(&mut self) -> Vec<OpId> {
        self.overtook = 0;
        let lanes = [&mut self.names, &mut self.small, &mut self.bulk];
        lanes.into_iter().flat_map(std::mem::take).collect()
    }
}
