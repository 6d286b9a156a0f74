//! The words every other crate speaks: identifiers, operations, limits, errors, and the traits of
//! the disk below.
//!
//! Nothing here does input or output, reads a clock or starts a thread. Every other crate may
//! depend on this one; it depends on none of them.

pub mod attr;
pub mod backing;
pub mod deliberate;
pub mod errno;
pub mod hash;
pub mod id;
pub mod limits;
pub mod name;
pub mod op;
pub mod probe;
pub mod settings;
pub mod time;
pub mod xattr;

pub use attr::{Attr, NodeKind};
pub use errno::Errno;
pub use hash::Hash128;
pub use id::{BootId, DatastoreUuid, Generation, Ino, Osn, StateVersion, StoreId, SyncId};
pub use name::FileName;
pub use op::{AllocateMode, MetaOp, MetaRequest, RenameMode, XattrMode};
pub use settings::{Choice, Durability, Encryption, OnPeerLoss, Role};
pub use time::Timestamp;
pub use xattr::XattrNamespace;
