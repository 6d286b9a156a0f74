//! The last word of the witness, and the permit to serve alone that follows from it; beside it, the promise of a secondary.
//!
//! A primary whose secondary may be complete acknowledges nothing alone without a *permit* (rule R1): the witness has
//! recorded that only the primary is in sync, or the secondary itself lacks operations by its own record.
//!
//! Invariant: a permit ends before the secondary may become complete, and before the witness is asked to let the secondary
//! take over.

mod takeover_promise;

use std::time::Duration;

use lockstep_roles::{PeerWitness, WitnessAuthority, WitnessError};
use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::Mutex;

use crate::report::WitnessStatus;
use takeover_promise::TakeoverPromise;

/// A moment in the life of a primary: the number of times that it has ended a permit, because the secondary may become
/// complete. A word of the secondary that it is not complete permits nothing after the next such moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordTime(u64);

/// Why the other node must not serve while the witness does not know of a promotion by force.
const UNRECORDED: &str =
    "the witness does not know that this node was promoted: keep the other node from serving";

/// Why no node takes over while the nodes ask different witnesses.
const OTHER: &str = "the other node asks another witness, so no node takes over by itself: write the same [datastore.witness] into \
                     the configuration of both nodes, and start them again";

/// Why no node takes over while only this node asks a witness.
const NONE: &str = "the other node asks no witness yet, so no node takes over by itself: write the same [datastore.witness] into its \
                    configuration, and start it again";

/// Why a primary with an older copy asks for nothing.
const OUTDATED: &str = "the store of this node is older than that of the other node, so this node does not serve alone";

/// See the head of this file.
pub(crate) struct WitnessState {
    has_witness: bool,
    /// The promise of this node not to take over.
    pub promise: TakeoverPromise,
    state: Mutex<WitnessKnowledge>,
}

#[derive(Default)]
struct WitnessKnowledge {
    /// The generation in which this primary may acknowledge alone.
    permit: Option<Generation>,
    /// Number of times that the permit was ended.
    ended: u64,
    /// The witness has answered the last call.
    answers: bool,
    /// Why the witness gave no answer, or why its answer decides nothing.
    trouble: Option<String>,
    /// The witness lets the secondary take over.
    protects: bool,
    peer: PeerWitness,
    /// The peer has told at the last exchange that its copy is complete, and newer than this one.
    is_outdated: bool,
}

impl WitnessKnowledge {
    /// Whether the word of the witness decides.
    fn is_trusted(&self) -> bool {
        self.peer == PeerWitness::Same && !self.is_outdated
    }
}

impl WitnessState {
    /// Nothing is known yet. `now`: the moment of the host's clock.
    pub fn new(has_witness: bool, now: Duration) -> Self {
        Self {
            has_witness,
            promise: TakeoverPromise::new(now),
            state: Mutex::default(),
        }
    }

    /// Whether a witness is configured.
    pub const fn has_witness(&self) -> bool {
        self.has_witness
    }

    /// Permits a primary to acknowledge alone in a generation.
    pub fn permit(&self, generation: Generation) {
        self.state.lock().permit = Some(generation);
    }

    /// The moment from which on the words of a role exchange are spoken.
    pub fn word_time(&self) -> WordTime {
        WordTime(self.state.lock().ended)
    }

    /// Permits the same by the word of the secondary, which was spoken after `spoken`. A word from before a sync permits
    /// nothing, however late the thread is that has heard it.
    pub fn permit_by_word(&self, generation: Generation, spoken: WordTime) {
        let mut state = self.state.lock();
        if state.ended == spoken.0 || is_active(Mutant::TrustOldWord) {
            state.permit = Some(generation);
        }
    }

    /// Ends the permit, and every word that has been spoken.
    pub fn revoke(&self) {
        let mut state = self.state.lock();
        state.permit = None;
        state.ended += 1;
    }

    /// Whether a primary may acknowledge alone in a generation.
    pub fn permits(&self, generation: Generation) -> bool {
        !self.has_witness
            || self.state.lock().permit == Some(generation)
            || is_active(Mutant::GoAloneUnasked)
    }

    /// Notes at a role exchange which witness the peer asks.
    pub fn note_peer(&self, peer: PeerWitness) {
        let mut state = self.state.lock();
        state.peer = peer;
        state.protects &= peer == PeerWitness::Same;
    }

    /// What an answer of the witness may decide.
    pub fn authority(&self) -> WitnessAuthority {
        let state = self.state.lock();
        match state.peer {
            _ if state.is_outdated => WitnessAuthority::None,
            PeerWitness::Other => WitnessAuthority::None,
            PeerWitness::None => WitnessAuthority::NoTakeover,
            PeerWitness::Same => WitnessAuthority::Full,
        }
    }

    /// Notes at a role exchange whether this node is a primary whose copy is older than the complete one of the peer (rule P17).
    pub fn note_outdated(&self, is_outdated: bool) {
        self.state.lock().is_outdated = is_outdated;
    }

    /// The sync has another name, of which the witness has not heard: the secondary is protected once it has.
    pub fn note_renamed(&self) {
        self.state.lock().protects = false;
    }

    /// Notes an answer of the witness. `protects`: the secondary may take over. `trouble`: why the answer decides nothing.
    /// Returns whether the last call had no answer.
    pub fn note_answer(&self, protects: bool, trouble: Option<&str>) -> bool {
        let mut state = self.state.lock();
        let was_silent = !state.answers && state.trouble.is_some();
        (state.answers, state.protects) = (true, protects && state.is_trusted());
        state.trouble = trouble.map(str::to_owned);
        was_silent
    }

    /// Notes that the witness gave no answer. A claim may have changed its record, or may change it later. Returns whether
    /// the last call had an answer, or failed for another reason.
    pub fn note_silence(&self, error: &WitnessError, is_claim: bool) -> bool {
        let mut state = self.state.lock();
        state.answers = false;
        state.protects &= !is_claim;
        let trouble = Some(error.to_string());
        let is_news = state.trouble != trouble;
        state.trouble = trouble;
        is_news
    }

    /// A session begins. Forgets what was true in an earlier one: that the secondary may take over.
    pub fn begin_session(&self) {
        self.state.lock().protects = false;
    }

    /// Whether the witness lets the secondary take over, as far as this node knows.
    pub fn protects(&self) -> bool {
        self.state.lock().protects
    }

    /// Whether the witness would let the secondary take over now, by its last answer.
    pub fn would_replace(&self) -> bool {
        let state = self.state.lock();
        self.has_witness && state.answers && state.protects
    }

    /// The status for operators; `None` without a witness. `unaware`: the witness does not know of a promotion by force.
    pub fn status(&self, unaware: bool) -> Option<WitnessStatus> {
        if !self.has_witness {
            return None;
        }
        let state = self.state.lock();
        let parts = [
            state.trouble.as_deref(),
            unaware.then_some(UNRECORDED),
            match state.peer {
                PeerWitness::Same => None,
                PeerWitness::Other => Some(OTHER),
                PeerWitness::None => Some(NONE),
            },
            state.is_outdated.then_some(OUTDATED),
        ];
        let trouble: Vec<&str> = parts.into_iter().flatten().collect();
        Some(WitnessStatus {
            address: String::new(),
            answers: state.answers && !unaware && state.is_trusted(),
            protects: state.protects,
            trouble: (!trouble.is_empty()).then(|| trouble.join("; ")),
            unaware,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_belongs_to_a_generation_and_ends() {
        let view = WitnessState::new(true, Duration::ZERO);
        let first = Generation::FIRST;
        assert!(!view.permits(first));
        view.permit(first);
        assert!(view.permits(first) && !view.permits(first.next()));
        view.revoke();
        assert!(!view.permits(first));
        assert!(WitnessState::new(false, Duration::ZERO).permits(first));
    }

    #[test]
    fn a_witness_protects_once_both_nodes_ask_it() {
        let view = WitnessState::new(true, Duration::ZERO);
        for peer in [PeerWitness::None, PeerWitness::Other] {
            assert!(!view.note_answer(true, None));
            assert!(view.protects());
            view.note_peer(peer);
            assert!(!view.protects());
            assert!(!view.note_answer(true, None));
            assert!(!view.protects() && view.status(false).unwrap().trouble.is_some());
            view.note_peer(PeerWitness::Same);
        }
    }

    #[test]
    fn a_word_permits_nothing_after_the_next_sync() {
        let view = WitnessState::new(true, Duration::ZERO);
        let first = Generation::FIRST;
        let before = view.word_time();
        view.permit_by_word(first, before);
        assert!(view.permits(first));
        view.revoke();
        view.permit_by_word(first, before);
        assert!(!view.permits(first), "the secondary may be complete by now");
        view.permit_by_word(first, view.word_time());
        assert!(view.permits(first));
    }

    #[test]
    fn a_claim_without_an_answer_protects_nobody() {
        let view = WitnessState::new(true, Duration::ZERO);
        let error = WitnessError::Unreachable {
            witness: "w".into(),
            cause: "silence".into(),
            cure: "start it".into(),
        };
        assert!(!view.note_answer(true, None));
        assert!(view.note_silence(&error, false));
        let status = view.status(false).unwrap();
        assert!(status.protects && !status.answers);
        assert!(!view.note_silence(&error, true), "no news");
        assert!(!view.protects());
        assert!(view.note_answer(false, None));
        assert!(view.status(false).unwrap().answers);
    }

    #[test]
    fn a_witness_that_does_not_know_of_a_promotion_gives_no_answer_that_counts() {
        let view = WitnessState::new(true, Duration::ZERO);
        assert!(!view.note_answer(false, None));
        assert!(view.status(false).unwrap().answers);
        let status = view.status(true).unwrap();
        assert!(status.unaware && !status.answers);
        assert!(status.trouble.unwrap().contains("keep the other node"));
    }
}
