//! The vocabulary of all crates: identifiers, operations, limits, errors, and the traits of the backing.
//!
//! This crate does no input or output, reads no clock and starts no thread. Every other crate may depend on this
//! crate; this crate depends on no other crate of Lockstep.

pub mod attr;
pub mod backing;
pub mod coverage;
pub mod creation;
pub mod errno;
pub mod hash;
pub mod id;
pub mod inode_flags;
pub mod limits;
pub mod mode;
pub mod mutants;
pub mod name;
pub mod op;
pub mod resync_status;
pub mod settings;
pub mod snapshot;
pub mod sync_standing;
pub mod time;
pub mod xattr;

pub use attr::{Attr, NodeKind};
pub use errno::Errno;
pub use hash::Hash128;
pub use id::{
    BootId, DatastoreUuid, Generation, Ino, Osn, StateVersion, StoreId, SyncId, WitnessId,
    WriteVerifier,
};
pub use inode_flags::InodeFlags;
pub use name::FileName;
pub use op::{AllocateMode, MetaOp, MetaRequest, NameRemoval, RenameMode, XattrMode};
pub use resync_status::{ResyncPhase, ResyncStatus, ResyncWait};
pub use settings::{Choice, Durability, Encryption, OnPeerLoss, Role};
pub use snapshot::ino::SnapshotIno;
pub use snapshot::{SnapshotId, SnapshotKind, SnapshotName, SnapshotNameError};
pub use sync_standing::{Lineage, SyncCount, SyncNames, SyncStanding};
pub use time::Timestamp;
pub use xattr::XattrNamespace;
