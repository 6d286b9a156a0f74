//! The descriptor store of systemd: `FDSTORE=1` keeps descriptors, `LISTEN_FDS` gives them to the next process of the
//! unit (`sd_pid_notify_with_fds(3)`, `sd_listen_fds_with_names(3)`).
//!
//! The service manager says by the variable `FDSTORE` how many descriptors it keeps (systemd 254). For an older one, the
//! unit sets the variable itself.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

use super::error::HoldError;
use super::notify_socket::NotifySocket;
use super::packet;

/// The first descriptor that a service manager gives.
const FIRST: RawFd = 3;

/// The descriptor store of the unit that this process belongs to.
#[derive(Debug)]
pub struct UnitStore {
    manager: NotifySocket,
    /// The descriptors that an earlier process has kept. The service manager keeps duplicates of them.
    given: BTreeMap<String, Vec<OwnedFd>>,
}

impl UnitStore {
    /// Reads the environment of this process; `None` without a descriptor store.
    pub fn from_environment() -> Option<Self> {
        let given = take_given();
        let room: u64 = env::var("FDSTORE").ok()?.parse().ok()?;
        let manager = NotifySocket::from_environment()?;
        (room > 0).then_some(Self { manager, given })
    }

    /// Keeps duplicates of descriptors under a name.
    pub fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> Result<(), HoldError> {
        // `FDPOLL=0`: a FUSE device is kept although it can be read.
        self.send(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), descriptors)
    }

    /// Returns duplicates of the descriptors that an earlier process has kept.
    pub fn give(&self, name: &str) -> Result<Vec<OwnedFd>, HoldError> {
        let given = self.given.get(name).map(Vec::as_slice).unwrap_or_default();
        let duplicates = given.iter().map(OwnedFd::try_clone);
        duplicates
            .collect::<io::Result<_>>()
            .map_err(|source| HoldError::Manager { source })
    }

    /// Closes the descriptors of a name.
    pub fn discard(&self, name: &str) -> Result<(), HoldError> {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])
    }

    fn send(&self, text: &str, descriptors: &[BorrowedFd<'_>]) -> Result<(), HoldError> {
        let NotifySocket { address, socket } = &self.manager;
        packet::send_to(socket, address, text.as_bytes(), descriptors)
            .map_err(|source| HoldError::Manager { source })
    }
}

/// Takes the descriptors that the service manager has given to this process. Only the first call gets them.
fn take_given() -> BTreeMap<String, Vec<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let mut given = BTreeMap::<String, Vec<OwnedFd>>::new();
    let is_ours = env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    if !is_ours || TAKEN.swap(true, Ordering::SeqCst) {
        return given;
    }
    let count = env::var("LISTEN_FDS")
        .ok()
        .and_then(|count| count.parse().ok());
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    for (number, name) in (FIRST..FIRST + count.unwrap_or(0)).zip(names.split(':')) {
        // SAFETY: the service manager has opened this descriptor for this process, and nothing else in it uses the number.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        if fcntl_setfd(descriptor.as_fd(), FdFlags::CLOEXEC).is_ok() {
            given.entry(name.to_owned()).or_default().push(descriptor);
        } else {
            // The number is not open, so nothing is to be closed.
            std::mem::forget(descriptor);
        }
    }
    given
}
