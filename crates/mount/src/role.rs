//! The changes of a node's role, as one mount follows them.
//!
//! | change | effect |
//! |---|---|
//! | the node is about to give its role away | the kernel writes its dirty pages back (`write_back`) |
//! | the node gives its role away | the kernel writes its pages back and drops its caches. The datastore waits for that while write-backs come, at most [`DROP_WAIT_MAX`] |
//! | the other node may serve, and this node has not retired before | the kernel drops its caches, in the background |
//! | the other node may serve | waiting write-backs are refused; from now on each append is placed anew (`write`) |
//! | the mount is resumed, and the other node may serve | the same: an earlier process may have served |
//! | it is undecided which node serves | none: the caches are right, and stay |
//! | the lease is over, so the other node may take over unnoticed | the kernel drops its caches, in the background. Dirty pages stay |
//! | an operator gives names back from the trash | the kernel asks for all names again |
//! | the node serves | the waiting requests run (`standby_queue`) |
//!
//! Invariant: an observer that the datastore keeps after the end of the mount holds nothing of the mount.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_driver::client::{FileService, RoleObserver, Standing};
use lockstep_types::Ino;
use parking_lot::Mutex;

use crate::admission::standby_queue::StandbyQueue;
use crate::kernel_cache::cache_drop::CacheDropper;
use crate::kernel_cache::notifications::KernelCache;
use crate::kernel_cache::unfinished_drops::UnfinishedDrops;
use crate::kernel_cache::write_back::WriteBack;

/// How long a node that gives its role away waits for the drop of the kernel's caches. The drop goes on after that.
const DROP_WAIT_MAX: Duration = Duration::from_secs(4);

/// How long it waits if no write-back comes.
const DROP_PAUSE_MAX: Duration = Duration::from_millis(900);

/// The parts of a mount that a change of the role concerns.
pub(crate) struct RoleParts {
    pub queue: Arc<StandbyQueue>,
    /// The drops that are under way.
    pub drops: Arc<UnfinishedDrops>,
    pub dropper: Arc<CacheDropper>,
    pub write_back: WriteBack,
    pub kernel_cache: Arc<KernelCache>,
    /// How long the kernel keeps names after a drop.
    pub names_outlive_drop: Duration,
}

/// The role of the node, as a mount follows it.
pub(crate) struct MountRole {
    parts: RoleParts,
    last: Mutex<Standing>,
}

/// The observer of one mount.
struct MountObserver(Weak<MountRole>);

impl std::fmt::Debug for MountRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountRole").finish_non_exhaustive()
    }
}

impl MountRole {
    /// Follows the role of a node, until the returned value is dropped. `is_resumed`: an earlier process has answered requests
    /// of the mount.
    pub fn observe(service: &dyn FileService, parts: RoleParts, is_resumed: bool) -> Arc<Self> {
        let first = if is_resumed {
            Standing::Undecided
        } else {
            service.standing()
        };
        let role = Arc::new(Self {
            parts,
            last: Mutex::new(first),
        });
        service.observe(Arc::new(MountObserver(Arc::downgrade(&role))));
        // A change before this moment was not told.
        role.changed(service.standing());
        role
    }

    fn begin_drop(&self) -> Receiver<()> {
        self.parts.dropper.begin(Some(self.parts.drops.begin()))
    }

    /// This node may serve again, so the write-backs of this drop wait, and count as those of any other time.
    fn lease_expired(&self) {
        self.parts.dropper.begin(None);
    }

    fn retiring(&self) {
        let start = Instant::now();
        *self.last.lock() = Standing::Retiring;
        // Write-backs that have waited are let in now.
        self.parts.queue.run_parked_soon();
        if !self.await_drop(&self.begin_drop(), start) {
            tracing::warn!("the kernel has not dropped its caches yet");
        }
        thread::sleep(
            self.parts
                .names_outlive_drop
                .saturating_sub(start.elapsed()),
        );
    }

    /// Waits for a drop while write-backs come, unless the drop fails. Returns whether the drop is done.
    fn await_drop(&self, is_done: &Receiver<()>, start: Instant) -> bool {
        while start.elapsed() < DROP_WAIT_MAX {
            let before = self.parts.queue.admitted_write_backs();
            match is_done.recv_timeout(DROP_PAUSE_MAX) {
                Ok(()) => return true,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.parts.queue.admitted_write_backs() == before {
                break;
            }
        }
        false
    }

    /// Notes a standing, and returns the one before. A node that is giving its role away has dropped the kernel's caches: it
    /// is undecided for a moment, and that changes nothing.
    fn note(&self, standing: Standing) -> Option<Standing> {
        let mut last = self.last.lock();
        let is_giving_away = (*last, standing) == (Standing::Retiring, Standing::Undecided);
        (!is_giving_away).then(|| std::mem::replace(&mut *last, standing))
    }

    fn changed(&self, standing: Standing) {
        let Some(before) = self.note(standing) else {
            return;
        };
        if standing == Standing::Following {
            self.parts.dropper.known().note_old_sizes();
        }
        if standing != Standing::Following || before == Standing::Following {
            return;
        }
        if before != Standing::Retiring {
            self.begin_drop();
        }
        self.parts.drops.note_other_node();
        self.parts.queue.refuse_following();
    }
}

impl RoleObserver for MountObserver {
    fn preparing(&self) {
        if let Some(role) = self.0.upgrade() {
            role.parts.write_back.run();
        }
    }

    fn retiring(&self) {
        if let Some(role) = self.0.upgrade() {
            role.retiring();
        }
    }

    fn changed(&self, standing: Standing) {
        if let Some(role) = self.0.upgrade() {
            role.changed(standing);
        }
    }

    fn named(&self, parent: Ino, ino: Ino) {
        if let Some(role) = self.0.upgrade() {
            role.parts.kernel_cache.expire(parent);
            role.parts.kernel_cache.expire(ino);
        }
    }

    fn names_are_new(&self) {
        if let Some(role) = self.0.upgrade() {
            role.parts.dropper.expire_names();
            thread::sleep(role.parts.names_outlive_drop);
        }
    }

    fn lease_expired(&self) {
        if let Some(role) = self.0.upgrade() {
            role.lease_expired();
        }
    }
}
