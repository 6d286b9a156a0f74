//! A witness under test, and the nodes that ask it.

use std::time::Duration;

use lockstep_link::{Fingerprint, Identity};
use lockstep_roles::{InSyncSet, Member, Witness, WitnessRecord};
use lockstep_types::{DatastoreUuid, Generation, SyncId};

/// Longer than any call takes on a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Long enough for a call that must fail.
pub const SHORT: Duration = Duration::from_millis(300);

/// A witness under test.
pub trait Subject {
    /// The nodes: two that share datastores, a third that the witness knows, and one that it does not know.
    fn nodes(&self) -> &Nodes;

    /// The witness of a datastore, as `node` asks it, whose peer is `peer`.
    fn witness(&self, node: &Identity, peer: &Identity, uuid: DatastoreUuid) -> Box<dyn Witness>;

    /// Kills the witness without a warning.
    fn kill(&mut self);

    /// Starts the witness again, at the same address.
    fn start_again(&mut self);

    /// Number of kills in a test with many.
    fn kills(&self) -> usize;
}

/// Four nodes.
pub struct Nodes {
    /// Two nodes that share datastores.
    pub a: Identity,
    pub b: Identity,
    /// A node that the witness knows.
    pub third: Identity,
    /// A node that the witness does not know.
    pub unknown: Identity,
}

impl Nodes {
    pub fn new() -> Self {
        let node = |name| Identity::ephemeral(name).unwrap();
        Self {
            a: node("a"),
            b: node("b"),
            third: node("third"),
            unknown: node("unknown"),
        }
    }

    /// Fingerprints of the nodes that the witness knows.
    pub fn known(&self) -> [Fingerprint; 3] {
        [&self.a, &self.b, &self.third].map(Identity::fingerprint)
    }
}

/// A new datastore, and its witness as both nodes ask it.
pub struct Pair {
    pub uuid: DatastoreUuid,
    pub a: Box<dyn Witness>,
    pub b: Box<dyn Witness>,
}

impl Pair {
    pub fn new(subject: &dyn Subject) -> Self {
        let (uuid, nodes) = (DatastoreUuid::random(), subject.nodes());
        let pair = Self {
            uuid,
            a: subject.witness(&nodes.a, &nodes.b, uuid),
            b: subject.witness(&nodes.b, &nodes.a, uuid),
        };
        // The witness may still be starting.
        while pair
            .a
            .read(LIMIT)
            .is_err_and(|error| error.is_unreachable())
        {}
        pair
    }
}

/// A record.
pub fn record(change: u64, generation: u64, primary: Member, in_sync: InSyncSet) -> WitnessRecord {
    WitnessRecord {
        change,
        generation: Generation::new(generation).unwrap(),
        primary,
        in_sync,
        sync: Some(SyncId::next(None, [8; 16])).filter(|_| change % 2 == 1),
    }
}

/// The record that follows this one, with the same primary.
pub fn next(known: Option<WitnessRecord>) -> WitnessRecord {
    known.map_or_else(
        || record(0, 1, Member::First, InSyncSet::Both),
        |known| WitnessRecord {
            change: known.change + 1,
            sync: Some(SyncId::next(known.sync, [8; 16])),
            ..known
        },
    )
}
