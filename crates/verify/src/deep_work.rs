//! The means and the notes of a comparison that reads the disks.

use std::collections::BTreeSet;
use std::ops::Range;

use lockstep_repl::checked::SumsWord;
use lockstep_types::Ino;

use crate::deep_copy::DeepCopy;
use crate::own_sums::CheckedView;

/// The means of a comparison that reads the disks.
#[derive(Clone, Copy)]
pub(crate) struct DeepWork<'a> {
    pub copy: DeepCopy<'a>,
    /// The view through which the comparison reads.
    pub checked: &'a CheckedView<'a>,
    /// Whether wrong blocks and sums are repaired.
    pub repairs: bool,
}

/// The files and pieces that need a second look.
#[derive(Default)]
pub(crate) struct Suspects {
    /// Files that are compared by one hash.
    pub inodes: BTreeSet<Ino>,
    /// Files at which the comparison of different digests has looked again.
    pub done: BTreeSet<Ino>,
    /// Ranges of the long file of the moment.
    pub ranges: Vec<Range<u64>>,
}

impl DeepWork<'_> {
    /// Whether the word of a node's sums asks for a second look.
    pub fn is_suspicious(word: &SumsWord) -> bool {
        !word.misfits.is_empty() || !word.void.is_empty()
    }
}
