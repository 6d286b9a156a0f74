//! How long the kernel may cache what an answer brings.
//!
//! Every change of names and attributes comes through this mount, so the kernel knows of it. There are three exceptions. A
//! change of content clears set-id bits, and a read shows the end of an append before the kernel knows it: then
//! [`KernelCache::expire`](super::notifications::KernelCache::expire) notifies the kernel. And the other node may serve:
//! before that the kernel drops its caches (`cache_drop`, `guard`), and keeps nothing of an answer that comes later.

use std::sync::Arc;
use std::time::Duration;

use fuser::INodeNo;
use lockstep_driver::client::FileService;
use lockstep_types::{Ino, SnapshotIno};

/// The kernel may not cache the answer.
pub(crate) const NOT_AT_ALL: Duration = Duration::ZERO;

/// How long the kernel may cache names and attributes.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

/// The same where it cannot be told in time that they are wrong.
const SHORT: Duration = Duration::from_secs(1);

/// Whether this is one of the directories above the snapshots.
fn is_changed_elsewhere(directory: INodeNo) -> bool {
    let at = Ino::new(directory.0).and_then(SnapshotIno::of);
    at.is_some_and(SnapshotIno::is_above)
}

/// The lifetimes in the answers of one mount.
#[derive(Clone)]
pub(crate) struct CacheLifetimes {
    service: Arc<dyn FileService>,
    has_epochs: bool,
}

impl CacheLifetimes {
    /// The lifetimes on a kernel that can drop all names at a change of the role (`has_epochs`, Linux 6.16), or cannot.
    pub const fn new(service: Arc<dyn FileService>, has_epochs: bool) -> Self {
        Self {
            service,
            has_epochs,
        }
    }

    /// The lifetime of names in an answer of this moment, and of attributes that the kernel has asked for. On a kernel that
    /// cannot drop all names, they end at the end of the lease.
    pub fn of_names(&self) -> Duration {
        if self.has_epochs && self.service.serves() {
            LONG
        } else {
            self.of_new_inode()
        }
    }

    /// The lifetime of names in a directory, and of its attributes. Snapshots come, go and change their names without a request of the mount.
    pub fn of_names_in(&self, directory: INodeNo) -> Duration {
        if is_changed_elsewhere(directory) {
            NOT_AT_ALL
        } else {
            self.of_names()
        }
    }

    /// The lifetime in an answer that brings an inode of a directory with one lifetime for the name and the attributes. If the kernel does not
    /// know the inode while it drops its caches, and takes the answer up after that, it keeps the attributes. So they end at
    /// the end of the lease, and soon without one. Where attributes have a lifetime of their own, such an answer gives them none.
    pub fn of_new_inode_in(&self, directory: INodeNo) -> Duration {
        if is_changed_elsewhere(directory) {
            NOT_AT_ALL
        } else {
            self.of_new_inode()
        }
    }

    /// The same for an inode in a directory of the present.
    pub fn of_new_inode(&self) -> Duration {
        self.service.serves_for().min(SHORT)
    }

    /// How long the kernel keeps names after a drop of its caches.
    pub const fn after_drop(&self) -> Duration {
        if self.has_epochs { NOT_AT_ALL } else { SHORT }
    }
}
