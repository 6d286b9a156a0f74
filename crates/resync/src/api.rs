//! The traits through which resync, recovery and comparison reach the peer, the locks and the clients' operations; and
//! their errors.
//!
//! The driver implements the traits. `lockstep-verify` uses them, too.

use std::time::Duration;

use lockstep_fs::store::{ChangedRecords, DeltaAccess, DeltaWalk};
use lockstep_fs::{OpError, StoreError};
use lockstep_repl::core::LockSet;
use lockstep_repl::message::{Request, RequestFailure, Response};
use lockstep_types::{Generation, Ino, Osn};
use thiserror::Error;

/// The secondary, as the primary sees it. Several threads may ask at once.
pub trait Peer: Sync {
    /// Sends a request and waits for the answer. `payload` has at most [`WRITE_BYTES_MAX`] bytes.
    ///
    /// [`WRITE_BYTES_MAX`]: lockstep_types::limits::WRITE_BYTES_MAX
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError>;

    /// Sends a request and leaves the wait for the answer to the caller, which may send more requests before. The
    /// secondary answers in the order of the requests. An answer is lost if the caller does not wait for it.
    fn begin(&self, request: Request, payload: &[u8]) -> PendingAnswer<'_> {
        let answered = self.ask(request, payload);
        Box::new(move || answered)
    }
}

/// The state from which the secondary's copy can be brought up to date by a delta of the primary's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerBase {
    /// The generation in which both copies were equal but for the operations in flight.
    pub generation: Generation,
    /// The last metadata operation that the secondary has applied.
    pub applied: Osn,
}

impl PeerBase {
    /// Whether the primary has a delta since this base.
    pub fn has_delta(self, delta: DeltaAccess<'_>) -> bool {
        self.records(delta).is_some()
    }

    /// The records that may differ, if the primary has a delta since this base.
    pub(crate) fn records(self, delta: DeltaAccess<'_>) -> Option<ChangedRecords> {
        delta.records(self.generation, self.applied)
    }

    /// Begins to make the content equal, under the same condition.
    pub(crate) fn begin_walk(self, delta: DeltaAccess<'_>) -> Option<DeltaWalk> {
        delta.begin_walk(self.generation, self.applied)
    }
}

/// Waits for the answer to a sent request.
pub type PendingAnswer<'a> = Box<dyn FnOnce() -> Result<Response, PeerError> + 'a>;

/// The lock manager, for callers other than clients, with its clock and their pace.
pub trait Locks: Sync {
    /// Runs `body` once while `locks` are held, or fails without a run.
    fn with_locks(
        &self,
        locks: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError>;

    /// Asks for `locks`.
    fn claim(&self, locks: LockSet) -> Result<Box<dyn LockClaim + '_>, ResyncError>;

    /// Lets `time` pass without locks, so that operations under way get further.
    fn pause(&self, time: Duration);

    /// Whether the caller may begin its next piece of work (rule P19). If not, the caller gives all its locks back, and then
    /// waits for its turn.
    fn is_turn(&self) -> bool {
        true
    }

    /// Waits until the caller may begin its next piece of work. The caller holds no locks. May end too early: the connection
    /// is lost then.
    fn wait_for_turn(&self) {}

    /// Notes that the caller has read so many bytes of content.
    fn note_read(&self, _bytes: u64) {}
}

/// A claim on locks. The drop of the claim gives the locks back.
pub trait LockClaim {
    /// Whether the locks are held.
    fn is_held(&self) -> bool;

    /// Waits until the locks are held.
    fn wait(&mut self) -> Result<(), ResyncError>;
}

/// The clients' metadata operations, as the sender of the namespace sees them.
pub trait Operations: Sync {
    /// Few changes are left to send: waiting operations may begin.
    fn caught_up(&self);

    /// The sender has read so many bytes of records, and few changes are left to send. Waits until it may read more
    /// (rule P19). May end too early: the connection is lost then.
    fn take_turn(&self, _bytes: u64) {}
}

/// The reason why the peer did not answer a request.
#[derive(Debug, Error)]
pub enum PeerError {
    /// The connection is gone.
    #[error("the connection to the peer was lost; the work starts again when the peer is back")]
    Lost,
    /// The peer could not carry the request out.
    #[error("the peer could not {what}: {reason}")]
    Failed {
        /// The requested action.
        what: &'static str,
        /// The peer's reason.
        reason: RequestFailure,
    },
    /// The asker has waited for as long as it may. The answer may come later.
    #[error("the peer did not {what} in time")]
    Late {
        /// The requested action.
        what: &'static str,
    },
    /// The answer does not fit the request.
    #[error("the peer gave an answer that does not fit the request to {what}")]
    Unexpected {
        /// The requested action.
        what: &'static str,
    },
}

/// The reason why a resync, a recovery or a comparison was given up.
#[derive(Debug, Error)]
pub enum ResyncError {
    /// The peer did not answer.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// This node's store failed.
    #[error("this node: {0}")]
    Store(#[from] OpError),
    /// Records could not be encoded.
    #[error("a run of records of the namespace could not be encoded: {0}")]
    Encode(#[from] postcard::Error),
    /// The primary's delta has ended meanwhile, for example because too much has changed.
    #[error("too much changes for a resync of what has changed; the next one compares everything")]
    DeltaEnded,
    /// The copies differ at the end of a resync, also after the places that differ were sent again.
    #[error(
        "at the end of the resync {differences} places that it has sent still differ, also after they were sent again: {first}; {next}"
    )]
    Unproved {
        /// The number of places.
        differences: u64,
        /// The first of them.
        first: String,
        /// The next step of the node.
        next: String,
    },
    /// The node is stopping, or has another role now.
    #[error("given up: {why}")]
    Stopped {
        /// The cause.
        why: String,
    },
}

impl From<StoreError> for ResyncError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

/// The reason why the secondary does not carry out a request of a resync, a recovery or a comparison.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say the same")]
pub enum AnswerError {
    #[error(transparent)]
    Store(#[from] OpError),
    #[error("this is not a request of {of}")]
    OtherRequest { of: &'static str },
    #[error("the records cannot be read: {0}")]
    Decode(#[from] postcard::Error),
    #[error("a changed record without a key")]
    NoKey,
    #[error("table {table} is not one that is sent")]
    OtherTable { table: u8 },
    #[error("a changed record of no inode")]
    NoInode,
    #[error("the changed records are not in order, each once")]
    ChangesOutOfOrder,
    #[error("the chunk follows a record of another table")]
    AfterOtherTable,
    #[error("a chunk without records that is not the last")]
    EmptyChunk,
    #[error("the records of the chunk are not in order")]
    ChunkOutOfOrder,
    #[error("a record of an inode cannot be read")]
    BadInode,
    #[error("a size of {bytes} bytes is over the limit")]
    FileTooLong { bytes: u64 },
    #[error("there is no regular file with inode {ino} here")]
    NoFile { ino: Ino },
    #[error("{count} {what} at once are over the limit")]
    TooMany { count: usize, what: &'static str },
    #[error("bytes {offset} and {length} more are in no file")]
    OutsideFile { offset: u64, length: u64 },
    #[error("bytes to recover lie beyond the end of the file")]
    BeyondEnd,
    #[error("the bytes are more or fewer than those that the request names")]
    OtherPayload,
    #[error("the sums are more or fewer than the blocks")]
    OtherSums,
    #[error("byte {offset} is not the first one of a block")]
    WithinBlock { offset: u64 },
}

impl From<StoreError> for AnswerError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

impl From<AnswerError> for RequestFailure {
    fn from(error: AnswerError) -> Self {
        Self(error.to_string())
    }
}

/// Sends a request whose only good answer is that it is done.
pub(crate) fn execute(
    peer: &dyn Peer,
    what: &'static str,
    request: Request,
    payload: &[u8],
) -> Result<(), ResyncError> {
    match peer.ask(request, payload)? {
        Response::Done => Ok(()),
        _ => Err(PeerError::Unexpected { what }.into()),
    }
}

/// The bits of an answer that names differences.
pub(crate) fn differing(what: &'static str, answer: Response) -> Result<Vec<u8>, ResyncError> {
    match answer {
        Response::Differing(bits) => Ok(bits),
        _ => Err(PeerError::Unexpected { what }.into()),
    }
}
