//! The commands of an operator that change the role of a running node: the planned failover, the demotion, and the promotion.
//!
//! The role machine decides. This file lets the operations of clients end before a planned failover, and answers the operator.

use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_roles::{Asker, CommandRefusal, RoleEvent};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::time::millis;

use super::effects::EffectError;
use super::keeper::RoleKeeper;
use super::switch::DRAIN_LIMIT;
use crate::client::Standing;
use crate::durable::role_file::RoleState;
use crate::engine::Engine;
use crate::report::{CommandFailure, RoleReport};

/// The longest wait of a planned change of the role for the new primary.
const SUCCESSOR_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait of a planned change of the role for the mark of the secondary.
const MARK_LIMIT: Duration = Duration::from_secs(5);
/// Why a planned change of the role is not complete.
const NO_SUCCESSOR: &str = "this node has given its role away and is the secondary now, but the other node has not taken the role \
                            yet: none of them serves";
const NO_SUCCESSOR_CURE: &str = "the other node serves as soon as the nodes meet: start it, and see `lockstep status`; if this node is lost, \
                                 run `lockstep promote` on the other one";

impl RoleKeeper {
    /// Gives the role of the primary to the other node, which is in sync. No operation of a client fails.
    ///
    /// # Errors
    /// If this node is not the primary, or the nodes are not in sync: then nothing has changed. Or if the other node does
    /// not take the role in time: then it takes the role when the nodes meet.
    pub fn hand_over(&self) -> Result<RoleReport, CommandFailure> {
        let begin;
        {
            let _changing = self.role.changing.acquire(&*self.engine.host);
            self.check_hand_over()?;
            begin = self.engine.host.now();
            self.role.set_standing(Standing::Retiring);
            if let Err(failure) = self.give_away() {
                self.role.set_standing(Standing::Serving);
                return Err(failure);
            }
        }
        if self.wait_for_successor() {
            Ok(report(&self.engine, begin))
        } else {
            Err(CommandFailure::new(NO_SUCCESSOR, NO_SUCCESSOR_CURE))
        }
    }

    /// Checks that this node could give its role away now, and does what can be done before: programs go on.
    ///
    /// # Errors
    /// If this node is not the primary, or the nodes are not in sync.
    pub fn prepare_hand_over(&self) -> Result<(), CommandFailure> {
        self.check_hand_over()?;
        self.role.tell_observers(|observer| observer.preparing());
        Ok(())
    }

    /// Waits a moment for the mark of the secondary.
    fn check_hand_over(&self) -> Result<(), CommandFailure> {
        check_sound(&self.engine)?;
        self.role.session().replication().wait_for_mark(MARK_LIMIT);
        let allowed = self.role.facts().may_hand_over();
        allowed.map_err(|refusal| self.refused(refusal))
    }

    /// Ends the operations of clients, and the session.
    fn give_away(&self) -> Result<(), CommandFailure> {
        self.drain()?;
        self.role.tell_observers(|observer| observer.retiring());
        self.drain()?;
        // The other node serves after the record only. Until then this node may serve on the requests of programs.
        self.role.set_standing(Standing::Undecided);
        self.drain()?;
        let done = self.command(&RoleEvent::HandOver);
        done.map_err(|error| self.failed(error))
    }

    fn drain(&self) -> Result<(), CommandFailure> {
        if is_active(Mutant::HandOverBusy)
            || self.role.gate().drain(&*self.engine.host, DRAIN_LIMIT)
        {
            return Ok(());
        }
        Err(CommandFailure::new(
            format!(
                "operations of programs were still under way after {} s",
                DRAIN_LIMIT.as_secs()
            ),
            "see the state in `lockstep status`, then try again",
        ))
    }

    /// Waits until the new primary is connected, so that the caller knows that the change is complete. Returns whether
    /// that was in time.
    fn wait_for_successor(&self) -> bool {
        let until = self.engine.host.now() + SUCCESSOR_LIMIT;
        self.engine.wait_until(Some(until), || {
            self.role.session().replication().peer.is_connected()
        })
    }

    /// Makes this primary, which serves alone or may not serve yet, the secondary: the other node has, or gets, the role.
    /// The next resync drops the operations that only this copy has, and sets them aside.
    ///
    /// # Errors
    /// If this node is no primary, or is in sync with its secondary. Then nothing has changed.
    pub fn demote(&self) -> Result<RoleReport, CommandFailure> {
        let begin = self.engine.host.now();
        let _changing = self.role.changing.acquire(&*self.engine.host);
        check_sound(&self.engine)?;
        let done = match self.command(&RoleEvent::Demote) {
            // The session that has ended may have marked its peer out of sync meanwhile.
            Err(EffectError::NotChanged) => self.command(&RoleEvent::Demote),
            done => done,
        };
        done.map_err(|error| self.failed(error))?;
        Ok(report(&self.engine, begin))
    }

    /// Makes this node the primary, without the other node. The operator vouches that the other node does not serve.
    /// `accepts_loss`: also if this copy may lack acknowledged operations, and also without the answer of the witness.
    ///
    /// # Errors
    /// If this node serves, is connected with a primary, or its copy may lack operations: then nothing has changed. Or if
    /// the witness has just made the other node the primary: then this node follows that one once they meet.
    pub fn promote(&self, accepts_loss: bool) -> Result<RoleReport, CommandFailure> {
        let engine = &self.engine;
        let begin = engine.host.now();
        let _changing = self.role.changing.acquire(&*engine.host);
        check_sound(engine)?;
        let was_secondary = !engine.role_file.state().record.is_primary();
        let as_of = engine.notes.contact.last().filter(|_| was_secondary);
        let done = self.command(&RoleEvent::Promote { accepts_loss });
        done.map_err(|error| self.failed(error))?;
        Ok(RoleReport {
            as_of,
            ..report(engine, begin)
        })
    }

    /// Has the role machine decide on a command, and carries the effects out. The caller holds `changing`.
    fn command(&self, event: &RoleEvent) -> Result<(), EffectError> {
        let effects = self.role.decide(event);
        self.role.carry_out_all(Asker::Command, effects).map(drop)
    }

    /// The answer to the operator of a command that has failed.
    fn failed(&self, error: EffectError) -> CommandFailure {
        match error {
            EffectError::Refused(refusal) => self.refused(refusal),
            error => CommandFailure::new(error.to_string(), "see the log of this node"),
        }
    }

    /// The answer to the operator of a command that is refused.
    fn refused(&self, refusal: CommandRefusal) -> CommandFailure {
        let state = self.role.session().replication().state();
        refusal_for(&self.engine, state, refusal)
    }
}

/// Checks that the disk of a node can take a change of the role.
fn check_sound(engine: &Engine) -> Result<(), CommandFailure> {
    match engine.failure_reason() {
        None if engine.is_stopping() => Err(CommandFailure::new(
            "this node is stopping",
            "start it again",
        )),
        None => match engine.stall_reason() {
            None => Ok(()),
            Some(reason) => Err(CommandFailure::new(
                reason,
                "see \"A disk hangs\" in docs/operations/disks.md",
            )),
        },
        Some(reason) => Err(CommandFailure::new(
            reason,
            "repair or replace the disk; use the other node's copy",
        )),
    }
}

/// The result of a command that began at `begin`.
fn report(engine: &Engine, begin: Duration) -> RoleReport {
    let RoleState {
        record, unrecorded, ..
    } = engine.role_file.state();
    RoleReport {
        role: record.role,
        generation: record.generation.get(),
        pause_ms: millis(engine.host.since(begin)),
        address: None,
        as_of: None,
        witness_unaware: unrecorded.is_some(),
        standby: Some(engine.config.current().policies.standby),
        unproved: None,
    }
}

/// Cause and cure of a refusal.
fn refusal_for(engine: &Engine, state: State, refusal: CommandRefusal) -> CommandFailure {
    let not_in_sync = format!(
        "the nodes are not in sync ({})",
        engine.notes.in_words(state)
    );
    let (cause, cure) = match refusal {
        CommandRefusal::NotPrimary => (
            "this node is not the primary of the datastore",
            "run the command on the primary; if that is dead, see `lockstep promote --help`",
        ),
        CommandRefusal::IsSecondary => (
            "this node is not the primary of the datastore",
            "nothing is to be done",
        ),
        CommandRefusal::IsPrimary => ("this node is the primary already", "nothing is to be done"),
        CommandRefusal::PrimaryIsConnected => (
            "the primary is connected, so it serves",
            "run `lockstep failover` on the primary",
        ),
        CommandRefusal::InSync => (
            "the nodes are in sync",
            "run `lockstep failover`, which loses nothing",
        ),
        CommandRefusal::NotInSync => (
            not_in_sync.as_str(),
            "wait until `lockstep status` says in sync, then try again",
        ),
        CommandRefusal::NotRecorded => (
            "the other node has not recorded yet that its copy is complete",
            "try again in a few seconds; if that does not help, see the log of the other node",
        ),
        CommandRefusal::WitnessDecides => (
            "a witness decides which node of this datastore is the primary",
            "start the witness and the other node; if both are lost for good, accept with --force-data-loss that \
             operations may be lost",
        ),
        CommandRefusal::MayLackOperations => (
            lacks(engine),
            "start the other node; or, if its copy is lost, accept the loss with --force-data-loss",
        ),
        CommandRefusal::Overtaken => (
            "the witness has made the other node the primary",
            "see `lockstep status` on the other node; if that node is lost, run this command again",
        ),
    };
    CommandFailure::new(cause, cure)
}

/// The operations that the copy of this node may lack.
fn lacks(engine: &Engine) -> &'static str {
    if engine.role_file.state().lineage.power.has_lost_power {
        "the machine of this node has lost power while its copy was complete: the copy has everything that programs had put on \
         stable storage (fsync), and may lack what they had not, of the last seconds before the loss; the other node may have gone \
         on since"
    } else {
        "the copy of this node may lack operations that programs were told are done"
    }
}
