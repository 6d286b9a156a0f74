//! A disk that forgets unsynced changes. [`disk`] is the model, in memory. [`Lossy`] is the same model as a
//! mounted file system, for tests of unchanged programs. Never shipped.
//!
//! Reads see each change at once; the disk keeps a change only after a sync, by the rules of [`disk`]. The
//! rules are harsher than ext4 and XFS, because they are exactly the promises of [`lockstep_types::backing`]:
//! the sync of a new file does not cover its name.

pub mod disk;
pub mod random;

mod fuse;
mod gate;
mod mounted;
mod syncs;

pub use mounted::Lossy;
