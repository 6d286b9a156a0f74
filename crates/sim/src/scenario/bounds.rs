//! How much each node may have under way, and has: looked at on the way and at the end.
//!
//! A limit is that of the code, or what the clients of a schedule can bring about where that is less: each
//! waits for one answer at a time, so that little is ever under way.

use lockstep_driver::{Datastore, Load};
use lockstep_types::limits::WRITES_IN_FLIGHT_MAX;

use crate::check::bounded::{self, Bound, Counter, Sample};
use crate::check::{Violation, leaks};
use crate::history::{Call, CallId, History};
use crate::op::Op;
use crate::world::{BYTES_IN_FLIGHT_MAX, KEPT_BYTES_MAX, KEPT_FILE_BYTES_MAX, Side};

/// Of operations that nobody asked for, each may be under way once: a resync, and a comparison.
const INSPECTIONS: u64 = 2;
/// The operation of the client that asks the secondary, which waits for ever, and what it locks.
pub const MISDIRECTED_OPS: u64 = 1;
/// For one client the table may hold an entry of a write under way, of one that failed here while the
/// mark is being made, and the same of the process before.
const PAW_ENTRIES_OF_CLIENT: u64 = 4;

/// Judges what a node has under way. `is_idle`: nothing, for some time.
pub fn check(
    node: Side,
    datastore: &Datastore,
    clients: u32,
    history: &History,
    is_idle: bool,
) -> Result<(), Violation> {
    let load = datastore.load();
    leaks::check_locks(node, load.locks.stray)?;
    let samples = samples(node, &load, history.last(), is_idle);
    let limits = match node {
        Side::Primary => Limits::of_primary(clients, history),
        Side::Secondary => Limits::of_secondary(),
    };
    bounded::check(&samples, &limits.bounds(node, &load))
}

fn samples(node: Side, load: &Load, at: u64, is_idle: bool) -> Vec<Sample> {
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
        (Counter::Works, load.works as u64),
        (
            Counter::KeptBytes,
            load.kept.memory_bytes - load.kept.begun_bytes,
        ),
        (Counter::KeptOnDisk, load.kept.file_bytes),
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

/// How many bytes a call writes, if it is a write.
const fn written((_, call): (CallId, &Call)) -> Option<u64> {
    match &call.op {
        Op::Write(write) => Some(write.length),
        _ => None,
    }
}

/// The limits that can be under way on a node.
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
    /// Each client waits for one answer, and each inode may be about to be freed.
    fn of_primary(clients: u32, history: &History) -> Self {
        let clients = u64::from(clients);
        let made = history
            .calls()
            .filter(|(_, call)| call.op.makes().is_some());
        Self {
            paw: clients * PAW_ENTRIES_OF_CLIENT,
            saw: 0,
            writes: clients,
            operations: clients + made.count() as u64 + INSPECTIONS,
            write_bytes: history.calls().filter_map(written).max().unwrap_or(0),
        }
    }

    /// All that it has is asked for by the primary, which waits for no more writes than the table has
    /// slots. The others are done at once.
    const fn of_secondary() -> Self {
        Self {
            paw: 0,
            saw: WRITES_IN_FLIGHT_MAX as u64,
            writes: 0,
            operations: MISDIRECTED_OPS,
            write_bytes: 0,
        }
    }

    fn bounds(&self, node: Side, load: &Load) -> [Bound; 12] {
        let capacity = load.log.map_or(0, |log| log.capacity_bytes);
        let left = match node {
            Side::Primary => 0,
            Side::Secondary => MISDIRECTED_OPS,
        };
        let bound = |counter, limit, floor| Bound {
            counter,
            limit,
            floor,
        };
        [
            bound(Counter::PawEntries, self.paw, 0),
            bound(Counter::SawEntries, self.saw, 0),
            // A checkpoint comes when half of it is used, and leaves the segment that is written to.
            bound(Counter::LogBytes, capacity, capacity / 2),
            bound(Counter::WritesInFlight, self.writes, 0),
            // One operation alone may have more, and none has.
            bound(Counter::BytesInFlight, BYTES_IN_FLIGHT_MAX, 0),
            // The process before may have left as many in doubt.
            bound(Counter::PendingIntents, self.operations * 2, 0),
            bound(Counter::Operations, self.operations, left),
            bound(Counter::HeldOperations, self.operations, left),
            // Each is noted here before the core has it.
            bound(Counter::Works, self.operations, left),
            // The last one found room for some of its bytes: nobody comes in between that and the keeping here.
            bound(Counter::KeptBytes, KEPT_BYTES_MAX + self.write_bytes, 0),
            bound(Counter::KeptOnDisk, KEPT_FILE_BYTES_MAX, 0),
            bound(Counter::BegunBytes, self.writes * self.write_bytes, 0),
        ]
    }
}
