//! The options of a mount.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::config::FUSE_THREADS_DEFAULT;
use lockstep_types::settings::Standby;

use crate::error::MountError;
use crate::hold::DescriptorStore;

/// Where and how to mount a datastore.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Directory to mount on.
    pub mount_point: PathBuf,
    /// Name of the datastore; the mount table shows `lockstep:NAME`.
    pub name: String,
    /// Number of threads that take requests from the kernel, at least one.
    pub threads: usize,
    /// How long an unmount waits for programs to stop using the mount.
    pub grace: Duration,
    /// The place that keeps the mount if this process is killed.
    pub descriptors: Arc<DescriptorStore>,
    /// Name of the mount in that place.
    pub held_name: String,
    /// This program, for the child process of a held mount (see `invalidator`). Without it the process of the mount does
    /// that work.
    pub program: Option<PathBuf>,
    /// The other node may take over while this process does nothing for this time: a guard drops the kernel's caches then.
    pub lease: Option<Duration>,
    /// The answer to programs while this node does not serve the datastore.
    pub standby: Standby,
    /// Learns of the events of the mount.
    pub notice: MountNotice,
}

/// A function that is called when there is an event for [`crate::Mounted::take_event`], from any thread. It must not wait.
#[derive(Clone)]
pub struct MountNotice(Arc<dyn Fn() + Send + Sync>);

impl MountNotice {
    /// Calls `notice` at each event.
    pub fn new(notice: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(notice))
    }

    pub(crate) fn give(&self) {
        (self.0)();
    }
}

impl Default for MountNotice {
    /// A notice without an effect.
    fn default() -> Self {
        Self::new(|| ())
    }
}

impl std::fmt::Debug for MountNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountNotice").finish_non_exhaustive()
    }
}

impl MountOptions {
    /// Options with the default number of threads, and two seconds of grace. The mount ends with the process.
    pub fn new(mount_point: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            mount_point: mount_point.into(),
            threads: FUSE_THREADS_DEFAULT,
            grace: Duration::from_secs(2),
            descriptors: Arc::default(),
            program: None,
            lease: None,
            standby: Standby::default(),
            notice: MountNotice::default(),
            held_name: format!("lockstep.{name}"),
            name,
        }
    }

    /// The program of a child process that makes calls which wait, if this mount needs one: if it outlives this process.
    pub(crate) fn helper_program(&self) -> Option<&Path> {
        let program = self.program.as_deref();
        program.filter(|_| self.descriptors.exists())
    }

    /// The program of the guard of this mount, if it needs one.
    pub(crate) fn guard_program(&self) -> Option<&Path> {
        self.program.as_deref().filter(|_| self.lease.is_some())
    }

    /// The error of a mount with these options.
    pub(crate) fn failed(&self, source: io::Error) -> MountError {
        MountError::Session {
            mount_point: self.mount_point.clone(),
            source,
        }
    }
}
