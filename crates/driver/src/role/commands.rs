//! The commands of an operator that change the role of a running node: the planned failover, and the demotion. The promotion
//! has a file of its own (`promotion.rs`).

use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_roles::{RoleChange, RoleChangeKind, RoleRecord};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;
use lockstep_types::time::millis;

use super::keeper::RoleKeeper;
use super::switch::DRAIN_LIMIT;
use crate::client::Standing;
use crate::durable::role_file::RoleState;
use crate::report::{CommandFailure, RoleReport};
use crate::session::Session;
use crate::session::build::SessionPart;

/// The longest wait of a planned change of the role for the word of the new primary.
const SUCCESSOR_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait of a planned change of the role for the mark of the secondary.
const MARK_LIMIT: Duration = Duration::from_secs(5);
/// Time between two looks for the word of the new primary.
const SUCCESSOR_POLL: Duration = Duration::from_millis(2);
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
            let _changing = self.changing.acquire(&*self.engine.host);
            check_hand_over(self)?;
            begin = self.engine.host.now();
            self.set_standing(Standing::Retiring);
            if let Err(failure) = self.give_away() {
                self.set_standing(Standing::Serving);
                return Err(failure);
            }
        }
        if wait_for_successor(self) {
            Ok(self.report(begin))
        } else {
            Err(CommandFailure::new(NO_SUCCESSOR, NO_SUCCESSOR_CURE))
        }
    }

    /// Checks that this node could give its role away now, and does what can be done before: programs go on.
    ///
    /// # Errors
    /// If this node is not the primary, or the nodes are not in sync.
    pub fn prepare_hand_over(&self) -> Result<(), CommandFailure> {
        check_hand_over(self)?;
        self.tell_observers(|observer| observer.preparing());
        Ok(())
    }

    /// Ends the operations of clients, and the session.
    fn give_away(&self) -> Result<(), CommandFailure> {
        self.drain()?;
        self.tell_observers(|observer| observer.retiring());
        self.drain()?;
        // The other node serves after the record only. Until then this node may serve on the requests of programs.
        self.set_standing(Standing::Undecided);
        self.drain()?;
        self.check_synced()?;
        let mine = self.engine.role_file.state().record;
        self.switch_by_command(RoleChange::grant(mine), SessionPart::Follow)
    }

    fn drain(&self) -> Result<(), CommandFailure> {
        if is_active(Mutant::HandOverBusy) || self.gate().drain(&*self.engine.host, DRAIN_LIMIT) {
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

    /// Checks that the copy of the secondary is complete, also by the secondary's own record. Without that record, a power
    /// loss of both nodes would leave two copies that are not complete, and the worse one would lead.
    fn check_synced(&self) -> Result<(), CommandFailure> {
        let session = self.session();
        let (state, is_connected) = session.replication().state_and_connected();
        let is_complete = session.replication().peer.is_complete();
        match session {
            Session::Undecided(_) | Session::Secondary(_) => Err(CommandFailure::new(
                "this node is not the primary of the datastore",
                "run the command on the primary; if that is dead, see `lockstep promote --help`",
            )),
            Session::Primary(_) if state == State::Synced && is_connected && is_complete => Ok(()),
            Session::Primary(_) if is_active(Mutant::HandOverUnsynced) => Ok(()),
            Session::Primary(_) if state == State::Synced && is_connected => {
                Err(CommandFailure::new(
                    "the other node has not recorded yet that its copy is complete",
                    "try again in a few seconds; if that does not help, see the log of the other node",
                ))
            }
            Session::Primary(_) => Err(CommandFailure::new(
                format!(
                    "the nodes are not in sync ({})",
                    self.engine.notes.in_words(state)
                ),
                "wait until `lockstep status` says in sync, then try again",
            )),
        }
    }

    /// Makes this primary, which serves alone or may not serve yet, the secondary: the other node has, or gets, the role.
    /// The next resync drops the operations that only this copy has, and sets them aside.
    ///
    /// # Errors
    /// If this node is no primary, or is in sync with its secondary. Then nothing has changed.
    pub fn demote(&self) -> Result<RoleReport, CommandFailure> {
        let begin = self.engine.host.now();
        let _changing = self.changing.acquire(&*self.engine.host);
        self.check_sound()?;
        let mine = self.engine.role_file.state().record;
        if !mine.is_primary() {
            return Err(CommandFailure::new(
                "this node is not the primary of the datastore",
                "nothing is to be done",
            ));
        }
        if self.session().replication().state().is_in_sync() {
            return Err(CommandFailure::new(
                "the nodes are in sync",
                "run `lockstep failover`, which loses nothing",
            ));
        }
        if self.switch_role(demotion(self, mine), SessionPart::Follow) {
            return Ok(self.report(begin));
        }
        // The session that has ended may have marked its peer out of sync meanwhile.
        let marked = self.engine.role_file.state().record;
        self.switch_by_command(demotion(self, marked), SessionPart::Follow)?;
        Ok(self.report(begin))
    }

    pub(super) fn check_sound(&self) -> Result<(), CommandFailure> {
        match self.engine.failure_reason() {
            None if self.engine.is_stopping() => Err(CommandFailure::new(
                "this node is stopping",
                "start it again",
            )),
            None => match self.engine.stall_reason() {
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

    pub(super) fn report(&self, begin: Duration) -> RoleReport {
        let RoleState {
            record, unrecorded, ..
        } = self.engine.role_file.state();
        RoleReport {
            role: record.role,
            generation: record.generation.get(),
            pause_ms: millis(self.engine.host.since(begin)),
            address: None,
            as_of: None,
            witness_unaware: unrecorded.is_some(),
            standby: Some(self.engine.config.policies.standby),
        }
    }
}

/// Waits a moment for the mark of the secondary.
fn check_hand_over(keeper: &RoleKeeper) -> Result<(), CommandFailure> {
    keeper.check_sound()?;
    keeper.session().replication().wait_for_mark(MARK_LIMIT);
    keeper.check_synced()
}

/// Waits until the new primary is connected, so that the caller knows that the change is complete. Returns whether
/// that was in time.
fn wait_for_successor(keeper: &RoleKeeper) -> bool {
    let start = keeper.engine.host.now();
    while keeper.engine.host.since(start) < SUCCESSOR_LIMIT && !keeper.engine.is_stopping() {
        if keeper.session().replication().peer.is_connected() {
            return true;
        }
        keeper.engine.host.sleep(SUCCESSOR_POLL);
    }
    false
}

/// The record of a demoted primary. A peer of an earlier generation takes the record for a grant, and leads its
/// generation: so that must be a new one.
fn demotion(keeper: &RoleKeeper, mine: RoleRecord) -> RoleChange {
    let is_new = keeper.latest_generation() < mine.generation;
    let generation = if is_new && !is_active(Mutant::DemoteInSameGeneration) {
        mine.generation.next()
    } else {
        mine.generation
    };
    let record = RoleRecord {
        generation,
        role: Role::Secondary,
        complete: is_active(Mutant::KeepDemotedComplete),
        peer_complete: false,
        ..mine
    };
    RoleChange::new(RoleChangeKind::Demote, mine, record)
}
