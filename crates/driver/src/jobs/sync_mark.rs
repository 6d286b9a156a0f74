//! The durable mark whether the nodes are in sync, made when the core says so.
//!
//! Invariants:
//! - The core learns of a mark after the mark is durable (rule P1). The courier thread makes the marks, in the order of the
//!   core's decisions.
//! - With a witness, a primary marks its peer out of sync only with the solo grant (rule R1).
//! - A primary serves without a lease only while the mark says "out of sync" (rule R7).

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::core::Event;
use lockstep_repl::state::{State, Trigger};
use lockstep_types::Generation;
use lockstep_types::mutants::{Mutant, is_active};

use crate::host::ThreadKind;
use crate::replication::Replication;

/// Time between two attempts.
const RETRY: Duration = Duration::from_secs(1);

/// The copy that a mark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkedCopy {
    /// Primary: that of the secondary. A mark that cannot be made is tried again; nothing continues before it is made (rule P1).
    Peer,
    /// Secondary: the own one, with its base (rule P24). A mark that cannot be made is dropped. `BeginResync`, which waits behind it,
    /// marks the copy again before anything of the copy changes, and reports a failure.
    Own(Option<Generation>),
}

/// Has the courier thread make a mark, call `out_of_sync` if the mark says so, and report the mark to the core.
pub(crate) fn spawn(
    replication: &Arc<Replication>,
    in_sync: bool,
    copy: MarkedCopy,
    out_of_sync: impl FnOnce() + Send + 'static,
) {
    let on_courier = Arc::clone(replication);
    replication.spawn_ordered(move || {
        if !make(&on_courier, in_sync, copy) {
            return;
        }
        let trigger = if in_sync {
            Trigger::MarkedInSync
        } else {
            out_of_sync();
            Trigger::MarkedOutOfSync
        };
        on_courier.handle_event(ThreadKind::MayWait, Event::Trigger(trigger));
    });
}

/// Makes the mark durable; returns whether the core is to learn of it.
fn make(replication: &Replication, in_sync: bool, copy: MarkedCopy) -> bool {
    let engine = &*replication.engine;
    // The core has given this mark up since; the mark that followed may be made already.
    if in_sync && replication.state() != State::EnteringSync {
        return false;
    }
    let is_primary = copy == MarkedCopy::Peer;
    if is_primary && !in_sync {
        if !wait_for_permit(replication) {
            return false;
        }
        // The table of the delta hears of its begin before a process can start with this mark.
        engine.store.delta().settle();
    }
    let needs_lease = is_primary && engine.role.has_witness();
    if needs_lease && in_sync {
        engine.gate.need_lease(&*engine.host, true);
    }
    while let Err(error) = mark(replication, in_sync, copy) {
        tracing::error!(datastore = engine.name(), %error, "cannot mark the sync state");
        // A failed disk takes no mark. The mark on it stays right, because nothing is acknowledged any more.
        let is_over = replication.is_over() || engine.poison.has_failed();
        if is_over || !is_primary {
            return false;
        }
        engine.sleep_unless(RETRY, || {
            replication.is_over() || engine.poison.has_failed()
        });
    }
    if needs_lease && !in_sync {
        engine.gate.need_lease(&*engine.host, false);
    }
    true
}

/// Waits until this primary may serve alone. Returns `false` if the replication ends before, or the disk fails.
fn wait_for_permit(replication: &Replication) -> bool {
    let engine = &*replication.engine;
    let permits = || engine.role.may_serve_alone(replication.generation());
    let is_given_up = || replication.is_over() || engine.poison.has_failed();
    engine.wait_until(None, || permits() || is_given_up());
    permits()
}

fn mark(replication: &Replication, in_sync: bool, copy: MarkedCopy) -> std::io::Result<()> {
    if !in_sync && is_active(Mutant::FinishAloneUnmarked) {
        return Ok(());
    }
    let (role_file, generation) = (&replication.engine.role_file, replication.generation());
    if copy == MarkedCopy::Peer && !in_sync {
        // Stable storage names no barrier of a node that serves alone, before its trace begins (rule P28).
        let hidden = replication.engine.store.barriers().hide_names();
        hidden.map_err(std::io::Error::other)?;
    }
    match copy {
        MarkedCopy::Own(base) if !in_sync => role_file.leave_sync(generation, base),
        _ => role_file.mark(generation, in_sync),
    }
}
