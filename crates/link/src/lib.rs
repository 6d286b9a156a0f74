//! The authenticated, framed connection between two nodes: what the data path speaks.
//!
//! A [`Connection`] is made by [`dial`] or [`accept`]. Both ends prove who they are by TLS 1.3 with
//! certificates pinned by [`Fingerprint`]; after that frames travel both ways, through TLS or, on a
//! dedicated replication link, in clear under checksums keyed by the handshake. Plain threads and
//! blocking sockets: a runtime between a request and its thread costs more than the work.
//!
//! Invariants: no byte of a caller's frame is sent to, or taken from, a peer whose fingerprint is
//! not pinned; a frame is delivered whole and unchanged, in the order it was sent, once, or the
//! connection is lost; every buffer is bounded before a peer can fill it.
//!
//! Nothing here knows what a frame means, keeps state across connections, reconnects, or logs.

pub mod connection;
pub mod error;
pub mod frame;
pub mod halves;
pub mod identity;
mod receiver;
pub mod sender;
mod socket;
pub mod sums;
mod tls;
mod wire;

pub use connection::{Connection, LinkOptions, accept, dial};
pub use error::LinkError;
pub use frame::{FrameError, FrameRef};
pub use halves::{ReceiveFrames, SendFrames};
pub use identity::{Fingerprint, Identity};
pub use receiver::Receiver;
pub use sender::Sender;
