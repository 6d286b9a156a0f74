//! A thread that stands still while all other threads of its node go on: the system gives it no processor, or it waits for
//! memory.

use std::time::Duration;

use lockstep_types::settings::Role;

use crate::random::Random;
use crate::world::ThreadRole;

/// The longest time, in milliseconds. It is longer than `failover_after` of any schedule, and shorter than the limit of an
/// answer between the nodes.
const HELD_MAX_MS: u64 = 2_000;

/// A thread that stands still.
#[derive(Clone, Copy, Debug)]
pub struct HeldThread {
    /// The node.
    pub role: Role,
    /// The kind of the thread; `None`: any thread of the node.
    pub thread: Option<ThreadRole>,
    /// The time for which the thread stands still.
    pub time: Duration,
}

impl HeldThread {
    /// Draws a time for which the thread of the secondary stands still that asks the witness.
    pub fn that_asks(random: &mut Random) -> Self {
        Self {
            role: Role::Secondary,
            thread: Some(ThreadRole::Asking),
            ..Self::random(random)
        }
    }

    /// Draws a thread. The one that asks the witness decides most, so it is drawn most.
    pub fn random(random: &mut Random) -> Self {
        Self {
            role: *random.pick(&[Role::Primary, Role::Secondary]),
            thread: *random.pick(&[
                Some(ThreadRole::Asking),
                Some(ThreadRole::Asking),
                Some(ThreadRole::Reading),
                Some(ThreadRole::Courier),
                None,
            ]),
            time: Duration::from_millis(random.below(HELD_MAX_MS)),
        }
    }
}
