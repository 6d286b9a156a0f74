//! The word of a secondary that its copy is not complete.
//!
//! A primary may serve alone by that word (rule R1). The copy of the secondary becomes complete by the mark of a resync, which
//! may wait for the disk while the connection of the resync is lost and the nodes meet again.
//!
//! Invariant: a mark that is being made comes before the word, or not at all. So the word holds until a connection that is
//! greeted later.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, WriteVerifier};

use super::{RoleFile, RoleState};

/// Counts the words.
#[derive(Default)]
pub(super) struct Words(AtomicU64);

/// A number of words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WordCount(u64);

impl RoleFile {
    /// The state that this node tells the other one.
    pub fn told(&self) -> RoleState {
        let state = self.state();
        if state.record.is_primary() || state.record.complete {
            return state;
        }
        self.words.0.fetch_add(1, Ordering::AcqRel);
        // A mark that has not seen the word is over after this.
        let _settled = self.changes.lock();
        self.state()
    }

    /// The words so far.
    pub fn words(&self) -> WordCount {
        WordCount(self.words.0.load(Ordering::Acquire))
    }

    /// Makes durable, on the secondary, that this copy is complete and has the memory of the primary's (rule P22). `words`: those
    /// so far when the primary's connection was greeted.
    pub fn enter_sync(
        &self,
        generation: Generation,
        verifier: WriteVerifier,
        words: WordCount,
    ) -> io::Result<()> {
        let is_current =
            |state: &RoleState| state.record.generation == generation && self.words() == words;
        let is_marked = self.change_if(|state| {
            let verifier = if is_active(Mutant::KeepOwnVerifier) {
                state.verifier
            } else {
                verifier
            };
            is_current(&state).then(|| RoleState {
                verifier,
                ..state.marked(true)
            })
        })?;
        if is_marked {
            Ok(())
        } else {
            Err(io::Error::other(
                "the role of this node has changed, or it has said since that its copy is not complete",
            ))
        }
    }
}
