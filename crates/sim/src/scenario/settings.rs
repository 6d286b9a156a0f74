//! The configuration of a schedule's datastore, and the time limits of a schedule.

use std::time::Duration;

use lockstep_driver::config::FlapWait;
use lockstep_types::settings::{Durability, OnPeerLoss, OnPowerLoss, TrashAge};

use crate::random::Random;

/// The nodes must be in sync within this time after the last fault.
pub const IN_SYNC_WITHIN: Duration = Duration::from_secs(60);
/// The time from the last fault until the clients end.
pub const WORK_AFTER_FAULTS: Duration = Duration::from_millis(500);
/// The answer limit of all schedules. Nothing delays an answer between nodes with working disks for
/// that long.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// The configuration of the datastore, the same on both nodes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The time at which an acknowledged operation is durable.
    pub durability: Durability,
    /// The reaction to a lost peer.
    pub on_peer_loss: OnPeerLoss,
    /// The behaviour of a primary that starts and cannot reach its peer.
    pub on_power_loss: OnPowerLoss,
    /// The time for which acknowledgements pause before that reaction.
    pub pause_limit: Duration,
    /// The silence after which a peer is treated as lost.
    pub peer_timeout: Duration,
    /// The time without an answer after which a peer that still sends frames is given up.
    pub answer_limit: Duration,
    /// With a witness: the time from the loss of the connection to the takeover.
    pub failover_after: Option<Duration>,
    /// The longest time for which a connection must stand after losses of earlier ones.
    pub flap_wait_max: FlapWait,
    /// How long what clients delete is kept.
    pub trash: TrashAge,
    /// The excess of the rate of each machine's clock, in thousandths.
    pub clock_excess: [i64; 2],
}

/// The largest excess of a clock, in thousandths. The driver allows for more between two clocks.
const CLOCK_EXCESS_MAX: u64 = 40;

/// The longest wait for a steady link is at most a second longer, in milliseconds.
const FLAP_WAIT_MAX_MS: u64 = 7000;

impl Settings {
    /// The settings of a scripted test, but for those that the test is about: no witness, no back-off, and clocks that run alike.
    pub const STEADY: Self = Self {
        durability: Durability::Posix,
        on_peer_loss: OnPeerLoss::Continue,
        on_power_loss: OnPowerLoss::Wait,
        pause_limit: Duration::from_secs(1),
        peer_timeout: Duration::from_millis(500),
        answer_limit: ANSWER_LIMIT,
        failover_after: None,
        flap_wait_max: FlapWait::OFF,
        trash: TrashAge::Off,
        clock_excess: [0; 2],
    };

    /// Adds a witness, and clocks that run at different rates.
    pub fn add_witness(&mut self, random: &mut Random) {
        let millis = 300 + random.below(1200);
        self.failover_after = Some(Duration::from_millis(millis));
        self.clock_excess = [(); 2].map(|()| {
            let drawn = random.below(2 * CLOCK_EXCESS_MAX + 1);
            i64::try_from(drawn).unwrap_or(0) - i64::try_from(CLOCK_EXCESS_MAX).unwrap_or(0)
        });
    }

    /// Lets a primary wait for a steady link.
    pub fn wait_for_steady_link(&mut self, random: &mut Random) {
        let longest = Duration::from_millis(1000 + random.below(FLAP_WAIT_MAX_MS));
        self.flap_wait_max = FlapWait::new(Some(longest));
    }

    /// Draws the settings of a schedule.
    pub fn random(random: &mut Random) -> Self {
        let longest = *random.pick(&[100, 3000]);
        Self {
            durability: if random.percent(25) {
                Durability::Always
            } else {
                Durability::Posix
            },
            on_peer_loss: if random.percent(25) {
                OnPeerLoss::Freeze
            } else {
                OnPeerLoss::Continue
            },
            on_power_loss: OnPowerLoss::Serve,
            pause_limit: Duration::from_millis(random.below(longest)),
            peer_timeout: Duration::from_millis(200 + random.below(1000)),
            answer_limit: ANSWER_LIMIT,
            failover_after: None,
            flap_wait_max: FlapWait::OFF,
            trash: TrashAge::Off,
            clock_excess: [0; 2],
        }
    }
}
