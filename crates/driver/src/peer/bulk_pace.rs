//! Room on the way to the peer for the bulk of a resync (rule P19): names and small writes go over the same connection, and
//! wait behind what is on its way already.
//!
//! The bytes of requests under way follow the rate of the way, as those of large writes do ([`LinkPace`]).

use std::sync::Arc;

use lockstep_repl::core::{Dispatch, LinkPace};

use crate::host::{Gate, Host};

/// Most bytes under way. One request alone may have more.
const BYTES_MAX: u64 = 4 << 20;

/// The room that a request has taken.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    bytes: u64,
    dispatch: Dispatch,
}

/// See the head of this file.
pub(super) struct BulkPace {
    /// Bytes under way.
    bytes: u64,
    pace: LinkPace,
    /// Threads that wait for room.
    pub waiting: Vec<Arc<dyn Gate>>,
}

impl Default for BulkPace {
    /// Nothing is known of the way.
    fn default() -> Self {
        Self {
            bytes: 0,
            pace: LinkPace::new(BYTES_MAX, 0),
            waiting: Vec::new(),
        }
    }
}

impl BulkPace {
    /// Takes room for a request, if there is some. A request alone always finds room.
    pub fn take(&mut self, bytes: u64, now_ms: u64) -> Option<Taken> {
        let after = self.bytes.saturating_add(bytes);
        let is_in_pace = after <= self.pace.limit() && !self.pace.is_measuring();
        if self.bytes > 0 && !is_in_pace {
            return None;
        }
        let dispatch = Dispatch {
            at_ms: now_ms,
            was_alone: self.bytes == 0,
        };
        self.bytes = after;
        Some(Taken { bytes, dispatch })
    }

    /// A gate that opens when there may be room.
    pub fn gate(&mut self, host: &dyn Host) -> Arc<dyn Gate> {
        let gate = host.gate();
        self.waiting.push(Arc::clone(&gate));
        gate
    }

    /// Takes the room of a request back that is answered. Returns the gates to open.
    pub fn give_back(&mut self, taken: Taken, now_ms: u64) -> Vec<Arc<dyn Gate>> {
        self.bytes = self.bytes.saturating_sub(taken.bytes);
        // A resync waits for the oldest answer itself, and asks for no room meanwhile.
        let is_busy = self.bytes > 0 || !self.waiting.is_empty();
        self.pace
            .ended(taken.dispatch, taken.bytes, is_busy, now_ms);
        std::mem::take(&mut self.waiting)
    }

    /// Gives back the room of a request that was not sent. Returns the gates to open.
    pub fn cancel(&mut self, taken: Taken) -> Vec<Arc<dyn Gate>> {
        self.bytes = self.bytes.saturating_sub(taken.bytes);
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// Sends requests of 256 KiB over a way with this rate, as many as find room, and returns the bytes under way at the end.
    fn under_way_at(bytes_per_ms: u64) -> u64 {
        let (mut pace, mut now_ms) = (BulkPace::default(), 0);
        let mut moving = std::collections::VecDeque::new();
        for _ in 0..200 {
            while let Some(taken) = pace.take(256 * KIB, now_ms) {
                moving.push_back(taken);
            }
            now_ms += 256 * KIB / bytes_per_ms;
            let taken = moving.pop_front().unwrap();
            assert!(pace.give_back(taken, now_ms).is_empty());
        }
        pace.bytes
    }

    #[test]
    fn bytes_under_way_follow_the_rate_of_the_way() {
        // 10 Mbit/s, 100 Mbit/s, 10 Gbit/s.
        assert_eq!(under_way_at(1250), 0, "one request at a time");
        assert!(
            under_way_at(12_500) <= 1536 * KIB,
            "a tenth of a second, and a round trip"
        );
        assert_eq!(under_way_at(1_250_000), BYTES_MAX - 256 * KIB);
    }
}
