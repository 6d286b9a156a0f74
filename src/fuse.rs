//! A datastore mounted as a directory through FUSE.
//!
//! This file holds the life of a mount. [`mount`] checks the mount point, mounts, and starts to answer requests.
//! [`Mounted`] reports the end of the mount, and unmounts. `adaptor` has one callback for each kind of request.
//!
//! Invariants:
//! - If [`mount`] fails, it leaves no mount behind and has changed nothing.
//! - Once [`Mounted::unmount`] has returned, no request reaches the service any more.
//! - If answering a request panics, the program gets an I/O error, and [`Mounted::take_event`] reports the panic.
//!
//! This module must never block one of its threads on an operation that waits for the peer or for a flush of the
//! disk: such operations answer through completions (see [`lockstep_driver::client`]).

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Config, Session, SessionACL};
use lockstep_driver::client::FileService;

use crate::config::FUSE_THREADS_DEFAULT;
use adaptor::Adaptor;
use context::Context;
use kernel_cache::KernelCache;
use mount_point::{MountPoint, UnmountAttempt};
use page_cache::PageCache;
use request_queue::RequestQueue;
use session_end::SessionEnd;

mod adaptor;
mod attributes;
mod content;
mod context;
mod create;
mod error;
mod extended;
mod init;
mod kernel_cache;
mod listing;
mod mount_point;
pub mod mount_table;
mod names;
mod page_cache;
mod privileges;
mod refuse;
mod reply;
mod request_gate;
mod request_queue;
mod session_end;
mod setattr;
mod write;

pub use error::MountError;
pub use mount_point::{BareEntries, bare_entries};

/// Pause between two attempts to unmount a busy mount.
const BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Where and how to mount a datastore.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Directory to mount on.
    pub mount_point: PathBuf,
    /// Name of the datastore; the mount table shows `lockstep:NAME`.
    pub name: String,
    /// Number of threads that take requests from the kernel, at least one.
    pub threads: usize,
    /// How long [`Mounted::unmount`] waits for programs to stop using the mount.
    pub grace: Duration,
}

impl MountOptions {
    /// Options with the default number of threads, and two seconds of grace.
    pub fn new(mount_point: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Self {
            mount_point: mount_point.into(),
            name: name.into(),
            threads: FUSE_THREADS_DEFAULT,
            grace: Duration::from_secs(2),
        }
    }
}

/// How an unmount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// No program used the mount any more.
    Clean,
    /// Programs still held files or directories open. The mount left the mount namespace, and operations on these
    /// files and directories fail with an I/O error from now on.
    Detached,
}

/// A mounted datastore. A drop unmounts too, without grace.
#[derive(Debug)]
pub struct Mounted {
    point: MountPoint,
    context: Arc<Context>,
    grace: Duration,
    released: bool,
}

/// Checks, before there is a service, whether [`mount`] could use the mount point and the kernel. Unmounts a dead
/// mount of the same datastore.
///
/// # Errors
/// The [`MountError`] that [`mount`] would return.
pub fn check(options: &MountOptions) -> Result<(), MountError> {
    MountPoint::check(&options.mount_point, &options.name)
}

/// Mounts `service` and starts to answer requests.
///
/// # Errors
/// A [`MountError`] with cause and cure; then nothing is mounted.
pub fn mount(service: Arc<dyn FileService>, options: &MountOptions) -> Result<Mounted, MountError> {
    let session_end = Arc::new(SessionEnd::default());
    let kernel_cache = Arc::new(KernelCache::default());
    let page_cache =
        PageCache::new(Arc::clone(&kernel_cache)).map_err(|source| MountError::Session {
            mount_point: options.mount_point.clone(),
            source,
        })?;
    let context = Arc::new(Context::new(
        service,
        Arc::clone(&session_end),
        kernel_cache,
        Arc::new(page_cache),
    ));
    let (point, device) = MountPoint::mount(&options.mount_point, &options.name)?;
    let mounted = Mounted {
        point,
        context: Arc::clone(&context),
        grace: options.grace,
        released: false,
    };
    let session = open_session(device, &context, options)?;
    context.kernel_cache().connect(session.notifier());
    serve(session, session_end, options)?;
    tracing::info!(mount = %options.mount_point.display(), name = options.name, "mounted");
    Ok(mounted)
}

/// Opens the session: negotiates capabilities and limits with the kernel.
fn open_session(
    device: OwnedFd,
    context: &Arc<Context>,
    options: &MountOptions,
) -> Result<Session<Adaptor>, MountError> {
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(options.threads);
    config.clone_fd = true;
    RequestQueue::of(&device)
        .map(|queue| Adaptor::new(Arc::clone(context), queue))
        .and_then(|adaptor| Session::from_fd(adaptor, device, SessionACL::All, config))
        .map_err(|source| MountError::Init {
            mount_point: options.mount_point.clone(),
            source,
        })
}

/// Starts the threads that answer requests until the mount is gone.
fn serve(
    session: Session<Adaptor>,
    session_end: Arc<SessionEnd>,
    options: &MountOptions,
) -> Result<(), MountError> {
    let mount_point = options.mount_point.clone();
    let failed = |mount_point| {
        move |source| MountError::Session {
            mount_point,
            source,
        }
    };
    let run = {
        let mount_point = mount_point.clone();
        move || session_end.end(session_outcome(session.run()).map_err(failed(mount_point)))
    };
    thread::Builder::new()
        .name("fuse".to_owned())
        .spawn(run)
        .map_err(failed(mount_point))?;
    Ok(())
}

/// Tells a failed session from one that an unmount has ended. At an unmount the kernel reports to most threads
/// that the device is gone. A thread that takes a request at that moment gets `ECONNABORTED` instead.
fn session_outcome(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
        other => other,
    }
}

impl Mounted {
    /// Takes the next event that the owner must know: an error for each failure in answering, after which the
    /// mount may still exist; or `Ok` if the mount has ended for any reason.
    pub fn take_event(&self) -> Option<Result<(), MountError>> {
        self.context.session_end().take_event()
    }

    /// Path of the mount point.
    pub fn mount_point(&self) -> &std::path::Path {
        self.point.path()
    }

    /// Unmounts. Detaches the mount if programs use it for longer than the grace.
    ///
    /// # Errors
    /// Only when the kernel refuses both; then the mount still exists but answers no requests any more.
    pub fn unmount(mut self) -> Result<Unmounted, MountError> {
        let grace = self.grace;
        self.release(grace)
    }

    fn release(&mut self, grace: Duration) -> Result<Unmounted, MountError> {
        self.released = true;
        let outcome = self.unmount_within(grace);
        self.context.close();
        outcome
    }

    fn unmount_within(&self, grace: Duration) -> Result<Unmounted, MountError> {
        let deadline = Instant::now() + grace;
        while let UnmountAttempt::Busy = self.point.unmount()? {
            if Instant::now() >= deadline {
                return self.detach();
            }
            thread::sleep(BUSY_RETRY_INTERVAL);
        }
        // A copy of the mount in another mount namespace keeps the file system alive.
        let ended = self
            .context
            .session_end()
            .wait_until(deadline + BUSY_RETRY_INTERVAL);
        Ok(if ended {
            Unmounted::Clean
        } else {
            Unmounted::Detached
        })
    }

    fn detach(&self) -> Result<Unmounted, MountError> {
        self.point.detach()?;
        let path = self.point.path().display();
        tracing::warn!(mount = %path, "still in use: detached, open files in it now fail");
        Ok(Unmounted::Detached)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        if let Err(error) = self.release(Duration::ZERO) {
            tracing::warn!(%error, "the mount is left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmount_in_the_middle_of_a_request_is_no_failure() {
        const ABORTED: i32 = rustix::io::Errno::CONNABORTED.raw_os_error();
        const BROKEN: i32 = rustix::io::Errno::IO.raw_os_error();
        let outcome = |errno| session_outcome(Err(io::Error::from_raw_os_error(errno)));
        assert!(outcome(ABORTED).is_ok());
        assert_eq!(outcome(BROKEN).unwrap_err().raw_os_error(), Some(BROKEN));
        assert!(session_outcome(Ok(())).is_ok());
    }
}
