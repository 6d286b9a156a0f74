//! Room on the way to the peer (rule P19): a bound on the bytes of mirrored operations in flight.
//!
//! Invariant: no operation overtakes an operation that waits for room.

use std::collections::VecDeque;

use lockstep_types::mutants::{Mutant, is_active};

use super::pending::Op;
use crate::lock::OpId;

/// See the head of this file.
pub(super) struct SendRoom {
    /// Most bytes in flight. One operation alone may have more.
    bytes_max: u64,
    /// Bytes of the operations that were given room and are not over.
    bytes: u64,
    /// Operations that have their locks and wait for room, in order.
    pub queue: VecDeque<OpId>,
}

impl SendRoom {
    pub const fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes: 0,
            queue: VecDeque::new(),
        }
    }

    /// Bytes of the operations that were given room and are not over.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether `bytes` more fit. One operation alone always fits.
    pub fn fits(&self, bytes: u64) -> bool {
        self.bytes == 0
            || self.bytes.saturating_add(bytes) <= self.bytes_max
            || is_active(Mutant::SendWithoutRoom)
    }

    /// Gives an operation room, unless it has some. Returns whether the operation has room now.
    pub fn take(&mut self, op: &mut Op) -> bool {
        if op.has_room {
            return true;
        }
        if !self.fits(op.bytes) {
            return false;
        }
        op.has_room = true;
        self.bytes = self.bytes.saturating_add(op.bytes);
        true
    }

    /// Takes back the room of an operation that is over.
    pub const fn give_back(&mut self, op: &Op) {
        if op.has_room {
            self.bytes = self.bytes.saturating_sub(op.bytes);
        }
    }
}
