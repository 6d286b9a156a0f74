//! The responses of a secondary to the requests of recovery, resync and verify.
//!
//! Invariant: a copy in sync is changed by no request, except `BeginResync`, which marks the copy out of sync first
//! (rules P10, P17).

use std::sync::Arc;

use lockstep_paw_saw::InFlightTable;
use lockstep_repl::core::Event;
use lockstep_repl::message::{Request, Response};
use lockstep_repl::state::Trigger;
use lockstep_types::mutants::{Mutant, is_active};

use crate::engine::Engine;
use crate::host::ThreadKind;
use crate::term::Term;

/// See the head of this file.
pub(crate) struct Responder {
    term: Arc<Term>,
    /// Writes that wait for the primary.
    saw: Arc<InFlightTable>,
}

impl Responder {
    /// The responder of one session.
    pub const fn new(term: Arc<Term>, saw: Arc<InFlightTable>) -> Self {
        Self { term, saw }
    }

    fn happened(&self, trigger: Trigger) {
        let event = Event::Happened(trigger);
        self.term.handle_event(ThreadKind::MayWait, event);
    }

    /// The response to a request; an error is the reason that the primary shows.
    pub fn response(&self, request: &Request, payload: &[u8]) -> Result<Response, String> {
        if let Some(reason) = self.term.engine.failure_reason() {
            return Err(reason);
        }
        let engine = &*self.term.engine;
        let store = &engine.store;
        match request {
            Request::RecoveryDone { below } => {
                self.saw.remove_below(*below);
                self.happened(Trigger::Recovered);
                Ok(Response::Done)
            }
            Request::InSync => self.mark_in_sync(),
            Request::BeginResync { sync } => {
                // Before anything is changed (rules P10, P17).
                if !is_active(Mutant::ResyncUnmarked) {
                    let marked = engine.role_file.take_over(*sync);
                    marked.map_err(|error| error.to_string())?;
                }
                self.saw.clear();
                self.happened(Trigger::MarkedOutOfSync);
                lockstep_resync::answer(store, request, payload)
            }
            Request::Digests { .. } | Request::Inspect { .. } | Request::Records { .. } => {
                lockstep_verify::answer(store, request)
            }
            Request::Room => {
                engine.collect_garbage();
                let room = store.room();
                room.map(Response::Room).map_err(|error| error.to_string())
            }
            // The request belongs to a transfer that should be over: this copy is in sync (rule P10).
            _ if is_of_resync(request) && engine.role_file.state().in_sync => {
                Err("it was asked to change a copy that is in sync, outside a resync".to_owned())
            }
            _ => lockstep_resync::answer(store, request, payload),
        }
    }

    fn mark_in_sync(&self) -> Result<Response, String> {
        let Engine {
            role_file, store, ..
        } = &*self.term.engine;
        if role_file.state().in_sync {
            return Err("it was told to be in sync, which it is".to_owned());
        }
        // The content of the resync is in the system's cache. On the primary the same content may be durable (rule P10).
        if !is_active(Mutant::MarkBeforeSync) {
            let synced = store.sync_everything();
            synced.map_err(|error| error.to_string())?;
        }
        role_file.mark(true).map_err(|error| error.to_string())?;
        self.happened(Trigger::MarkedInSync);
        Ok(Response::Done)
    }
}

/// Whether a request changes a copy that is being resynced. A resync begins with [`Request::BeginResync`].
const fn is_of_resync(request: &Request) -> bool {
    matches!(
        request,
        Request::ImageChunk
            | Request::ImageChanges
            | Request::SettleImage
            | Request::EndImage { .. }
            | Request::SettleFiles { .. }
            | Request::WriteBlocks { .. }
            | Request::Reserve { .. }
            | Request::CompareHole { punch: true, .. }
    )
}
