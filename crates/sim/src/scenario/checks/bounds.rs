//! The bounds of each node's work in progress. The bounds are checked during a schedule and at its
//! end.
//!
//! A bound is the limit in the code, or the most that the clients of a schedule can cause, if that
//! is less. Each client waits for one answer at a time, so little work is in progress at any time.

use lockstep_driver::{Datastore, DatastoreUsage};
use lockstep_types::limits::WRITES_IN_FLIGHT_MAX;

use crate::check::bounded::{self, Bound, Counter, Sample};
use crate::check::{Violation, leaks};
use crate::history::{Call, CallId, History};
use crate::op::Op;
use crate::world::{BYTES_IN_FLIGHT_MAX, SPILL_FILE_BYTES_MAX, SPILL_MEMORY_BYTES_MAX, Side};

/// Number of operations without a client. Each of them is in progress at most once: a resync, and a
/// comparison.
const INSPECTIONS: u64 = 2;
/// Most PAW entries of one client: a write in progress, a write that failed on the primary while
/// the mark is being made, and the same of the previous process.
const PAW_ENTRIES_OF_CLIENT: u64 = 4;

/// Checks the work in progress of a node. `is_idle`: the node has had no work for some time.
pub fn check(
    node: Side,
    datastore: &Datastore,
    clients: u32,
    history: &History,
    is_idle: bool,
) -> Result<(), Violation> {
    let load = datastore.usage();
    leaks::check_locks(node, load.locks.stray)?;
    let samples = samples(node, &load, history.last(), is_idle);
    let limits = if datastore.state().is_secondary() {
        Limits::of_secondary()
    } else {
        Limits::of_primary(clients, history)
    };
    bounded::check(&samples, &limits.bounds(&load))
}

fn samples(node: Side, load: &DatastoreUsage, at: u64, is_idle: bool) -> Vec<Sample> {
    let used = load.log.map_or(0, |log| log.used_bytes);
    let counted = [
        (Counter::PawEntries, load.paw as u64),
        (Counter::SawEntries, load.saw as u64),
        (Counter::LogBytes, used),
        (Counter::WritesInFlight, load.in_flight.writes as u64),
        (Counter::BytesInFlight, load.in_flight.bytes),
        (Counter::PendingIntents, load.in_flight.metadata as u64),
        (Counter::Operations, load.operations as u64),
        (Counter::HeldOperations, load.held as u64),
        (Counter::PendingOps, load.pending as u64),
        (
            Counter::SpilledBytes,
            load.kept.memory_bytes - load.kept.begun_bytes,
        ),
        (Counter::SpilledToDisk, load.kept.file_bytes),
        (Counter::BegunBytes, load.kept.begun_bytes),
    ];
    let sample = |(counter, value)| Sample {
        at,
        node,
        counter,
        value,
        is_idle,
    };
    counted.into_iter().map(sample).collect()
}

/// Returns the number of bytes that a call writes, if the call is a write.
const fn written((_, call): (CallId, &Call)) -> Option<u64> {
    match &call.op {
        Op::Write(write) => Some(write.length),
        _ => None,
    }
}

/// The most work in progress on a node.
struct Limits {
    /// Entries of PAW.
    paw: u64,
    /// Entries of SAW.
    saw: u64,
    /// Mirrored writes.
    writes: u64,
    /// Operations.
    operations: u64,
    /// Bytes of one write.
    write_bytes: u64,
}

impl Limits {
    /// Each client waits for one answer, a request of a killed program may be under way beside them, and each inode may be about
    /// to be freed.
    fn of_primary(clients: u32, history: &History) -> Self {
        let clients = u64::from(clients) + history.calls().killed_count() as u64;
        let made = history
            .calls()
            .iter()
            .filter(|(_, call)| call.op.makes().is_some());
        Self {
            paw: clients * PAW_ENTRIES_OF_CLIENT,
            saw: 0,
            writes: clients,
            operations: clients + made.count() as u64 + INSPECTIONS,
            write_bytes: history
                .calls()
                .iter()
                .filter_map(written)
                .max()
                .unwrap_or(0),
        }
    }

    /// The primary requests all work of the secondary. The primary waits for at most as many writes
    /// as the table has slots. The secondary does all other work at once.
    const fn of_secondary() -> Self {
        Self {
            paw: 0,
            saw: WRITES_IN_FLIGHT_MAX as u64,
            writes: 0,
            operations: 0,
            write_bytes: 0,
        }
    }

    fn bounds(&self, load: &DatastoreUsage) -> [Bound; 12] {
        let capacity = load.log.map_or(0, |log| log.capacity_bytes);
        let bound = |counter, limit, floor| Bound {
            counter,
            limit,
            floor,
        };
        [
            bound(Counter::PawEntries, self.paw, 0),
            bound(Counter::SawEntries, self.saw, 0),
            // A checkpoint begins when half of the log is used. It leaves the segment that is in
            // use.
            bound(Counter::LogBytes, capacity, capacity / 2),
            bound(Counter::WritesInFlight, self.writes, 0),
            // A single operation may exceed the limit, but no operation is that large.
            bound(Counter::BytesInFlight, BYTES_IN_FLIGHT_MAX, 0),
            // The previous process may have left as many operations in doubt.
            bound(Counter::PendingIntents, self.operations * 2, 0),
            bound(Counter::Operations, self.operations, 0),
            bound(Counter::HeldOperations, self.operations, 0),
            // The driver notes each operation before the core does.
            bound(Counter::PendingOps, self.operations, 0),
            // The last write found room for some of its bytes. No other write comes between this
            // look and the keeping.
            bound(
                Counter::SpilledBytes,
                SPILL_MEMORY_BYTES_MAX + self.write_bytes,
                0,
            ),
            bound(Counter::SpilledToDisk, SPILL_FILE_BYTES_MAX, 0),
            bound(Counter::BegunBytes, self.writes * self.write_bytes, 0),
        ]
    }
}
