//! The core's two measures of time: the driver's monotonic milliseconds, and the beats of the peer.
//!
//! The age of a sent message is counted in beats and not in time. A delay on this node therefore never makes the peer
//! look late (rule P15).

/// See the head of this file.
pub(super) struct CoreClock {
    /// The time of the present event.
    now_ms: u64,
    paused_since_ms: Option<u64>,
    /// How many signs of life the peer has answered.
    beats: u64,
}

impl CoreClock {
    pub const fn new(now_ms: u64) -> Self {
        Self {
            now_ms,
            paused_since_ms: None,
            beats: 0,
        }
    }

    pub const fn set(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// The time of the present event.
    pub const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub const fn start_pause(&mut self) {
        self.paused_since_ms = Some(self.now_ms);
    }

    /// Ends the pause, if there is one. Returns how long it has lasted, in milliseconds.
    pub fn end_pause(&mut self) -> u64 {
        let since = self.paused_since_ms.take();
        since.map_or(0, |since| self.now_ms.saturating_sub(since))
    }

    /// The moment at which the pause, if there is one, has lasted for `limit_ms`.
    pub fn end_of_pause(&self, limit_ms: u64) -> Option<u64> {
        Some(self.paused_since_ms?.saturating_add(limit_ms))
    }

    pub const fn beat(&mut self) {
        self.beats += 1;
    }

    pub const fn beats(&self) -> u64 {
        self.beats
    }

    /// How many beats ago a message was sent.
    pub const fn age(&self, sent: u64) -> u64 {
        self.beats.saturating_sub(sent)
    }
}
