//! The secondary as the primary's requests reach it, over one connection.
//!
//! Invariants: after the loss of the connection every request fails, and none goes over a later connection. A caller with
//! [`AnswerLimits`] waits for no answer beyond them.

use std::sync::Arc;
use std::time::Duration;

use lockstep_paw_saw::SyncCounter;
use lockstep_repl::message::{Message, Request, Response};
use lockstep_resync::{Peer, PeerError, PendingAnswer, ResyncError};
use lockstep_types::SyncId;
use lockstep_types::mutants::{Mutant, is_active};

use crate::host::oneshot::PromiseOutcome;
use crate::peer::connection::{ActiveConnection, Delivery};
use crate::peer::requests::PendingRequests;
use crate::replication::Replication;

/// The peer may take this many times longer over a request that goes through a whole store.
const WHOLE_STORE_FACTOR: u64 = 10;

/// See the head of this file.
pub(crate) struct RemotePeer {
    pub replication: Arc<Replication>,
    requests: Arc<PendingRequests>,
    pub connection: Arc<ActiveConnection>,
    limits: Option<AnswerLimits>,
}

/// How long a caller waits for answers who must go on without them. The connection has limits of its own (rule P15), and stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerLimits {
    /// The moment after which no answer helps any more, by the host's clock. Nothing is asked after it.
    pub until: Duration,
    /// The longest time for one answer.
    pub each: Duration,
}

impl RemotePeer {
    /// The peer over `connection`.
    pub const fn new(
        replication: Arc<Replication>,
        requests: Arc<PendingRequests>,
        connection: Arc<ActiveConnection>,
    ) -> Self {
        Self {
            replication,
            requests,
            connection,
            limits: None,
        }
    }

    /// The same peer, for a caller who waits no longer than this.
    pub fn within(self, limits: AnswerLimits) -> Self {
        let limits = Some(limits);
        Self { limits, ..self }
    }

    /// Whether the connection stands, and the session goes on.
    pub fn is_standing(&self) -> bool {
        !self.replication.is_over() && self.replication.peer.get(self.connection.id).is_some()
    }

    /// Number of beats that the peer may take over a request. A request that syncs or tidies a whole store takes
    /// longer in a larger store.
    fn beats_allowed(&self, request: &Request) -> u64 {
        let limit = self
            .replication
            .engine
            .config
            .current()
            .answer_limit_beats();
        match request {
            Request::BeginResync { .. }
            | Request::FlushImage
            | Request::EndImage { .. }
            | Request::BeginArrival { .. }
            | Request::InSync { .. } => limit.saturating_mul(WHOLE_STORE_FACTOR),
            _ => limit,
        }
    }

    /// Ends the connection, because a job over it has failed.
    pub fn end(&self, error: &ResyncError) {
        if matches!(error, ResyncError::Peer(PeerError::Lost)) {
            self.end_lost();
        } else {
            self.connection.give_up(&error.to_string());
        }
    }

    /// Ends a connection that is lost already.
    pub fn end_lost(&self) {
        self.connection.sender.shutdown("it is lost");
    }
}

impl Peer for RemotePeer {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        self.begin(request, payload)()
    }

    fn begin(&self, request: Request, payload: &[u8]) -> PendingAnswer<'_> {
        let what = describe(&request);
        let limit = self.beats_allowed(&request);
        let answered = AnswerMeaning::of(&request);
        let engine = &*self.replication.engine;
        let host = &*engine.host;
        let until = match self.limits {
            None => None,
            Some(limits) if host.now() >= limits.until => {
                return Box::new(move || Err(PeerError::Late { what }));
            }
            Some(limits) => Some(limits.until.min(host.now() + limits.each)),
        };
        let awaited = self.requests.begin(host, limit, payload.len(), |id| {
            let message = Message::Request { id, request };
            let connection = &self.connection;
            self.replication
                .send_on(connection, message, payload.into(), Delivery::Wait)
        });
        Box::new(move || {
            let answer = match (awaited, until) {
                (None, _) => PromiseOutcome::Never,
                (Some(awaited), None) => awaited
                    .get()
                    .map_or(PromiseOutcome::Never, PromiseOutcome::Fulfilled),
                (Some(awaited), Some(until)) => awaited.get_until(host, until),
            };
            match answer {
                PromiseOutcome::Fulfilled(Ok(response)) => {
                    answered.note(&engine.disk.count);
                    Ok(response)
                }
                PromiseOutcome::Fulfilled(Err(reason)) => Err(PeerError::Failed { what, reason }),
                PromiseOutcome::Never => Err(PeerError::Lost),
                PromiseOutcome::Late => Err(PeerError::Late { what }),
            }
        })
    }
}

/// The meaning of an answer for the count of the sync (rule P17).
#[derive(Clone, Copy)]
enum AnswerMeaning {
    /// The secondary takes part in this resync.
    Begun(SyncId),
    /// The secondary has changed its copy.
    Changed,
    Nothing,
}

impl AnswerMeaning {
    fn of(request: &Request) -> Self {
        match request {
            Request::BeginResync { sync, .. } => Self::Begun(*sync),
            request if request.is_of_resync() && !is_active(Mutant::FinishedOfOtherCopy) => {
                Self::Changed
            }
            _ => Self::Nothing,
        }
    }

    fn note(self, count: &SyncCounter) {
        match self {
            Self::Begun(sync) => count.begin(sync),
            Self::Changed => count.note_acknowledged(),
            Self::Nothing => {}
        }
    }
}

/// The purpose of a request, for operators.
const fn describe(request: &Request) -> &'static str {
    match request {
        Request::RecoverRange { .. } => "recover a range",
        Request::RecoveryDone { .. } => "end the recovery",
        Request::Marks { .. } => "tell its marks",
        Request::BeginResync { .. } => "begin a resync",
        Request::ImageChunk
        | Request::CompareRecords { .. }
        | Request::ImageChanges
        | Request::FlushImage
        | Request::EndImage { .. } => "take over the namespace",
        Request::SetFiles { .. } => "settle files",
        Request::WriteBlocks { .. } => "write blocks",
        Request::Reserve { .. } => "reserve space",
        Request::CompareRun { .. }
        | Request::CompareBlocks { .. }
        | Request::CompareSums { .. }
        | Request::CompareHole { .. } => "compare content",
        Request::DigestOfBatch { .. }
        | Request::Digests { .. }
        | Request::Inspect { .. }
        | Request::Records { .. } => "compare",
        Request::InspectBlocks { .. } | Request::ReadBlocks { .. } => "read blocks from its disk",
        Request::HealBlocks { .. } => "heal blocks",
        Request::RemakeSums { .. } => "make sums anew",
        Request::KeepBlocks { .. } => "keep blocks aside",
        Request::Snapshots => "tell its snapshots",
        Request::BeginArrival { .. }
        | Request::ReadArrival
        | Request::PutArrival { .. }
        | Request::EndArrival => "let a snapshot arrive",
        Request::InSync { .. } => "mark itself in sync",
        Request::Room { .. } => "tell the room on its disk",
    }
}
