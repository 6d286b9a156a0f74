//! The link to the peer: the last connection, and the back-off of a primary whose link comes and goes (rule P23).
//!
//! Each loss of a connection makes changes wait. Losses that follow each other form a *series*. The pauses of a series count
//! together, so that their sum has a limit. After the second loss, a primary that has left the sync takes the secondary back
//! only over a connection that has stood for a time. That time doubles with each further loss, up to a bound. A series ends
//! once the nodes have been in sync for [`CALM_FACTOR`] times the bound.

use super::ConnectionId;
use crate::state::{State, Trigger};

/// The wait after the second loss of a series, in milliseconds.
const WAIT_FIRST_MS: u64 = 1000;
/// The series ends after this many times the longest wait in sync.
const CALM_FACTOR: u64 = 5;

/// See the head of this file.
pub(super) struct LinkWatch {
    /// The last connection that stood.
    pub connection: ConnectionId,
    /// The last notice of the peer about its process.
    peer: PeerNotice,
    /// The longest wait, in milliseconds. Zero: this node does not back off.
    wait_max_ms: u64,
    /// Losses of the series.
    losses: u32,
    /// How long changes have waited in the series, in milliseconds, but for a pause that lasts.
    paused_ms: u64,
    /// The present pause, or the next one, belongs to the series.
    pause_counts: bool,
    in_sync_since_ms: Option<u64>,
    standing: Option<YoungLink>,
}

/// A notice of the peer about its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerNotice {
    /// The peer has greeted this node, or has never been connected.
    Runs,
    /// The peer has said over its last connection that it stops.
    Stops,
}

/// A connection that is to stand for a time before the secondary is taken back.
#[derive(Clone, Copy)]
struct YoungLink {
    since_ms: u64,
    /// The trigger that the connection brings then.
    trigger: Trigger,
}

impl LinkWatch {
    /// A link of which nothing is known.
    pub const fn new(wait_max_ms: u64) -> Self {
        Self {
            connection: ConnectionId(0),
            peer: PeerNotice::Runs,
            wait_max_ms,
            losses: 0,
            paused_ms: 0,
            pause_counts: true,
            in_sync_since_ms: None,
            standing: None,
        }
    }

    /// Sets another longest wait. A connection that stands already has to stand by the new one.
    pub const fn set_wait_max(&mut self, wait_max_ms: u64) {
        self.wait_max_ms = wait_max_ms;
    }

    /// A connection stands.
    pub const fn connected(&mut self, connection: ConnectionId) {
        self.connection = connection;
        self.peer = PeerNotice::Runs;
    }

    /// The peer says over the connection that it stops.
    pub const fn peer_stops(&mut self) {
        self.peer = PeerNotice::Stops;
    }

    /// Whether the peer has said over its last connection that it stops.
    pub fn has_peer_stopped(&self) -> bool {
        self.peer == PeerNotice::Stops
    }

    /// How long changes have waited in the series before the present pause, in milliseconds.
    pub const fn paused_ms(&self) -> u64 {
        self.paused_ms
    }

    /// Losses of the series.
    pub const fn losses(&self) -> u32 {
        self.losses
    }

    /// Follows a change of the state.
    pub fn follow(&mut self, before: State, trigger: Trigger, next: State, now_ms: u64) {
        self.standing = None;
        let makes_wait = matches!(
            before,
            State::Synced | State::ResyncTail | State::ResyncContent | State::EnteringSync
        );
        if trigger == Trigger::LinkLost && makes_wait {
            // A peer that says that it stops tells nothing of the link.
            self.pause_counts = !self.has_peer_stopped();
            if self.pause_counts {
                self.note_loss(now_ms);
            }
        }
        if next == State::Synced {
            self.in_sync_since_ms.get_or_insert(now_ms);
        } else {
            self.in_sync_since_ms = None;
        }
    }

    fn note_loss(&mut self, now_ms: u64) {
        let calm_ms = self.wait_max_ms.saturating_mul(CALM_FACTOR);
        let is_calm = |since: u64| now_ms.saturating_sub(since) >= calm_ms;
        if self.in_sync_since_ms.is_some_and(is_calm) {
            self.losses = 0;
            self.paused_ms = 0;
        }
        self.losses = self.losses.saturating_add(1);
    }

    /// A pause of changes has ended.
    pub const fn note_pause(&mut self, lasted_ms: u64) {
        if self.wait_max_ms > 0 && self.pause_counts {
            self.paused_ms = self.paused_ms.saturating_add(lasted_ms);
        }
    }

    /// How long a connection is to stand before the secondary is taken back, in milliseconds.
    fn wait_ms(&self) -> u64 {
        let Some(doublings) = self.losses.checked_sub(2) else {
            return 0;
        };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        WAIT_FIRST_MS.saturating_mul(factor).min(self.wait_max_ms)
    }

    /// A connection stands. Returns how long it is to stand before it brings its trigger, in milliseconds; `None` if it
    /// brings the trigger now.
    pub fn begin_standing(&mut self, trigger: Trigger, now_ms: u64) -> Option<u64> {
        let wait_ms = self.wait_ms();
        if wait_ms == 0 {
            return None;
        }
        self.standing = Some(YoungLink {
            since_ms: now_ms,
            trigger,
        });
        Some(wait_ms)
    }

    /// The peer has answered a sign of life: the connection stands at this moment. Returns its trigger, if it has stood for
    /// long enough.
    pub fn stood(&self, now_ms: u64) -> Option<Trigger> {
        let standing = self.standing?;
        let stood_ms = now_ms.saturating_sub(standing.since_ms);
        (stood_ms >= self.wait_ms()).then_some(standing.trigger)
    }
}
