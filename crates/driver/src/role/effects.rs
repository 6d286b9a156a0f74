//! Carries out the effects of the role machine.
//!
//! Invariant: the effects of one event are carried out in their order. The command of an operator and a role exchange end with
//! the first one that fails. After an answer of the witness, an effect that fails keeps no later one back.

use std::collections::VecDeque;

use lockstep_fs::StoreError;
use lockstep_repl::core::Event;
use lockstep_repl::state::{State, Trigger};
use lockstep_roles::{
    Answered, Asker, CommandRefusal, QuestionOver, RoleChange, RoleChangeKind, RoleConflict,
    RoleEffect, RoleEvent, WitnessCall,
};
use lockstep_types::mutants::{Mutant, is_active};
use thiserror::Error;

use super::current_role::CurrentRole;
use crate::client::Standing;
use crate::engine::Engine;
use crate::host::ThreadKind;
use crate::session::Session;

/// Why an effect was not carried out.
#[derive(Debug, Error)]
pub(super) enum EffectError {
    /// The nodes get no primary and secondary.
    #[error(transparent)]
    Conflict(#[from] RoleConflict),
    /// A command of an operator changes nothing.
    #[error("the command is refused: {0:?}")]
    Refused(CommandRefusal),
    /// A note is not on the disk.
    #[error(transparent)]
    NotNoted(#[from] StoreError),
    /// The role of this node could not be written, or has no session.
    #[error("the role of this node could not be written to its disk")]
    NotChanged,
}

impl CurrentRole {
    /// Carries out the effects of an event of one of the threads that ask the witness, and those that follow from the answers.
    /// Returns the end of a question. If the effects change the role, the caller holds `changing`.
    pub(super) fn carry_out_all(
        &self,
        asker: Asker,
        effects: Vec<RoleEffect>,
    ) -> Result<Option<QuestionOver>, EffectError> {
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            match effect {
                RoleEffect::Call(call) => queue.extend(self.call_witness(asker, &call)),
                RoleEffect::Settle(over) => return Ok(Some(over)),
                _ => {
                    let done = self.carry_out(effect);
                    match (done, asker) {
                        (Ok(()), Asker::Command) if matches!(effect, RoleEffect::Change(_)) => {
                            queue.extend(self.decide(&RoleEvent::Changed));
                        }
                        (Ok(()), _) => {}
                        (Err(error), Asker::Command) => return Err(error),
                        (Err(error), Asker::Watch) => {
                            tracing::error!(datastore = self.engine.name(), %error, "a step of the role is not carried out");
                        }
                    }
                }
            }
        }
        Ok(None)
    }

    /// Calls the witness, and returns what follows from the answer.
    fn call_witness(&self, asker: Asker, call: &WitnessCall) -> Vec<RoleEffect> {
        let engine = &self.engine;
        let answer = self.witness.get().map(|witness| witness.call(call));
        match answer {
            Some(Ok(now)) => self.decide(&RoleEvent::Answered(Answered {
                asker,
                now,
                names: engine.standing().names,
            })),
            Some(Err(error)) => {
                if engine.role.note_silence(&error) {
                    tracing::warn!(datastore = engine.name(), %error, "no answer of the witness");
                }
                self.decide(&RoleEvent::Silent(asker))
            }
            None => self.decide(&RoleEvent::Silent(asker)),
        }
    }

    /// Carries out an effect that calls no witness.
    pub(super) fn carry_out(&self, effect: RoleEffect) -> Result<(), EffectError> {
        let engine = &self.engine;
        let not_noted = StoreError::disk("note the promotion in", "role.json");
        match effect {
            RoleEffect::Change(change) => return self.change_role(change),
            RoleEffect::ServeAlone => self.serve_alone(),
            RoleEffect::MarkIncomplete => return self.mark_incomplete(),
            RoleEffect::SkipNumbersAndRenewVerifier => {
                return Ok(skip_numbers_and_renew_verifier(engine)?);
            }
            RoleEffect::EndTenure => engine.gate.end_tenure(&*engine.host),
            RoleEffect::DropCaches => self.tell_observers(|observer| observer.lease_expired()),
            RoleEffect::Report(conflict) => engine.notes.set_obstacle(&conflict.to_string()),
            RoleEffect::NoteUnrecorded(promotion) => {
                let datastore = engine.name();
                tracing::warn!(
                    datastore,
                    "the witness does not know of the forced promotion"
                );
                let noted = engine.role_file.note_unrecorded(promotion);
                return Ok(noted.map_err(not_noted)?);
            }
            RoleEffect::ClearUnrecorded => {
                let cleared = engine.role_file.clear_unrecorded();
                return Ok(cleared.map_err(not_noted)?);
            }
            RoleEffect::GiveWay => self.give_way(),
            RoleEffect::ServeReads => self.serve_reads(),
            RoleEffect::ServeNothing => self.set_standing(Standing::Following),
            RoleEffect::Conflict(conflict) => return Err(conflict.into()),
            RoleEffect::Refuse(refusal) => return Err(EffectError::Refused(refusal)),
            // Only the threads that ask the witness cause these two.
            RoleEffect::Call(_) | RoleEffect::Settle(_) => {}
        }
        Ok(())
    }

    fn change_role(&self, change: RoleChange) -> Result<(), EffectError> {
        if change.kind == RoleChangeKind::TakeOver {
            let (datastore, generation) = (self.engine.name(), change.to.generation.get());
            tracing::warn!(
                datastore,
                generation,
                "the witness has made this node the primary"
            );
        }
        if self.switch_role(change) {
            Ok(())
        } else {
            Err(EffectError::NotChanged)
        }
    }

    /// Lets the session of a primary that waits for its solo grant go on without the secondary.
    fn serve_alone(&self) {
        let Session::Primary(session) = self.session() else {
            return;
        };
        // A session that leaves sync looks at the grant itself.
        if session.replication.state() != State::LeavingSync {
            let granted = Event::Trigger(Trigger::OutOfSyncGranted);
            session
                .replication
                .handle_event(ThreadKind::MayWait, granted);
        }
    }

    /// Records that the copy of this secondary is not complete, and so lets the primary serve alone (rule R1).
    fn mark_incomplete(&self) -> Result<(), EffectError> {
        let generation = self.engine.role_file.state().record.generation;
        if let Err(error) = self.engine.role_file.mark(generation, false) {
            let datastore = self.engine.name();
            tracing::error!(datastore, %error, "cannot mark the sync state");
            return Err(EffectError::NotChanged);
        }
        let session = self.session();
        let replication = session.replication();
        if replication.state() == State::SecondaryDisconnected {
            let marked = Event::Trigger(Trigger::MarkedOutOfSync);
            replication.handle_event(ThreadKind::MayWait, marked);
        }
        Ok(())
    }

    /// Ends the connection of a node whose disk hangs (rule R12).
    fn give_way(&self) {
        let engine = &self.engine;
        tracing::error!(
            datastore = engine.name(),
            "this node stops serving because its disk hangs: the other node takes over by the answer of the witness"
        );
        if let Some(reason) = engine.stall_reason() {
            engine.notes.set_reason(&reason);
            self.session().replication().peer.close(&reason);
        }
    }
}

/// Makes durable, before this node answers, that the other node may have answered alone: what this node gives out, it has not
/// given out, and clients learn that unsynced operations may be lost (rules P13, P22). What programs have asked before does
/// not run any more (rule R13).
fn skip_numbers_and_renew_verifier(engine: &Engine) -> Result<(), StoreError> {
    engine.gate.end_tenure(&*engine.host);
    let drawn = engine.host.random_id();
    skip_numbers(engine, drawn)?;
    if is_active(Mutant::PromoteWithOldVerifier) {
        return Ok(());
    }
    let renewed = engine.role_file.renew_verifier(drawn);
    renewed.map_err(StoreError::disk("note the write verifier in", "role.json"))
}

/// Leaves out numbers of inodes that this copy has not heard of (rule P13): the other node may have given them out, or this
/// one on a disk that is lost. `drawn` are random bytes.
pub(super) fn skip_numbers(engine: &Engine, drawn: [u8; 16]) -> Result<(), StoreError> {
    let [low, high, ..] = drawn;
    let ranges = engine.config.current().ino_ranges();
    engine
        .store
        .skip_inos(ranges, u16::from_le_bytes([low, high]))
}
