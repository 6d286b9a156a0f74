//! The requests of the kernel that no thread of ours has taken up yet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::client::Waiting;

/// For a look that does not wait.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The queue of one mount. It keeps the connection with the kernel open: it must go with the session.
#[derive(Debug)]
pub(super) struct Queue(OwnedFd);

impl Queue {
    /// The queue behind a FUSE device.
    pub fn of(device: &OwnedFd) -> io::Result<Self> {
        device.try_clone().map(Self)
    }
}

impl Waiting for Queue {
    fn any(&self) -> bool {
        let mut watched = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        // Who cannot tell waits for nothing, and an end of the mount is no request.
        let looked = poll(&mut watched, Some(&NOW)).is_ok();
        let [device] = watched;
        looked && device.revents().contains(PollFlags::IN)
    }
}
