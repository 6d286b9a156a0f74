//! The requests of the kernel that no thread of ours has taken up yet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use lockstep_driver::client::Waiting;

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

impl Queue {
    /// What is the case now of `what` and of the connection with the kernel; nothing, where that cannot be known.
    fn look(&self, what: PollFlags) -> PollFlags {
        let mut watched = [PollFd::from_borrowed_fd(self.0.as_fd(), what)];
        let looked = poll(&mut watched, Some(&NOW));
        let [device] = watched;
        looked.map_or(PollFlags::empty(), |_| device.revents())
    }
}

impl Waiting for Queue {
    fn any(&self) -> bool {
        // An end of the mount is no request.
        self.look(PollFlags::IN).contains(PollFlags::IN)
    }

    fn is_gone(&self) -> bool {
        self.look(PollFlags::empty()).contains(PollFlags::ERR)
    }
}
