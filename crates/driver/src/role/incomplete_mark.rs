//! A primary that cannot keep up the sync and may not serve alone yet: when the nodes meet, the secondary records that its
//! copy is not complete, and so permits the primary to serve alone (rule R1). No witness is needed for that.

use lockstep_repl::core::Event;
use lockstep_repl::state::{State, Trigger};
use lockstep_roles::{RoleOffer, RoleRecord};

use super::keeper::RoleKeeper;
use crate::engine::witness_state::WordTime;
use crate::host::ThreadKind;

/// Whether this primary may not serve alone yet, and has no other way than that.
pub(super) fn asks_peer_to_mark_incomplete(keeper: &RoleKeeper) -> bool {
    let state = keeper.session().replication().state();
    state == State::LeavingSync
        && !keeper
            .engine
            .witness
            .permits(keeper.engine.role_file.state().record.generation)
}

/// A secondary whose primary cannot keep up the sync records that its copy is not complete (rule R1). Returns whether
/// the record has changed.
pub(super) fn mark_incomplete(keeper: &RoleKeeper, mine: RoleRecord, theirs: &RoleOffer) -> bool {
    let primary = theirs.record;
    let is_asked = theirs.asks_incomplete_mark
        && theirs.seen == Some(mine)
        && primary.is_primary()
        && primary.generation == mine.generation;
    if !is_asked || mine.is_primary() || !mine.complete {
        return false;
    }
    let marked = keeper.engine.role_file.mark(mine.generation, false);
    if let Err(error) = &marked {
        let datastore = keeper.engine.name();
        tracing::error!(datastore, %error, "cannot mark the sync state");
        return false;
    }
    let session = keeper.session();
    let replication = session.replication();
    if replication.state() == State::SecondaryDisconnected {
        let marked = Event::Trigger(Trigger::MarkedOutOfSync);
        replication.handle_event(ThreadKind::MayWait, marked);
    }
    true
}

/// A secondary that lacks operations by its own record takes over from nobody, so its primary needs no witness to
/// serve alone (rule R1). `begun`: before the word of the secondary. A word from before the last sync says nothing: the record
/// of this node may have come back to the one that the secondary has seen.
pub(super) fn note_incomplete_peer(
    keeper: &RoleKeeper,
    mine: RoleRecord,
    theirs: &RoleOffer,
    begun: WordTime,
) {
    let peer = theirs.record;
    let is_secondary = !peer.is_primary() && peer.generation == mine.generation;
    if !mine.is_primary() || !is_secondary || peer.complete || theirs.seen != Some(mine) {
        return;
    }
    let session = keeper.session();
    // The lock keeps the nodes from being in sync before the permit is there.
    let core = session.replication().core.lock();
    let waits = matches!(
        core.state(),
        State::Paused | State::Frozen | State::LeavingSync
    );
    if waits {
        let witness = &keeper.engine.witness;
        witness.permit_by_word(mine.generation, begun);
    }
}
