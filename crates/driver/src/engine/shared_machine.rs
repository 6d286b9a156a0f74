//! The role machine of a datastore, as every thread reaches it; beside it, the promise of a secondary, and the trouble with the
//! witness that `status` shows.
//!
//! Invariant: the lock of the machine is the last one that a thread takes, and is held for no disk and no network.

use std::sync::Arc;
use std::time::Duration;

use lockstep_roles::{
    PeerWitness, RoleEffect, RoleEvent, RoleFacts, RoleMachine, SessionEvent, SoloEnds,
    WitnessError,
};
use lockstep_types::Generation;
use parking_lot::Mutex;

use super::takeover_promise::TakeoverPromise;
use crate::host::signal::Signal;
use crate::report::WitnessStatus;

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
pub(crate) struct SharedMachine {
    has_witness: bool,
    /// The promise of this node not to take over.
    pub promise: TakeoverPromise,
    machine: Mutex<RoleMachine>,
    trouble: Mutex<WitnessTrouble>,
    /// Raised when the machine may have changed.
    changes: Arc<Signal>,
}

/// What keeps the witness from deciding.
#[derive(Default)]
struct WitnessTrouble {
    /// The last call had no answer.
    is_silent: bool,
    /// Why the witness gave no answer, or why its answer decides nothing.
    reason: Option<String>,
}

impl SharedMachine {
    /// The machine of a datastore that is being opened. `now`: the moment of the host's clock. Raises `changes` when the machine may
    /// have changed.
    pub fn new(has_witness: bool, now: Duration, changes: Arc<Signal>) -> Self {
        Self {
            has_witness,
            promise: TakeoverPromise::new(now),
            machine: Mutex::default(),
            trouble: Mutex::default(),
            changes,
        }
    }

    /// Whether a witness is configured.
    pub const fn has_witness(&self) -> bool {
        self.has_witness
    }

    /// See [`RoleMachine::handle`].
    pub fn handle(&self, facts: &RoleFacts, event: &RoleEvent) -> Vec<RoleEffect> {
        let mut machine = self.machine.lock();
        let before = machine.knowledge();
        let effects = machine.handle(facts, *event);
        // The thread that watches the other node goes on with a question of its own: no other thread waits for the steps of that.
        if !event.is_of_watch() || machine.knowledge() != before {
            drop(machine);
            self.changes.raise();
        }
        effects
    }

    /// See [`RoleMachine::note_session`].
    pub fn note_session(&self, event: SessionEvent) {
        self.machine.lock().note_session(event);
        self.changes.raise();
    }

    /// Whether a primary may acknowledge alone in a generation.
    pub fn may_serve_alone(&self, generation: Generation) -> bool {
        let machine = self.machine.lock();
        machine.may_serve_alone(self.has_witness, generation)
    }

    /// See [`RoleMachine::solo_ends`].
    pub fn solo_ends(&self) -> SoloEnds {
        self.machine.lock().solo_ends()
    }

    /// See [`RoleMachine::asks_incomplete_mark`].
    pub fn asks_incomplete_mark(&self, facts: &RoleFacts) -> bool {
        self.machine.lock().asks_incomplete_mark(facts)
    }

    /// Whether the witness has answered the last call, and lets the secondary take over.
    pub fn protects(&self) -> bool {
        let report = self.machine.lock().witness_report();
        report.answers && report.protects
    }

    /// Notes an answer of the witness. `trouble`: why the answer decides nothing. Returns whether the last call had no answer.
    pub fn note_answer(&self, trouble: Option<&str>) -> bool {
        let mut state = self.trouble.lock();
        state.reason = trouble.map(str::to_owned);
        std::mem::replace(&mut state.is_silent, false)
    }

    /// Notes that the witness gave no answer. Returns whether the last call had an answer, or failed for another reason.
    pub fn note_silence(&self, error: &WitnessError) -> bool {
        let mut state = self.trouble.lock();
        let reason = Some(error.to_string());
        let is_news = state.reason != reason;
        *state = WitnessTrouble {
            is_silent: true,
            reason,
        };
        is_news
    }

    /// The status for operators; `None` without a witness. `unaware`: the witness does not know of a promotion by force.
    pub fn status(&self, unaware: bool) -> Option<WitnessStatus> {
        if !self.has_witness {
            return None;
        }
        let view = self.machine.lock().witness_report();
        let state = self.trouble.lock();
        let parts = [
            state.reason.as_deref(),
            unaware.then_some(UNRECORDED),
            match view.peer {
                PeerWitness::Same => None,
                PeerWitness::Other => Some(OTHER),
                PeerWitness::None => Some(NONE),
            },
            view.is_outdated.then_some(OUTDATED),
        ];
        let trouble: Vec<&str> = parts.into_iter().flatten().collect();
        let is_trusted = view.peer == PeerWitness::Same && !view.is_outdated;
        Some(WitnessStatus {
            address: String::new(),
            answers: view.answers && !unaware && is_trusted,
            protects: view.protects,
            trouble: (!trouble.is_empty()).then(|| trouble.join("; ")),
            unaware,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_witness_is_news_once_and_answers_again_once() {
        let machine = SharedMachine::new(true, Duration::ZERO, Arc::default());
        let error = WitnessError::Unreachable {
            witness: "w".into(),
            cause: "silence".into(),
            cure: "start it".into(),
        };
        assert!(!machine.note_answer(None));
        assert!(machine.note_silence(&error) && !machine.note_silence(&error));
        let trouble = machine.status(false).unwrap().trouble.unwrap();
        assert!(trouble.contains("silence"), "{trouble}");
        assert!(machine.note_answer(Some("it is empty")));
        assert!(!machine.note_answer(None));
        assert_eq!(machine.status(false).unwrap().trouble, None);
    }

    #[test]
    fn a_promotion_that_the_witness_does_not_know_of_is_said() {
        let machine = SharedMachine::new(true, Duration::ZERO, Arc::default());
        let status = machine.status(true).unwrap();
        assert!(status.unaware && !status.answers);
        assert!(status.trouble.unwrap().contains("keep the other node"));
        assert!(
            SharedMachine::new(false, Duration::ZERO, Arc::default())
                .status(true)
                .is_none()
        );
    }
}
