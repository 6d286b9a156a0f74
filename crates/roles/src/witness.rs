//! The witness's record of a datastore, and the claims that change it.
//!
//! The witness compares and sets: a claim names the record that it expects. So of two nodes that claim at the same time,
//! the first wins, and the answer tells the second why it lost.

use lockstep_types::Generation;

use crate::record::Member;

/// The nodes that hold every acknowledged operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InSyncSet {
    /// The primary alone.
    PrimaryOnly,
    /// Both nodes: the secondary may take over.
    Both,
}

/// The witness's record of a datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WitnessRecord {
    /// Counts the changes of the record.
    pub change: u64,
    /// The generation.
    pub generation: Generation,
    /// The primary of the generation.
    pub primary: Member,
    /// The nodes that hold every acknowledged operation.
    pub in_sync: InSyncSet,
}

/// A request to replace the record, if it is the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The record to be replaced; `None` if the witness has none.
    pub expected: Option<WitnessRecord>,
    /// The new record.
    pub new: WitnessRecord,
}

impl Claim {
    /// Returns the record of the witness after the claim. The claim is granted if that is [`Claim::new`]; a claim that is
    /// repeated because its answer was lost is granted again.
    pub fn apply(&self, current: Option<WitnessRecord>) -> Option<WitnessRecord> {
        if current == self.expected {
            Some(self.new)
        } else {
            current
        }
    }
}
