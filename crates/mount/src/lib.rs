//! A datastore mounted as a directory through FUSE: the only crate that knows fuser.
//!
//! [`mount`] mounts a [`FileService`](lockstep_driver::client::FileService) and answers the requests of the kernel until
//! [`Mounted`] unmounts. The crate knows no configuration, no control socket and no runtime: [`MountOptions`] says where and
//! how to mount. `docs/ARCHITECTURE.md` names each file.
//!
//! The rooms, from below:
//! - [`hold`]: descriptors that outlive the process,
//! - `device`: mount point, FUSE device and reading threads,
//! - `memory`: the facts of a mount that the next process has to know,
//! - `kernel_cache`: the kernel's caches, and their drop,
//! - `admission`: a request runs, waits or is refused,
//! - `resume`: the mount of a killed process goes on,
//! - `requests`: one file for each family of requests,
//! - `role` and `mounted`: the life of a mount.

mod admission;
mod device;
mod error;
pub mod hold;
mod kernel_cache;
mod memory;
mod mounted;
mod options;
mod requests;
mod resume;
mod role;
mod worker;

pub use device::mount_point::{BareEntries, bare_entries};
pub use device::mount_table;
pub use error::MountError;
pub use kernel_cache::guard::run_guard;
pub use kernel_cache::invalidator::run_invalidator;
pub use kernel_cache::write_back::write_back;
pub use mounted::{Mounted, Unmounted, check, end_left, mount};
pub use options::{MountNotice, MountOptions};
