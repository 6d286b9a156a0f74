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
mod options;

use std::collections::BTreeMap;

use lockstep_types::Ino;

use crate::history::Outcome;
use crate::random::Random;

use client_model::ClientModel;
pub use options::{Mix, Options};

pub use crate::op::{Mark, Op, Run, WriteOp, mark};

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
