//! Builds the session of a role over an engine: at the start of a datastore, and at each change of its role.
//!
//! Invariant: no other session of the engine is at work meanwhile.

use std::sync::Arc;

use lockstep_fs::store::{FallbackAccess, TraceAccess};
use lockstep_fs::{Overlay, Store, StoreError};
use lockstep_repl::core::{Core, CoreConfig, CoreStart};
use lockstep_repl::state::{ServiceMode, State};
use lockstep_roles::ServicePart;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::OnPeerLoss;
use lockstep_types::time::millis;
use lockstep_types::{Generation, Osn, limits};

use super::Session;
use super::primary::PrimarySession;
use super::standby::StandbySession;
use super::sum_secret;
use crate::config::DatastoreConfig;
use crate::durable::tables::{Tables, add_writes_to_delta, ranges_of};
use crate::durable::{DatastoreError, failed, refused, table_refused};
use crate::engine::Engine;
use crate::ops::lock_plan;

/// Slots for writes that are over for the core and whose entries are being removed.
const SLOTS_SPARE: usize = 128;

/// Whether this node serves under a lease: the secondary may take over by the answer of the witness (rule R7).
pub(crate) fn needs_lease(engine: &Engine) -> bool {
    engine.role.has_witness() && engine.role_file.state().record.peer_complete
}

/// A session with the marks and the tables of the store.
pub(crate) fn session(engine: &Arc<Engine>, part: ServicePart) -> Result<Session, DatastoreError> {
    let (config, store) = (&*engine.config.current(), &engine.store);
    let role = engine.role_file.state();
    let is_in_sync = role.is_in_sync() && role.record.complete;
    settle_mixture(engine.name(), store, part, role.is_in_sync()).map_err(refused(config))?;
    let backing = store.backing().as_ref();
    if part == ServicePart::Serve {
        if !engine.is_always_durable() {
            let noted = engine.role_file.note_unsynced();
            noted.map_err(failed(config))?;
        }
        let has_lost_power = role.lineage.power.has_lost_power;
        begin_delta_of_lead(store, role.record.generation, is_in_sync, has_lost_power);
    }
    if !is_in_sync {
        // Before the tables are made anew.
        add_left_writes(store, role.lineage.power.has_lost_power);
    }
    let tables = if role.has_tables() {
        Tables::open(backing)
    } else {
        Tables::make(backing)
    };
    let tables = tables.map_err(table_refused(config))?;
    let state = first_state(config, part, is_in_sync);
    let is_secondary = part == ServicePart::Wait && !role.record.is_primary();
    let is_alone = state.service_mode() == ServiceMode::Alone;
    if is_alone {
        // Before anything changes: no mark on stable storage names that.
        let hidden = store.barriers().hide_names();
        hidden.map_err(refused(config))?;
    }
    let has_lost_power = role.lineage.power.has_lost_power;
    let ends_doubts = is_secondary || is_alone || has_lost_power;
    if part == ServicePart::Wait && !is_in_sync {
        store.image().was_interrupted();
    }
    if ends_doubts && !is_active(Mutant::KeepInDoubt) {
        let applies = is_alone && !has_lost_power && !is_active(Mutant::RollBackExecuted);
        end_doubts(engine, applies).map_err(refused(config))?;
    }
    Ok(with(engine, tables, state))
}

/// Makes a copy whole that a resync has changed in part, before the copy is shown. A copy that is in sync is whole already.
fn settle_mixture(
    datastore: &str,
    store: &Store,
    part: ServicePart,
    is_in_sync: bool,
) -> Result<(), StoreError> {
    let fallback = FallbackAccess::of(store);
    if !fallback.is_mixed()? {
        return Ok(());
    }
    if is_in_sync {
        return fallback.end().map(drop);
    }
    if part != ServicePart::Serve || is_active(Mutant::ServeMixture) {
        return Ok(());
    }
    // An operator has accepted the loss. No other copy knows how this one changes now.
    tracing::warn!(
        datastore,
        "a resync had changed this copy in part: the copy goes back to its state from before"
    );
    store.barriers().forget()?;
    if !fallback.put_back()? {
        tracing::error!(
            datastore,
            "a resync had changed this copy in part, and there was no room for a state to go back to: files show different moments"
        );
        fallback.end()?;
    }
    Ok(())
}

/// Begins the delta of a primary, before anything changes. A node that has just taken over goes on from the operations that
/// it followed. A primary that was stopped while it was alone goes on with the delta that it has kept.
fn begin_delta_of_lead(
    store: &Store,
    generation: Generation,
    is_in_sync: bool,
    has_lost_power: bool,
) {
    let delta = store.delta();
    if is_in_sync && !has_lost_power {
        delta.begin_alone(generation);
    } else {
        delta.lead_alone(generation, has_lost_power);
    }
}

/// Adds to the delta, if there is one, the writes that were under way when the last session ended: the other node may lack them,
/// or have them alone. Without their tables, the delta ends, unless they went with the power: then the other node has marks of them.
fn add_left_writes(store: &Store, has_lost_power: bool) {
    let backing = store.backing().as_ref();
    match Tables::left_writes(backing) {
        Some(writes) => add_writes_to_delta(store, ranges_of(&writes)),
        // The loss of power has taken the tables: the trace has the writes, or the other node.
        None if has_lost_power || TraceAccess::of(store).begins_rest() => {}
        None => store.delta().end(),
    }
}

/// A session on a failed disk, with tables in memory: nothing on the disk changes.
pub(crate) fn poisoned(engine: &Arc<Engine>) -> Result<Session, DatastoreError> {
    let in_memory = Overlay::new(Arc::clone(engine.store.backing()));
    let made = Tables::make(&in_memory);
    let tables = made.map_err(table_refused(&engine.config.current()))?;
    let state = if engine.role_file.state().record.is_primary() {
        State::Poisoned
    } else {
        State::SecondaryPoisoned
    };
    Ok(with(engine, tables, state))
}

fn with(engine: &Arc<Engine>, tables: Tables, state: State) -> Session {
    let start = start_of(engine, &tables, state);
    let first_osn = start.first_osn;
    let has_names_in_doubt = !start.in_doubt.is_empty() && !is_active(Mutant::ShowNamesInDoubt);
    let core = Core::new(core_config(engine), start, engine.now_ms());
    if state.is_secondary() && !is_active(Mutant::SecondaryServes) {
        let role = engine.role_file.state();
        let has_own_writes = role.lineage.deposed.is_some() && role.left_base().is_some();
        let paw = has_own_writes.then_some(tables.paw);
        let session = StandbySession::new(engine, core, first_osn, tables.saw, paw);
        if role.record.is_primary() {
            Session::Undecided(session)
        } else {
            Session::Secondary(session)
        }
    } else {
        sum_secret::draw(engine);
        let session = PrimarySession::new(engine, core, first_osn, tables.paw);
        match state {
            State::Paused
                if has_names_in_doubt || engine.role_file.state().lineage.power.has_lost_power =>
            {
                session.hide_everything();
            }
            State::Paused => session.hide_sizes_in_doubt(),
            _ => {}
        }
        Session::Primary(session)
    }
}

/// Ends the operations in doubt of a node that does not ask the other one for their outcome. No client got an answer to them, so
/// either outcome is right. If they stayed PENDING, a resync would wait for them, and the log could not be cut.
///
/// A primary without its secondary `applies` them in their order, as it would have done without its stop: the secondary may have
/// executed them, and so the delta names what they change (rule P21). After a loss of power no delta names anything: then they are
/// rolled back, as on a secondary, which takes what its primary has.
fn end_doubts(engine: &Engine, applies: bool) -> Result<(), StoreError> {
    let store = &engine.store;
    for osn in store.intents().in_doubt() {
        let is_applied = applies && !store.intents().is_of_lost_run(osn) && apply(engine, osn)?;
        if !is_applied {
            tracing::warn!(datastore = engine.name(), %osn, "an operation that no program was told of is dropped");
            store.intents().roll_back(osn)?;
        }
    }
    Ok(())
}

/// Applies an operation in doubt. Returns whether the store could do that: the secondary may have executed an operation that this
/// node cannot (rule P15).
fn apply(engine: &Engine, osn: Osn) -> Result<bool, StoreError> {
    match engine.store.intents().commit(osn) {
        // Clients will see the effect (rule P11).
        Ok(Some(applied)) if engine.is_always_durable() => {
            engine.store.sync_applied(&applied).map(|()| true)
        }
        Ok(_) => Ok(true),
        Err(error) => {
            engine.log_and_errno(&error);
            Ok(false)
        }
    }
}

/// The knowledge of the core at the start.
fn start_of(engine: &Engine, tables: &Tables, state: State) -> CoreStart {
    // The numbers begin above those of writes, too. The store does not record the numbers of writes (rule P13).
    let used = tables.old_paw.iter().map(|entry| entry.osn.sequence).max();
    let first_osn = Osn {
        generation: engine.role_file.state().record.generation,
        sequence: engine
            .store
            .first_sequence()
            .max(used.map_or(0, |used| used + 1)),
    };
    CoreStart {
        state,
        interrupted_writes: if state == State::Paused {
            lock_plan::under_way(&tables.old_paw)
        } else {
            Vec::new()
        },
        first_osn,
        in_doubt: if state.is_secondary() || is_active(Mutant::ForgetInDoubt) {
            Vec::new()
        } else {
            engine.store.intents().in_doubt()
        },
    }
}

const fn first_state(config: &DatastoreConfig, part: ServicePart, is_in_sync: bool) -> State {
    match (part, &config.peer, is_in_sync) {
        (ServicePart::Serve, None, _) => State::Unmirrored,
        (ServicePart::Serve, Some(_), true) => State::Paused,
        (ServicePart::Serve, Some(_), false) => State::OutOfSync,
        (ServicePart::Wait, _, true) => State::SecondaryDisconnected,
        (ServicePart::Wait, _, false) => State::SecondaryOutOfSync,
    }
}

/// The settings of a core, as the configuration has them now.
pub(crate) fn core_config(engine: &Engine) -> CoreConfig {
    let (config, host) = (engine.config.current(), &engine.host);
    let asks_witness = config.witness_ends_pause() && !is_active(Mutant::GoAloneUnasked);
    CoreConfig {
        pause_limit_ms: (!asks_witness).then(|| millis(config.pause_limit)),
        pauses_max_ms: millis(config.pause_limit),
        // One copy is not enough there: the secondary is to be back as soon as it can be.
        flap_wait_max_ms: match config.policies.on_peer_loss {
            OnPeerLoss::Freeze => 0,
            OnPeerLoss::Continue => millis(config.policies.flap_wait_max.get()),
        },
        answer_limit: config.answer_limit_beats(),
        on_peer_loss: config.policies.on_peer_loss,
        gate_limit_ms: limits::SNAPSHOT_WAIT_MS,
        writes_max: limits::WRITES_IN_FLIGHT_MAX - SLOTS_SPARE,
        bytes_max: host.bytes_in_flight_max(),
    }
}
