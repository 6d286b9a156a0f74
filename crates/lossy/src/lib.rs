//! A disk that forgets what was not synced: [`disk`] is the model, in memory; [`Lossy`] is that
//! same model as a mounted file system, for programs that are to be tested as they are. Never shipped.
//!
//! Everything that changes such a disk is seen at once and kept only once it was synced, by the
//! rules of [`disk`]. They are harsher than those of ext4 and XFS, as they are what
//! [`lockstep_types::backing`] promises and nothing more: the sync of a new file says nothing of its
//! name.

pub mod disk;
pub mod random;

mod fuse;
mod gate;
mod mounted;
mod syncs;

pub use mounted::Lossy;
