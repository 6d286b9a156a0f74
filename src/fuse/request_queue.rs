//! The kernel's queue of requests that no thread of this process has read yet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use lockstep_driver::client::WaitingRequests;

use super::device::Device;

/// Timeout of a poll that does not wait.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The queue of one mount. It holds a descriptor of the FUSE device, which keeps the connection with the kernel
/// open: it must be dropped together with the session.
#[derive(Debug)]
pub(super) struct RequestQueue(OwnedFd);

impl RequestQueue {
    /// The queue behind a FUSE device.
    pub fn of(device: &Device) -> io::Result<Self> {
        device.duplicate().map(Self)
    }

    /// Returns which of `events` hold for the device now, and errors of the connection; none if `poll` fails.
    fn poll_now(&self, events: PollFlags) -> PollFlags {
        let mut watched = [PollFd::from_borrowed_fd(self.0.as_fd(), events)];
        let polled = poll(&mut watched, Some(&NOW));
        let [device] = watched;
        polled.map_or(PollFlags::empty(), |_| device.revents())
    }
}

impl WaitingRequests for RequestQueue {
    fn any(&self) -> bool {
        // `ERR` alone says that the mount has ended, not that a request waits.
        self.poll_now(PollFlags::IN).contains(PollFlags::IN)
    }

    fn is_gone(&self) -> bool {
        self.poll_now(PollFlags::empty()).contains(PollFlags::ERR)
    }
}
