//! A link that comes and goes under load: one long time alone replaces many pauses (rule P23).

use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstep_testbed::chance::Chance;
use lockstep_testbed::network::Fault;
use lockstep_testbed::{IMPATIENT, Settings};

use crate::load::{Load, PAUSED};

/// The link comes and goes.
const FLAPPING: Settings = Settings {
    flap_wait_max_ms: 4000,
    ..IMPATIENT
};
/// Losses of the connection.
const LOSSES: usize = 8;
/// The words by which the primary says that it waits.
const STEADY: &str = "once the connection has stood for";

/// The primary waits for a steady link.
fn is_steadying(status: &DatastoreStatus) -> bool {
    let reason = status.sync.reason.as_deref().unwrap_or_default();
    let is_connected = status.peer.as_ref().is_some_and(|peer| peer.connected);
    is_connected && status.sync.service == ServiceStatus::Alone && reason.contains(STEADY)
}

/// Loses the connection again and again, as soon as the nodes are in sync or the primary waits. Returns the number of
/// pauses.
pub fn lose_connections(chance: &mut Chance) -> usize {
    let mut load = Load::start(FLAPPING, chance);
    load.start_programs(chance);
    let before = load.pair.primary.times_logged(PAUSED);
    for _ in 0..LOSSES {
        load.pair.network.apply_fault(Fault::Cut);
        load.pair.await_state("out of sync");
        load.writers.await_progress();
        load.pair.network.heal();
        load.pair
            .await_status("in sync, or waits for a steady link", |status| {
                status.sync.in_sync || is_steadying(status)
            });
    }
    let pauses = load.pair.primary.times_logged(PAUSED) - before;
    load.check(chance);
    pauses
}
