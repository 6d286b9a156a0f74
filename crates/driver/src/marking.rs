//! The mark whether the nodes are in sync, made when the core says so.
//!
//! Invariant: the core hears of a mark once it is durable, and not before (rule P1). Marks are made in the
//! order in which they were decided on, so by the courier.

use std::sync::Arc;
use std::time::Duration;

use lockstep_repl::core::Event;
use lockstep_repl::state::{State, Trigger};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;

use super::{Datastore, Thread};

/// Between two attempts to make a mark that could not be made.
const RETRY: Duration = Duration::from_secs(1);

impl Datastore {
    /// Makes the mark durable on another thread, trying until it is: nothing may go on before
    /// (rule P1).
    pub(super) fn mark_later(self: &Arc<Self>, in_sync: bool) -> Option<Event> {
        let datastore = Arc::clone(self);
        self.host.in_order(Box::new(move || {
            // Given up in the meantime; the mark that followed may be made already.
            if in_sync && datastore.core.lock().state() != State::EnteringSync {
                return;
            }
            while let Err(error) = datastore.mark(in_sync) {
                tracing::error!(datastore = datastore.name(), %error, "cannot mark the sync state");
                // A secondary marks itself again before anything of its copy is changed
                // (`BeginResync`, which waits behind this), and says so when it cannot.
                // A disk that has failed takes no mark, and the one it has stays right: nothing is
                // acknowledged on it any more.
                let is_over = datastore.is_stopping() || datastore.poison.has_failed();
                if is_over || datastore.config.role == Role::Secondary {
                    return;
                }
                datastore.host.sleep(RETRY);
            }
            let trigger = if in_sync {
                Trigger::MarkedInSync
            } else {
                datastore.go_on_alone();
                Trigger::MarkedOutOfSync
            };
            datastore.drive(Thread::MayWait, Event::Happened(trigger));
        }));
        None
    }

    fn mark(&self, in_sync: bool) -> std::io::Result<()> {
        if !in_sync && is_active(Mutant::FinishAloneUnmarked) {
            return Ok(());
        }
        self.role.mark(in_sync)
    }

    /// The secondary is marked out of sync: what could not be applied did not happen, and what was
    /// behind it goes on.
    fn go_on_alone(self: &Arc<Self>) {
        for slot in std::mem::take(&mut *self.failed.lock()) {
            self.paw.remove(slot);
        }
        // What the process before had under way is compared with everything else: its slots are
        // needed for what is mirrored from the resync on (rule P6).
        self.paw.remove_below(self.first_osn);
        self.apply_stuck();
    }
}
