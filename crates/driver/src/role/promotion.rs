//! The promotion of a node by an operator, who vouches that the other node does not serve.
//!
//! A node with a witness is promoted by force only. It tells the witness, so that the other node cannot take over by an
//! earlier record of the witness: first it records that it is a candidate, then it claims its generation, and then it leads.
//! A node that stops between these steps is a candidate like any other (rule R4). If the witness gives no answer, the node
//! leads, and keeps in its role file that the witness must still know (`forced_claim.rs`), over a restart, too. The operator keeps
//! the other node from serving until the witness knows.

use lockstep_fs::StoreError;
use lockstep_roles::{RoleChange, RoleChangeKind, RoleRecord, UnrecordedPromotion};
use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;

use super::forced_claim::{self, ForcedClaim};
use super::keeper::RoleKeeper;
use super::witness_loop;
use crate::engine::Engine;
use crate::report::{CommandFailure, RoleReport};
use crate::session::Session;
use crate::session::build::SessionPart;

/// Distance of the generation of a forced promotion from the latest generation that this node knows. Without this node,
/// the other one may have gone two generations further: by a grant that this node has not read, and by a takeover after it.
const FORCED_GENERATIONS: u64 = 3;

impl RoleKeeper {
    /// Makes this node the primary, without the other node. The operator vouches that the other node does not serve.
    /// `accepts_loss`: also if this copy may lack acknowledged operations, and also without the word of the witness.
    ///
    /// # Errors
    /// If this node serves, is connected with a primary, or its copy may lack operations: then nothing has changed. Or if
    /// the witness has just made the other node the primary: then this node follows that one once they meet.
    pub fn promote(&self, accepts_loss: bool) -> Result<RoleReport, CommandFailure> {
        let begin = self.engine.host.now();
        let _changing = self.changing.acquire(&*self.engine.host);
        self.check_sound()?;
        let mine = self.engine.role_file.state().record;
        let was_secondary = !mine.is_primary();
        let as_of = self.engine.notes.contact.last().filter(|_| was_secondary);
        if accepts_loss && witness_loop::waits_for_word(self) {
            tell_witness(self, mine.generation, mine.generation)?;
            // The other node may have taken over meanwhile.
            begin_anew(&self.engine).map_err(|error| not_begun(&error))?;
            witness_loop::go_alone(self, mine);
            return Ok(self.report(begin));
        }
        check_promotion(self, mine, accepts_loss)?;
        begin_anew(&self.engine).map_err(|error| not_begun(&error))?;
        if self.engine.witness.has_witness() {
            lead_by_force(self, mine)?;
        } else {
            let generation = next_generation(self, mine, accepts_loss);
            self.switch_by_command(promoted(mine, generation), SessionPart::Lead)?;
        }
        Ok(RoleReport {
            as_of,
            ..self.report(begin)
        })
    }
}

fn not_begun(error: &StoreError) -> CommandFailure {
    CommandFailure::new(error.to_string(), "see the log of this node")
}

/// Makes durable, before this node answers, that the other node may have answered alone: what this node gives out, it has not
/// given out, and clients learn that unsynced operations may be lost (rules P13, P22). What programs have asked before does
/// not run any more (rule R13).
pub(super) fn begin_anew(engine: &Engine) -> Result<(), StoreError> {
    engine.gate.end_tenure(&*engine.host);
    engine.store.leave_out_inos(engine.config.ino_ranges())?;
    if is_active(Mutant::PromoteWithOldVerifier) {
        return Ok(());
    }
    let renewed = engine.role_file.renew_verifier(engine.host.random_id());
    renewed.map_err(StoreError::disk("note the write verifier in", "role.json"))
}

fn check_promotion(
    keeper: &RoleKeeper,
    mine: RoleRecord,
    accepts_loss: bool,
) -> Result<(), CommandFailure> {
    let session = keeper.session();
    if matches!(session, Session::Primary(_)) {
        return Err(CommandFailure::new(
            "this node is the primary already",
            "nothing is to be done",
        ));
    }
    if session.replication().peer.is_connected() {
        return Err(CommandFailure::new(
            "the primary is connected, so it serves",
            "run `lockstep failover` on the primary",
        ));
    }
    if keeper.engine.witness.has_witness() && !accepts_loss {
        return Err(CommandFailure::new(
            "a witness decides which node of this datastore is the primary",
            "start the witness and the other node; if both are lost for good, accept with --force-data-loss that \
             operations may be lost",
        ));
    }
    if !mine.complete && !accepts_loss && !is_active(Mutant::PromoteUnasked) {
        return Err(CommandFailure::new(
            lacks(keeper),
            "start the other node; or, if its copy is lost, accept the loss with --force-data-loss",
        ));
    }
    Ok(())
}

/// The operations that the copy of this node may lack.
fn lacks(keeper: &RoleKeeper) -> &'static str {
    if keeper.engine.role_file.state().lineage.power.has_lost_power {
        "the machine of this node has lost power while its copy was complete: the copy has everything that programs had put on \
         stable storage (fsync), and may lack what they had not, of the last seconds before the loss; the other node may have gone \
         on since"
    } else {
        "the copy of this node may lack operations that programs were told are done"
    }
}

/// The generation of a promotion: after every generation that this node knows. A primary that may not serve yet
/// stays in its generation, unless it has met a later one. A node that is forced to lead may not know the latest
/// generation of the other node.
fn next_generation(keeper: &RoleKeeper, mine: RoleRecord, is_forced: bool) -> Generation {
    let latest = keeper.latest_generation().max(mine.generation);
    let is_own = mine.is_primary() && !is_forced;
    if is_active(Mutant::PromoteInSameGeneration) || is_own && latest == mine.generation {
        mine.generation
    } else if is_forced && !is_active(Mutant::ForceIntoNextGeneration) {
        (0..FORCED_GENERATIONS).fold(latest, |generation, _| generation.next())
    } else {
        latest.next()
    }
}

/// Leads as the operator says, and tells the witness before.
fn lead_by_force(keeper: &RoleKeeper, mine: RoleRecord) -> Result<(), CommandFailure> {
    let read = keeper
        .witness
        .get()
        .and_then(|line| line.read().ok().flatten());
    if let Some(later) = read.filter(|known| known.generation > mine.generation) {
        keeper.note_peer_generation(later.generation);
    }
    let generation = next_generation(keeper, mine, true);
    let known = keeper.latest_generation().max(mine.generation);
    let candidate = RoleRecord {
        generation,
        role: Role::Secondary,
        is_candidate: true,
        peer_complete: false,
        ..mine
    };
    let stands = RoleChange::new(RoleChangeKind::BecomeCandidate, mine, candidate);
    keeper.switch_by_command(stands, SessionPart::Follow)?;
    tell_witness(keeper, generation, known)?;
    keeper.switch_by_command(promoted(candidate, generation), SessionPart::Lead)
}

/// Tells the witness that this node serves in a generation, without the other node. `known`: the latest generation that
/// this node has known of. If the witness gives no answer, the role file keeps that it must still know.
///
/// # Errors
/// If the witness has made the other node the primary of a later generation, or the role file cannot be written.
fn tell_witness(
    keeper: &RoleKeeper,
    generation: Generation,
    known: Generation,
) -> Result<(), CommandFailure> {
    if is_active(Mutant::ForceUntold) {
        return Ok(());
    }
    let promotion = UnrecordedPromotion { generation, known };
    let role_file = &keeper.engine.role_file;
    let told = keeper.witness.get().map(|line| {
        let sync = keeper.engine.standing().names.last;
        forced_claim::tell(line, promotion, sync)
    });
    let noted = match told {
        Some(Ok(ForcedClaim::Known(_))) => role_file.clear_unrecorded(),
        Some(Ok(ForcedClaim::Overtaken(later))) => {
            keeper.note_peer_generation(later.generation);
            return Err(CommandFailure::new(
                "the witness has made the other node the primary",
                "see `lockstep status` on the other node; if that node is lost, run this command again",
            ));
        }
        Some(Err(error)) => {
            tracing::warn!(datastore = keeper.engine.name(), %error, "the witness does not know of the forced promotion");
            role_file.note_unrecorded(promotion)
        }
        None => role_file.note_unrecorded(promotion),
    };
    noted.map_err(|error| {
        not_begun(&StoreError::disk("note the promotion in", "role.json")(
            error,
        ))
    })
}

/// The change of a node that an operator makes the primary: the datastore goes on with this copy.
fn promoted(mine: RoleRecord, generation: Generation) -> RoleChange {
    let record = RoleRecord {
        complete: true,
        ..mine.lead(generation, false)
    };
    RoleChange::new(RoleChangeKind::Promote, mine, record)
}
