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
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{Session, SessionACL};
use lockstep_driver::client::FileService;

use crate::admission::context::Context;
use crate::admission::entrance::Entrance;
use crate::admission::standby_queue::StandbyQueue;
use crate::device::init::Negotiator;
use crate::device::mount_point::{MountPoint, UnmountAttempt};
use crate::device::reader_threads::ReaderThreads;
use crate::device::session_end::SessionEnd;
use crate::error::MountError;
use crate::kernel_cache::cache_drop::CacheDropper;
use crate::kernel_cache::invalidator::Invalidator;
use crate::kernel_cache::known_inodes::KnownInodes;
use crate::kernel_cache::lifetimes::CacheLifetimes;
use crate::kernel_cache::notifications::KernelCache;
use crate::kernel_cache::page_cache::PageCache;
use crate::kernel_cache::unfinished_drops::UnfinishedDrops;
use crate::kernel_cache::write_back::WriteBack;
use crate::options::MountOptions;
use crate::requests::adaptor::Adaptor;
use crate::resume::held_mount::{self, HeldMount};
use crate::resume::orphan_probe;
use crate::role::{MountRole, RoleParts};

/// Pause between two attempts to unmount a busy mount.
const BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(20);

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
    queue: Arc<StandbyQueue>,
    session_end: Arc<SessionEnd>,
    /// Follows the role of the node until the end of the mount.
    _role: Arc<MountRole>,
    options: Box<MountOptions>,
    /// The next process can resume the mount.
    is_kept: bool,
    released: bool,
}

/// Checks, before there is a service, whether [`mount`] could use the mount point and the kernel. Unmounts a dead
/// mount of the same datastore.
///
/// # Errors
/// The [`MountError`] that [`mount`] would return.
pub fn check(options: &MountOptions) -> Result<(), MountError> {
    // A mount that an earlier process has left would not answer the check.
    if held_mount::exists(options)? {
        return Ok(());
    }
    MountPoint::check(&options.mount_point, &options.name)
}

/// Ends the mount that an earlier process has left, if there is one.
///
/// # Errors
/// If the place of the mount does not answer.
pub fn end_left(options: &MountOptions, reason: &str) -> Result<(), MountError> {
    held_mount::end(options, reason)
}

/// Mounts `service` and starts to answer requests. If an earlier process has left its mount, resumes that: programs see
/// a pause.
///
/// # Errors
/// A [`MountError`] with cause and cure; then nothing is mounted, or the mount is still left to the next attempt.
pub fn mount(service: Arc<dyn FileService>, options: &MountOptions) -> Result<Mounted, MountError> {
    let left = HeldMount::resume(options)?;
    let is_new = left.is_none();
    let held = match left {
        Some(held) => held,
        None => make(options)?,
    };
    let point = held.point.clone();
    let mounted = start(service, held, is_new, options).inspect_err(|_| {
        if is_new {
            take_back(&point);
        }
    })?;
    let mount = options.mount_point.display();
    tracing::info!(%mount, name = options.name, is_new, "mounted");
    Ok(mounted)
}

/// Detaches a new mount whose start has failed.
fn take_back(point: &MountPoint) {
    if let Err(error) = point.detach() {
        tracing::warn!(%error, "the mount is left behind");
    }
}

/// Mounts, and negotiates capabilities and limits with the kernel.
fn make(options: &MountOptions) -> Result<HeldMount, MountError> {
    let (point, device) = MountPoint::mount(&options.mount_point, &options.name)?;
    let negotiated = device
        .duplicate()
        .and_then(|device| {
            Session::from_fd(Negotiator, device, SessionACL::All, ReaderThreads::config())
        })
        .map(drop)
        .map_err(|source| MountError::Init {
            mount_point: options.mount_point.clone(),
            source,
        });
    negotiated
        .and_then(|()| HeldMount::new(point.clone(), device, options))
        .inspect_err(|_| take_back(&point))
}

/// Starts the threads that answer requests until the mount is gone.
fn start(
    service: Arc<dyn FileService>,
    held: HeldMount,
    is_new: bool,
    options: &MountOptions,
) -> Result<Mounted, MountError> {
    let failed = |source| options.failed(source);
    let has_epochs = held.has_epochs(is_new);
    let invalidator = held.invalidator(options).map_err(failed)?;
    let session_end = Arc::new(SessionEnd::new(options.notice.clone()));
    let drops = Arc::default();
    let context =
        context(service, &held, has_epochs, (&drops, &session_end), options).map_err(failed)?;
    if !is_new {
        inherit(&context, &invalidator).map_err(failed)?;
    }
    let entrance = Arc::new(Entrance::new(context.clone()));
    let adaptor = |queue, start| Adaptor::new(Arc::clone(&entrance), queue, start);
    let threads = ReaderThreads::prepare(&held.devices, adaptor).map_err(failed)?;
    if let Some(notifier) = threads.notifier() {
        context.kernel_cache.connect(notifier, invalidator);
    }
    let role = follow_role(&context, drops, &held, !is_new, options);
    let role = role.map_err(failed)?;
    held.start_guard(&*context.service, options)
        .map_err(failed)?;
    let is_kept = if is_new {
        held.keep(options)
    } else {
        held.resend_requests(options)?;
        true
    };
    let mounted = Mounted {
        point: held.point,
        queue: context.queue,
        session_end: Arc::clone(&session_end),
        _role: role,
        options: Box::new(options.clone()),
        is_kept,
        released: false,
    };
    let watched = watch(threads.release(), session_end, options);
    // The drop of `mounted` unmounts.
    watched.map_err(failed)?;
    Ok(mounted)
}

/// The context of all requests of a mount.
fn context(
    service: Arc<dyn FileService>,
    held: &HeldMount,
    has_epochs: bool,
    (drops, session_end): (&Arc<UnfinishedDrops>, &Arc<SessionEnd>),
    options: &MountOptions,
) -> io::Result<Context> {
    let memory = held.memory.clone();
    let queue = StandbyQueue::new(
        Arc::clone(&service),
        options.standby,
        memory.clone(),
        Arc::clone(drops),
        Arc::clone(session_end),
    )?;
    let kernel_cache = Arc::new(KernelCache::default());
    Ok(Context {
        lifetimes: CacheLifetimes::new(Arc::clone(&service), has_epochs),
        service,
        queue,
        page_cache: Arc::new(PageCache::new(Arc::clone(&kernel_cache))?),
        kernel_cache,
        known: Arc::new(KnownInodes::of(&memory)?),
        memory,
        tenure: None,
    })
}

/// The kernel may refer to an inode without a name and have any file in its cache: the earlier process has not left its tables.
/// The other node may have served in the time of that process.
fn inherit(context: &Context, invalidator: &Arc<Invalidator>) -> io::Result<()> {
    let service = &context.service;
    service.inherit(orphan_probe::start(service, invalidator)?);
    let changes = context.page_cache.changes();
    changes.inherit(service.inos_below());
    context.known.note_old_sizes();
    Ok(())
}

/// Has the mount follow the role of the node.
fn follow_role(
    context: &Context,
    drops: Arc<UnfinishedDrops>,
    held: &HeldMount,
    is_resumed: bool,
    options: &MountOptions,
) -> io::Result<Arc<MountRole>> {
    let queue = Arc::clone(&context.queue);
    let dropper = Arc::new(CacheDropper::new(
        held.device()?,
        options.helper_program().map(Into::into),
        Arc::clone(&context.known),
        Arc::clone(&context.page_cache),
        Box::new(move || queue.parked_page_reads()),
    ));
    let parts = RoleParts {
        queue: Arc::clone(&context.queue),
        drops,
        dropper,
        write_back: WriteBack::new(&options.mount_point, options.helper_program()),
        names_outlive_drop: context.lifetimes.after_drop(),
        kernel_cache: Arc::clone(&context.kernel_cache),
    };
    Ok(MountRole::observe(&*context.service, parts, is_resumed))
}

/// Starts a thread that waits for the end of the others.
fn watch(
    threads: Vec<JoinHandle<io::Result<()>>>,
    session_end: Arc<SessionEnd>,
    options: &MountOptions,
) -> io::Result<()> {
    let options = options.clone();
    let wait = move || {
        let panicked = |_| Err(io::Error::other("a thread of the mount panicked"));
        let mut outcome = Ok(());
        for thread in threads {
            let ended = session_outcome(thread.join().unwrap_or_else(panicked));
            outcome = outcome.and(ended);
        }
        let outcome = outcome.map_err(|source| options.failed(source));
        session_end.end(outcome);
    };
    thread::Builder::new()
        .name("fuse".to_owned())
        .spawn(wait)
        .map(drop)
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
        self.session_end.take_event()
    }

    /// Whether the next process can resume the mount, should this process end without an unmount.
    pub const fn outlives_process(&self) -> bool {
        self.is_kept
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
        let grace = self.options.grace;
        self.release(grace)
    }

    fn release(&mut self, grace: Duration) -> Result<Unmounted, MountError> {
        self.released = true;
        let outcome = self.unmount_within(grace);
        self.options.descriptors.discard(&self.options.held_name);
        self.queue.close();
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
        let ended = self.session_end.wait_until(deadline + BUSY_RETRY_INTERVAL);
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
