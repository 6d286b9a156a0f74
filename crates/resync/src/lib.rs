//! Bringing a secondary up to date: resync after a long absence, distributed recovery after a
//! short one (paper, section 4.2).
//!
//! [`namespace`], [`primary`] and [`recovery`] ask and send, [`secondary`] answers. They work on stores and on the
//! two traits below, so that neither knows of connections, threads or the protocol core. Nothing
//! here may change the primary's store.

pub mod bits;
mod line;
pub mod namespace;
pub mod pieces;
pub mod primary;
pub mod progress;
pub mod recovery;
pub mod secondary;

use std::time::Duration;

use lockstep_fs::{OpError, StoreError};
use lockstep_repl::core::LockSet;
use lockstep_repl::message::{Request, Response};
use thiserror::Error;

pub use namespace::{send_image, send_tail};
pub use primary::send_content;
pub use progress::Progress;
pub use recovery::recover_ranges;
pub use secondary::answer;

/// The secondary, as the primary sees it. Several threads may ask at once.
pub trait Peer: Sync {
    /// Asks and waits for the answer. `payload` is at most [`WRITE_BYTES_MAX`] bytes.
    ///
    /// [`WRITE_BYTES_MAX`]: lockstep_types::limits::WRITE_BYTES_MAX
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError>;

    /// Asks, and leaves the wait for the answer to the caller, who may ask more meanwhile: the secondary
    /// answers in the order in which it was asked. An answer that is not waited for is lost.
    fn begin(&self, request: Request, payload: &[u8]) -> Asked<'_> {
        let answer = self.ask(request, payload);
        Box::new(move || answer)
    }
}

/// Waits for the answer to a question that was asked.
pub type Asked<'a> = Box<dyn FnOnce() -> Result<Response, PeerError> + 'a>;

/// The lock manager, as somebody sees it who is no client, and the time it works in.
pub trait Locks: Sync {
    /// Runs `body` while `locks` are held, once, or fails without running it.
    fn with_locks(
        &self,
        locks: LockSet,
        body: &mut dyn FnMut() -> Result<(), ResyncError>,
    ) -> Result<(), ResyncError>;

    /// Asks for `locks`.
    fn claim(&self, locks: LockSet) -> Result<Box<dyn Claim + '_>, ResyncError>;

    /// Lets that time pass, with no locks held: operations that are under way get further meanwhile.
    fn pause(&self, time: Duration);
}

/// Locks that were asked for. Dropped, they are given back.
pub trait Claim {
    /// Whether they are held.
    fn is_held(&self) -> bool;

    /// Waits until they are.
    fn wait(&mut self) -> Result<(), ResyncError>;
}

/// The clients' metadata operations, as somebody sees them who carries the namespace over.
pub trait Operations: Sync {
    /// Few of their changes are left to send: those that wait for that may begin.
    fn caught_up(&self);
}

/// Why the peer did not answer what was asked.
#[derive(Debug, Error)]
pub enum PeerError {
    /// The connection is gone.
    #[error("the connection to the peer was lost; it starts anew when the peer is back")]
    Lost,
    /// The peer could not do it.
    #[error("the peer could not {what}: {reason}")]
    Failed {
        /// What it was asked for.
        what: &'static str,
        /// What it says.
        reason: String,
    },
    /// The answer is none to what was asked.
    #[error("the peer gave an answer that does not fit the question to {what}")]
    Unexpected {
        /// What it was asked for.
        what: &'static str,
    },
}

/// Why a resync, a recovery or a comparison was given up.
#[derive(Debug, Error)]
pub enum ResyncError {
    /// The peer did not answer.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Our own store failed.
    #[error("this node: {0}")]
    Store(#[from] OpError),
    /// A run of records could not be put in bytes.
    #[error("a run of records of the namespace could not be encoded: {0}")]
    Encode(#[from] postcard::Error),
    /// The node is stopping, or has another role now.
    #[error("given up: {why}")]
    Stopped {
        /// What happened.
        why: String,
    },
}

impl From<StoreError> for ResyncError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

/// Asks for something to which there is no answer but that it is done.
pub(crate) fn order(
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

/// Asks what differs: a bit per thing asked about.
pub fn ask_differing(
    peer: &dyn Peer,
    what: &'static str,
    request: Request,
) -> Result<Vec<u8>, ResyncError> {
    match peer.ask(request, &[])? {
        Response::Differing(bits) => Ok(bits),
        _ => Err(PeerError::Unexpected { what }.into()),
    }
}
