//! Carrying data to the secondary outside clients' operations: distributed recovery, resync, and
//! the comparison that verify makes. Runs on threads that may wait.

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::StoreError;
use lockstep_paw_saw::InFlightEntry;
use lockstep_repl::core::{ConnectionId, Event, LockSet, Transfer};
use lockstep_repl::message::{Message, Request, Response};
use lockstep_repl::state::Trigger;
use lockstep_resync::{Asked, Claim, Locks, Operations, Peer, PeerError, Progress, ResyncError};
use lockstep_types::mutants::{Mutant, is_active};

use super::host::{Awaited, Promise, promise};
use super::service::Inspection;
use super::{Datastore, Link};
use crate::report::{Difference, VerifyFailure, VerifyProgress, VerifyReport};

/// So many times longer than any other answer may one take for which a whole store is gone through.
const WHOLE_STORE_FACTOR: u64 = 10;

/// The secondary, reached over one connection: what is asked after that is lost fails.
pub(super) struct LinkedPeer<'a> {
    datastore: &'a Arc<Datastore>,
    link: Link,
}

impl Peer for LinkedPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        self.begin(request, payload)()
    }

    fn begin(&self, request: Request, payload: &[u8]) -> Asked<'_> {
        let what = describe(&request);
        let limit = self.datastore.patience(&request);
        let host = &*self.datastore.host;
        let asked = self.datastore.calls.begin(host, limit, |id| {
            let message = Message::Request { id, request };
            let done_below = self.datastore.core.lock().send(&message);
            self.datastore
                .send_on(&*self.link.sender, done_below, message, payload)
        });
        Box::new(move || match asked.and_then(Awaited::get) {
            Some(Ok(response)) => Ok(response),
            Some(Err(reason)) => Err(PeerError::Failed { what, reason }),
            None => Err(PeerError::Lost),
        })
    }
}

impl LinkedPeer<'_> {
    /// Ends the connection, as what was to be done over it failed: by the loss of it or by itself.
    fn give_up(&self, error: &ResyncError) {
        if matches!(error, ResyncError::Peer(PeerError::Lost)) {
            self.link.sender.shutdown("it is lost");
        } else {
            self.link.give_up(&error.to_string());
        }
    }
}

/// The locks of the core, and the time of its host, for work of our own.
struct CoreLocks<'a>(&'a Arc<Datastore>);

impl Locks for CoreLocks<'_> {
    fn with_locks(
        &self,
        locks: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError> {
        self.0
            .inspect(locks, body)
            .unwrap_or_else(|| Err(stopping()))
    }

    fn claim(&self, locks: LockSet) -> Result<Box<dyn Claim + '_>, ResyncError> {
        Ok(Box::new(self.0.ask_for(locks)))
    }

    fn pause(&self, time: Duration) {
        self.0.host.sleep(time);
    }
}

/// The metadata operations of the core, for a resync over one connection.
struct CoreOperations<'a> {
    datastore: &'a Arc<Datastore>,
    connection: ConnectionId,
}

impl Operations for CoreOperations<'_> {
    fn caught_up(&self) {
        let caught_up = Event::NamesBehind(false);
        self.datastore.drive_over(self.connection, caught_up);
    }
}

/// Who waits until no metadata operation is under way, and over which connection.
pub(super) type Tail = Option<(ConnectionId, Promise<()>)>;

impl Claim for Inspection<'_> {
    fn is_held(&self) -> bool {
        Inspection::is_held(self)
    }

    fn wait(&mut self) -> Result<(), ResyncError> {
        let is_held = Inspection::wait(self);
        is_held.then_some(()).ok_or_else(stopping)
    }
}

fn stopping() -> ResyncError {
    stopped("the node is stopping")
}

fn stopped(why: &str) -> ResyncError {
    ResyncError::Stopped {
        why: why.to_owned(),
    }
}

impl Datastore {
    /// How many beats the secondary may take over an answer. Where it syncs or tidies a whole store, that is a
    /// matter of how much there is.
    fn patience(&self, request: &Request) -> u64 {
        let limit = self.config.answer_limit_beats();
        match request {
            Request::BeginResync { .. }
            | Request::SettleImage
            | Request::EndImage { .. }
            | Request::InSync => limit.saturating_mul(WHOLE_STORE_FACTOR),
            _ => limit,
        }
    }

    /// The peer has given another sign of life. Gives the connection up if a question is overdue: clients
    /// may be waiting for its answer.
    pub(super) fn give_up_if_overdue(&self) {
        if self.calls.beat() {
            let reason = "the secondary is connected, but does not answer: its disk may hang";
            self.set_reason(reason);
            self.drop_link(reason);
        }
    }

    pub(super) fn linked_peer(self: &Arc<Self>) -> Option<LinkedPeer<'_>> {
        let link = self.link.read().clone()?;
        Some(LinkedPeer {
            datastore: self,
            link,
        })
    }

    /// Begins a transfer over the connection it was decided for, if that still stands.
    pub(super) fn transfer_over(self: &Arc<Self>, connection: ConnectionId, transfer: Transfer) {
        let Some(link) = self.link_of(connection) else {
            return;
        };
        match transfer {
            Transfer::RecoverRanges => self.recover_ranges_later(link),
            // New operations are admitted already: theirs are not below the watermark.
            Transfer::TellRecovered => {
                let below = self.core.lock().done_below();
                self.tell_later(link, Request::RecoveryDone { below });
            }
            Transfer::SendImage => self.send_image_later(link),
            Transfer::SendTail => self.tail_is_due(connection, true),
            Transfer::SendContent => self.send_content_later(link),
            Transfer::TellInSync => self.tell_later(link, Request::InSync),
        }
    }

    /// Runs a transfer on another thread over a connection, however late the thread gets to it; what
    /// comes of it is told to the core unless that connection is gone.
    fn transfer_later(
        self: &Arc<Self>,
        link: Link,
        what: &'static str,
        job: impl FnOnce(&Arc<Self>, &dyn Peer, &Link) -> Result<Event, ResyncError> + Send + 'static,
    ) {
        let datastore = Arc::clone(self);
        self.host.spawn(Box::new(move || {
            let peer = LinkedPeer {
                datastore: &datastore,
                link,
            };
            match job(&datastore, &peer, &peer.link) {
                Ok(event) => datastore.drive_over(peer.link.id, event),
                Err(error) => {
                    datastore.set_reason_over(peer.link.id, &format!("{what} failed: {error}"));
                    peer.give_up(&error);
                }
            }
        }));
    }

    /// Sends the blocks that may differ after a disconnect.
    fn recover_ranges_later(self: &Arc<Self>, link: Link) {
        self.transfer_later(link, "distributed recovery", |datastore, peer, link| {
            let (store, waiting) = (&datastore.store, &link.peer_waiting);
            lockstep_resync::recover_ranges(store, peer, &datastore.old_entries(), waiting)?;
            datastore.paw.remove_below(datastore.first_osn);
            Ok(Event::RangesRecovered)
        });
    }

    /// The writes of the process before that may be on one node only.
    pub(super) fn old_entries(&self) -> Vec<InFlightEntry> {
        if is_active(Mutant::IgnorePawInRecovery) {
            return Vec::new();
        }
        let mut entries = self.paw.entries();
        entries.retain(|entry| entry.osn < self.first_osn);
        entries
    }

    /// Tells over a connection; a secondary that cannot do it ends the sync.
    fn tell_later(self: &Arc<Self>, link: Link, request: Request) {
        let datastore = Arc::clone(self);
        self.host.spawn(Box::new(move || {
            let peer = LinkedPeer {
                datastore: &datastore,
                link,
            };
            match peer.ask(request, &[]) {
                Ok(_) => {}
                Err(PeerError::Lost) => peer.link.sender.shutdown("it is lost"),
                Err(error) => datastore.peer_failed_over(peer.link.id, &error),
            }
        }));
    }

    /// The secondary could not do what must be done for the nodes to be in sync (P15).
    fn peer_failed_over(self: &Arc<Self>, connection: ConnectionId, error: &PeerError) {
        self.set_reason_over(connection, &error.to_string());
        self.drive_over(connection, Event::Happened(Trigger::PeerFailed));
    }

    fn send_image_later(self: &Arc<Self>, link: Link) {
        self.transfer_later(link, "resync of the namespace", |datastore, peer, link| {
            let noted = datastore.role.carry_over(datastore.host.draw());
            let sync = noted.map_err(StoreError::disk("note the resync in", "role.json"))?;
            let (store, connection) = (&datastore.store, link.id);
            let operations = CoreOperations {
                datastore,
                connection,
            };
            let changes = lockstep_resync::send_image(store, peer, sync, &operations)?;
            datastore.hold_names(connection)?;
            lockstep_resync::send_tail(store, peer, &changes)?;
            Ok(Event::Happened(Trigger::ImageDone))
        });
    }

    /// Has the core admit no metadata operation, and waits until none is under way.
    fn hold_names(self: &Arc<Self>, connection: ConnectionId) -> Result<(), PeerError> {
        let (due, wait) = promise(&*self.host);
        let earlier = self.tail.lock().replace((connection, due));
        drop(earlier);
        self.drive_over(connection, Event::Happened(Trigger::ImageSent));
        if self.link_of(connection).is_none() {
            // Its end may have come before there was anybody to be told of it.
            self.tail_is_due(connection, false);
        }
        wait.get().ok_or(PeerError::Lost)
    }

    /// Lets the transfer over that connection go on which waits for the end of metadata operations, or
    /// lets it know that it waits in vain.
    pub(super) fn tail_is_due(&self, connection: ConnectionId, due: bool) {
        let waiting = self.tail.lock().take_if(|(of, _)| *of == connection);
        if let Some((_, promise)) = waiting
            && due
        {
            promise.keep(());
        }
    }

    fn send_content_later(self: &Arc<Self>, link: Link) {
        self.transfer_later(link, "resync of the content", |datastore, peer, _| {
            let locks = CoreLocks(datastore);
            lockstep_resync::send_content(&datastore.store, peer, &locks, &datastore.resync)?;
            datastore.paw.remove_below(datastore.first_osn);
            Ok(Event::Happened(Trigger::ContentDone))
        });
    }

    /// Compares this node with its peer, now.
    pub fn verify(
        self: &Arc<Self>,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, VerifyFailure> {
        let report = self.compare(progress)?;
        self.note_comparison(&report);
        Ok(VerifyReport {
            identical: report.is_identical(),
            inodes_compared: report.inodes,
            bytes_compared: report.bytes,
            differences_total: report.total,
            differences: report
                .differences
                .into_iter()
                .map(|difference| Difference {
                    inode: difference.ino,
                    path: difference.path,
                    what: difference.what.to_string(),
                })
                .collect(),
        })
    }

    /// What [`Self::verify`] finds, as the comparison tells it; nothing is noted.
    pub fn compare(
        self: &Arc<Self>,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<lockstep_verify::Report, VerifyFailure> {
        let peer = self.peer_in_sync()?;
        let done = Progress::default();
        let mut compared = None;
        let mut compare = || compared = Some(self.compare_with(&peer, &done));
        let mut tell = || {
            progress(VerifyProgress {
                inodes_compared: done.inodes_done.get(),
                inodes_total: Some(done.inodes_total.get()),
                bytes_compared: done.bytes_done.get(),
            });
        };
        self.host.attend(&mut compare, &mut tell);
        let compared = compared.unwrap_or_else(|| Err(stopped("the comparison has panicked")));
        compared.map_err(|error| could_not_compare(&error))
    }

    /// The secondary, if there is something to compare.
    fn peer_in_sync(self: &Arc<Self>) -> Result<LinkedPeer<'_>, VerifyFailure> {
        let state = self.core.lock().state();
        if self.config.role != lockstep_types::Role::Primary {
            return Err(VerifyFailure {
                cause: "this node is the secondary of the datastore".to_owned(),
                cure: "ask the primary".to_owned(),
            });
        }
        if self.config.peer.is_none() {
            return Err(VerifyFailure {
                cause: "the datastore is not mirrored: there is no other copy to compare with"
                    .to_owned(),
                cure: "configure a peer ([datastore.peer]) if it is to be mirrored".to_owned(),
            });
        }
        let peer = self.linked_peer().filter(|_| state.is_in_sync());
        peer.ok_or_else(|| VerifyFailure {
            cause: format!("the nodes are not in sync ({})", state.describe()),
            cure: "wait until `lockstep status` says in sync, then verify again".to_owned(),
        })
    }

    fn compare_with(
        self: &Arc<Self>,
        peer: &LinkedPeer<'_>,
        done: &Progress,
    ) -> Result<lockstep_verify::Report, ResyncError> {
        lockstep_verify::compare(&self.store, peer, &CoreLocks(self), done)
    }
}

fn could_not_compare(error: &ResyncError) -> VerifyFailure {
    VerifyFailure {
        cause: error.to_string(),
        cure: "see the log of both nodes, then verify again".to_owned(),
    }
}

/// What a request is for, for operators.
const fn describe(request: &Request) -> &'static str {
    match request {
        Request::RecoverRange { .. } => "recover a range",
        Request::RecoveryDone { .. } => "end the recovery",
        Request::BeginResync { .. } => "begin a resync",
        Request::ImageChunk
        | Request::ImageChanges
        | Request::SettleImage
        | Request::EndImage { .. } => "take over the namespace",
        Request::SettleFiles { .. } => "settle files",
        Request::WriteBlocks { .. } => "write blocks",
        Request::Reserve { .. } => "reserve space",
        Request::CompareBlocks { .. } | Request::CompareHole { .. } => "compare content",
        Request::Digests { .. } | Request::Inspect { .. } | Request::Records { .. } => "compare",
        Request::InSync => "mark itself in sync",
        Request::Room => "tell the room on its disk",
    }
}

#[cfg(test)]
mod tests;
