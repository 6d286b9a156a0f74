//! The state of this node on stable storage beside the content of the store: the role file, the tables of writes in flight, the
//! marks of a failed disk, and the count of the sync in the memory of the machine.

pub(crate) mod copy_status;
mod error;
pub(crate) mod machine_count;
pub(crate) mod poison_marker;
pub(crate) mod role_file;
pub(crate) mod tables;

pub use error::DatastoreError;
pub(crate) use error::{failed, refused, table_refused};

/// Begins the names of files in the directory of the store that lose their name at once. A spill file is one of them.
pub(crate) const SCRATCH_PREFIX: &str = "waiting.";
