//! The requests of the clients: random operations of several clients at once.
//!
//! Each client has its own directory. In this directory, each of its requests has one possible
//! outcome. All clients share one more directory, where their operations conflict: overlapping
//! writes, a rename against an unlink, two creations of one name. A request depends on the random
//! source and on the answers that the client has received. A request never depends on a clock or on
//! the real state of the nodes, because operations that fail are wanted too.
//!
//! Invariants: the same seed and the same answers give the same operations. No two writes to one
//! file have the same mark.

mod choose;
mod client_model;

use std::collections::BTreeMap;

use lockstep_types::Ino;

use crate::history::Outcome;
use crate::random::Random;

use client_model::ClientModel;

pub use crate::op::{Mark, Op, Run, WriteOp, mark};

/// The behavior of the clients of a world.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of clients. Each client has at most one operation under way at a time. At least one.
    pub clients: u32,
    /// Number of names that a client uses in each directory of its own. At least one.
    pub own_names: u64,
    /// Number of names that all clients use in the shared directory. At least one.
    pub shared_names: u64,
    /// Share of operations in the shared directory, in percent.
    pub shared_percent: u64,
    /// Largest file, in bytes. At least one block.
    pub file_bytes_max: u64,
    /// Largest write, in bytes. At least one.
    pub write_bytes_max: u64,
    /// Share of writes that are durable, in percent.
    pub durable_percent: u64,
    /// Maximum number of operations that each client requests.
    pub operations_max: u64,
    /// Frequency of each kind of operation.
    pub mix: Mix,
}

/// Frequency of each kind of operation, as shares of the sum.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// `write`.
    pub write: u64,
    /// `read`.
    pub read: u64,
    /// `sync`.
    pub sync: u64,
    /// Truncate and allocate, punch, zero.
    pub space: u64,
    /// Create, mknod, symlink, mkdir.
    pub make: u64,
    /// Link: another name for a file.
    pub link: u64,
    /// Unlink and rmdir.
    pub remove: u64,
    /// Rename in all its modes.
    pub rename: u64,
    /// Mode, owner, times.
    pub attributes: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Lookup, getattr, readdir, getxattr, readlink.
    pub look: u64,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            write: 24,
            read: 20,
            sync: 4,
            space: 6,
            make: 12,
            link: 4,
            remove: 6,
            rename: 8,
            attributes: 5,
            xattrs: 5,
            look: 12,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clients: 4,
            own_names: 6,
            shared_names: 4,
            shared_percent: 40,
            file_bytes_max: 64 << 10,
            write_bytes_max: 16 << 10,
            durable_percent: 10,
            operations_max: u64::MAX,
            mix: Mix::default(),
        }
    }
}

/// The source of the operations of the clients.
pub trait Source: Send {
    /// Returns the next operation of `client`. Returns `None` if the client has requested all its
    /// operations. `spare` is an inode number that the datastore gave for a new inode and that no
    /// operation has used. The number is used up if the operation [makes](Op::makes) an inode.
    fn next(&mut self, client: u32, spare: Ino) -> Option<Op>;

    /// Reports the outcome of an operation of `client`. An operation that never returned is not
    /// reported, because its client does not know the outcome either.
    fn observe(&mut self, client: u32, op: &Op, outcome: &Outcome);
}

/// A source that makes the operations of all clients at random.
#[derive(Debug)]
pub struct Generator {
    options: Options,
    random: Random,
    clients: BTreeMap<u32, ClientModel>,
    /// Number of operations that each client has requested.
    requested: BTreeMap<u32, u64>,
    /// The last mark given to a write of each file.
    marks: BTreeMap<Ino, u8>,
}

impl Generator {
    /// Returns a generator for the clients `0..options.clients`.
    pub const fn new(options: Options, random: Random) -> Self {
        Self {
            options,
            random,
            clients: BTreeMap::new(),
            requested: BTreeMap::new(),
            marks: BTreeMap::new(),
        }
    }
}

impl Source for Generator {
    fn next(&mut self, client: u32, spare: Ino) -> Option<Op> {
        let requested = self.requested.entry(client).or_default();
        if *requested >= self.options.operations_max {
            return None;
        }
        *requested += 1;
        let choice = choose::RequestChoice {
            options: &self.options,
            random: &mut self.random,
            model: self.clients.entry(client).or_default(),
            marks: &mut self.marks,
            client,
            spare,
        };
        Some(choice.make())
    }

    fn observe(&mut self, client: u32, op: &Op, outcome: &Outcome) {
        self.clients.entry(client).or_default().learn(op, outcome);
    }
}
