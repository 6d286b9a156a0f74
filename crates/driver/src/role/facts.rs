//! The facts that the role machine decides by, as the engine and the session have them at this moment.

use lockstep_repl::state::State;
use lockstep_roles::{LocalCopy, Member, RoleFacts, RoleSettings, SessionState};
use lockstep_types::Osn;

use crate::client::Standing;
use crate::durable::role_file::RoleState;
use crate::engine::Engine;
use crate::session::Session;

/// The facts of a node that is `me` for the witness. Waits for a thread that holds the core.
pub(super) fn of(engine: &Engine, session: &Session, me: Member) -> RoleFacts {
    let RoleState {
        record, unrecorded, ..
    } = engine.role_file.state();
    RoleFacts {
        settings: RoleSettings {
            me,
            ..engine.config.current().role_settings()
        },
        record,
        unrecorded,
        session: state_of(session),
        is_connected: session.replication().peer.is_connected(),
        is_serving: engine.gate.standing() == Standing::Serving,
    }
}

/// The state of the replication, as far as the role depends on it.
fn state_of(session: &Session) -> SessionState {
    let replication = match session {
        Session::Undecided(_) => return SessionState::Undecided,
        Session::Secondary(_) => return SessionState::Secondary,
        Session::Primary(session) => &session.replication,
    };
    match replication.state_and_connected() {
        (State::Paused, _) => SessionState::Paused,
        (State::Frozen, _) => SessionState::Frozen,
        (State::LeavingSync, _) => SessionState::LeavingSync,
        (State::Synced, is_connected) => SessionState::Synced {
            is_connected,
            is_recorded: replication.peer.is_complete(),
        },
        _ => SessionState::Primary,
    }
}

/// The copy of this node. Waits for the disk if an operation is being applied.
pub(super) fn copy_of(engine: &Engine) -> LocalCopy {
    let lineage = engine.role_file.state().lineage;
    LocalCopy {
        store: lineage.store,
        sync: engine.standing(),
        was_resynced: lineage.was_resynced,
        has_data: engine.store.applied() != Osn::ZERO,
    }
}
