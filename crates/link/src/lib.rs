//! The authenticated, framed connection between two nodes, which carries the data path.
//!
//! [`dial`] and [`accept`] make a [`Connection`]. Both ends authenticate by TLS 1.3 with certificates pinned by
//! [`Fingerprint`]. Then frames travel both ways: through TLS, or, on a dedicated replication link, in clear under
//! checksums with keys from the TLS handshake. The crate uses plain threads and blocking sockets: an asynchronous
//! runtime between a request and its thread costs more than the work itself.
//!
//! Invariants: a node sends no byte of a caller's frame to a peer without a pinned fingerprint, and takes none from it.
//! A frame is delivered whole and unchanged, once and in the order of sending, or the connection is lost. Every buffer
//! has a bound that no peer can exceed.
//!
//! [`rpc`] has the same authentication for connections that carry remote procedure calls instead of frames.
//! [`PreAuthLimiter`] and [`WarningLimiter`] bound what unauthenticated peers take of a listener, and of its log.
//!
//! This crate does not know the meaning of a frame, keeps no state across connections, does not reconnect, and does not
//! log.

mod admission;
pub mod connection;
pub mod error;
mod fingerprint;
pub mod frame;
pub mod identity;
mod options;
mod outbox;
mod outgoing;
mod payload;
mod receiver;
pub mod rpc;
mod sender;
mod socket;
pub mod sums;
mod tls;
pub mod transport;
mod warning_limiter;
mod wire;

pub use admission::{AdmissionGuard, ConnectionSource, PreAuthLimiter};
pub use connection::{Connection, accept, dial};
pub use error::LinkError;
pub use fingerprint::{Fingerprint, FingerprintError};
pub use frame::{FrameError, FrameRef};
pub use identity::Identity;
pub use options::LinkOptions;
pub use outgoing::{ENQUEUE_BYTES_MAX, POST_QUEUE_BYTES_MAX, QUEUE_BYTES_MAX};
pub use payload::Payload;
pub use receiver::Receiver;
pub use sender::Sender;
pub use transport::{ReceiveFrames, SendFrames};
pub use warning_limiter::{DueWarning, WarningLimiter};
