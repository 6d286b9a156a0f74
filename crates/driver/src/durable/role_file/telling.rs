//! The word of a secondary about its copy, and the mark that makes the copy complete.
//!
//! Invariant: a mark that is being made comes before the word that the copy is not complete, or not at all. So the word holds
//! until a connection that is greeted later.

use std::io;

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Generation, WriteVerifier};

use super::words::{Greeted, WordCount};
use super::{RoleFile, RoleState};

impl RoleFile {
    /// The state that this node tells the other one.
    pub fn told(&self) -> RoleState {
        let state = self.state();
        if state.record.is_primary() || state.record.complete {
            return state;
        }
        self.words.speak();
        // A mark that has not seen the word is over after this.
        let _settled = self.changes.lock();
        self.state()
    }

    /// The words so far.
    pub fn words(&self) -> WordCount {
        self.words.count()
    }

    /// Makes durable, on the secondary, that this copy is complete and has the memory of the primary's (rule P22). The whole store
    /// is on stable storage. Returns false, and changes nothing, if the role of this node has changed, or this node has said since the
    /// greeting that its copy is not complete.
    ///
    /// # Errors
    /// If the file cannot be changed.
    pub fn enter_sync(
        &self,
        generation: Generation,
        verifier: WriteVerifier,
        greeted: Greeted,
    ) -> io::Result<bool> {
        let is_last_word = || self.words() == greeted.words || is_active(Mutant::MarkAfterWord);
        let is_current =
            |state: &RoleState| state.record.generation == generation && is_last_word();
        self.change_if(|state| {
            let verifier = if is_active(Mutant::KeepOwnVerifier) {
                state.clients.verifier
            } else {
                verifier
            };
            is_current(&state).then(|| {
                let equal = state.marked(true).made_equal(Some(greeted.is_durable));
                equal.with_verifier(verifier)
            })
        })
    }
}
