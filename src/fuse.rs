//! The way in through the kernel: a datastore mounted as a directory by FUSE.
//!
//! Holds the life of a mount: [`mount`] checks the mount point, mounts and answers requests from
//! then on; [`Mounted`] tells of its end and unmounts. What a request means is in
//! `adaptor`, one callback of the kernel each; the rooms it uses are its neighbours.
//!
//! Invariants: whatever goes wrong in [`mount`] leaves no mount behind and changes nothing; once
//! [`Mounted::unmount`] has returned, no request reaches the service any more; a panic while
//! answering a request is answered to the program as an I/O error and reported by
//! [`Mounted::news`], never swallowed.
//!
//! It must never park one of its threads on an operation that waits for the peer or the disk's
//! flush: those answer through completions (see [`lockstep_driver::client`]).

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
use ending::Ending;
use mount_point::{MountPoint, Release};
use page_cache::PageCache;
use queue::Queue;

mod adaptor;
mod attributes;
mod birth;
mod content;
mod context;
mod doorway;
mod ending;
mod error;
mod extended;
mod handshake;
mod listing;
mod mount_point;
pub mod mount_table;
mod names;
mod page_cache;
mod privileges;
mod queue;
mod reply;
mod steps;
mod write;

pub use error::MountError;
pub use mount_point::{BareEntries, bare_entries};

/// How often an unmount that found the mount busy tries again.
const BUSY_RETRY: Duration = Duration::from_millis(20);

/// Where and how to mount a datastore.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Directory to mount on.
    pub mount_point: PathBuf,
    /// Name of the datastore; the mount table shows `lockstep:NAME`.
    pub name: String,
    /// Threads that take requests from the kernel, one or more.
    pub threads: usize,
    /// How long [`Mounted::unmount`] waits for programs to let go of the mount.
    pub grace: Duration,
}

impl MountOptions {
    /// The usual number of threads, and two seconds of grace.
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
    /// Nobody used the mount any more.
    Clean,
    /// Programs still held files or directories open: the mount left the name space, and what
    /// they try with those from now on fails with an I/O error.
    Detached,
}

/// A mounted datastore. Dropping it unmounts too, without a grace.
#[derive(Debug)]
pub struct Mounted {
    point: MountPoint,
    context: Arc<Context>,
    grace: Duration,
    released: bool,
}

/// Looks whether [`mount`] would find a mount point and a kernel that it can use, for who wants to
/// know before there is a service. A dead mount in its way is cleared.
///
/// # Errors
/// The [`MountError`] that [`mount`] would give.
pub fn check(options: &MountOptions) -> Result<(), MountError> {
    MountPoint::check(&options.mount_point, &options.name)
}

/// Mounts `service` and starts to answer requests.
///
/// # Errors
/// A [`MountError`] that names the cause and the cure; then nothing is mounted.
pub fn mount(service: Arc<dyn FileService>, options: &MountOptions) -> Result<Mounted, MountError> {
    let ending = Arc::new(Ending::default());
    let page_cache = PageCache::new().map_err(|source| MountError::Session {
        mount_point: options.mount_point.clone(),
        source,
    })?;
    let context = Arc::new(Context::new(service, Arc::clone(&ending), page_cache));
    let (point, device) = MountPoint::mount(&options.mount_point, &options.name)?;
    let mounted = Mounted {
        point,
        context: Arc::clone(&context),
        grace: options.grace,
        released: false,
    };
    let session = open_session(device, &context, options)?;
    context.connect(session.notifier());
    serve(session, ending, options)?;
    tracing::info!(mount = %options.mount_point.display(), name = options.name, "mounted");
    Ok(mounted)
}

/// Agrees with the kernel on what both can do.
fn open_session(
    device: OwnedFd,
    context: &Arc<Context>,
    options: &MountOptions,
) -> Result<Session<Adaptor>, MountError> {
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(options.threads);
    config.clone_fd = true;
    Queue::of(&device)
        .map(|queue| Adaptor::new(Arc::clone(context), queue))
        .and_then(|adaptor| Session::from_fd(adaptor, device, SessionACL::All, config))
        .map_err(|source| MountError::Handshake {
            mount_point: options.mount_point.clone(),
            source,
        })
}

/// Answers requests on threads of its own until the mount is gone.
fn serve(
    session: Session<Adaptor>,
    ending: Arc<Ending>,
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
        move || ending.end(at_the_end(session.run()).map_err(failed(mount_point)))
    };
    thread::Builder::new()
        .name("fuse".to_owned())
        .spawn(run)
        .map_err(failed(mount_point))?;
    Ok(())
}

/// Whether answering has failed or only come to its end. The kernel tells most threads that the device
/// is gone; one that takes a request at the moment of the unmount it tells of an aborted connection.
fn at_the_end(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
        other => other,
    }
}

impl Mounted {
    /// What the owner must know, if there is anything: that answering failed, each time it did,
    /// while the mount may still be there; or that the mount has ended, whoever unmounted it.
    pub fn news(&self) -> Option<Result<(), MountError>> {
        self.context.ending().news()
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> &std::path::Path {
        self.point.path()
    }

    /// Unmounts; when programs keep it busy for longer than the grace, detaches it.
    ///
    /// # Errors
    /// Only when the kernel refuses both; then the mount is still there but answers no more.
    pub fn unmount(mut self) -> Result<Unmounted, MountError> {
        let grace = self.grace;
        self.release(grace)
    }

    fn release(&mut self, grace: Duration) -> Result<Unmounted, MountError> {
        self.released = true;
        let outcome = self.let_go(grace);
        self.context.close();
        outcome
    }

    fn let_go(&self, grace: Duration) -> Result<Unmounted, MountError> {
        let deadline = Instant::now() + grace;
        while let Release::Busy = self.point.unmount()? {
            if Instant::now() >= deadline {
                return self.detach();
            }
            thread::sleep(BUSY_RETRY);
        }
        // A copy of the mount in another mount namespace keeps the file system alive.
        let ended = self.context.ending().wait_until(deadline + BUSY_RETRY);
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
            tracing::warn!(%error, "the mount was left behind");
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
        let outcome = |errno| at_the_end(Err(io::Error::from_raw_os_error(errno)));
        assert!(outcome(ABORTED).is_ok());
        assert_eq!(outcome(BROKEN).unwrap_err().raw_os_error(), Some(BROKEN));
        assert!(at_the_end(Ok(())).is_ok());
    }
}
