//! Bringing a secondary up to date: resync after a long absence, distributed recovery after a
//! short absence (paper, section 4.2).
//!
//! [`namespace`], [`content`] and [`recovery`] run on the primary, read a view of its store, and send requests; [`secondary`]
//! answers, and changes its store. Both sides use the traits of [`api`], and know of no connections, threads or protocol core.
//! No code of this crate may change the primary's store.

pub mod api;
pub mod arrival;
pub mod bits;
pub mod content;
mod described;
mod file_times;
mod file_walk;
pub mod limits;
pub mod namespace;
mod open_files;
pub mod pieces;
mod pipeline;
pub mod progress;
pub mod recovery;
pub mod secondary;
mod source;
mod summed_content;
mod suspect;
pub mod touched;

pub use api::{
    AnswerError, LockClaim, Locks, Operations, Peer, PeerBase, PeerError, PendingAnswer,
    ResyncError,
};
pub use content::{send_again, send_content};
pub use namespace::{NewResync, ResyncStart, SentImage, send_image, send_tail};
pub use progress::{Counter, JobProgress};
pub use recovery::recover_ranges;
pub use secondary::answer;
pub use source::ResyncSource;
pub use touched::{FirstTouched, TouchedPlaces};
