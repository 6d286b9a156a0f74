//! The kernel's queue of requests that no thread of this process has read yet.

use std::io;

use lockstep_driver::client::WaitingRequests;
use rustix::event::PollFlags;

use super::fuse_device::Device;

/// The queue of one mount. It holds a descriptor of the FUSE device, which keeps the connection with the kernel
/// open: it must be dropped together with the session.
#[derive(Debug)]
pub(crate) struct RequestQueue(Device);

impl RequestQueue {
    /// The queue behind a FUSE device.
    pub fn of(device: &Device) -> io::Result<Self> {
        device.again().map(Self)
    }

    /// Whether an event holds for the device now; not if the system refuses to look.
    fn has(&self, event: PollFlags) -> bool {
        // ERR is told in any case, and ignored among the wanted events.
        let polled = self.0.poll_now(event);
        polled.is_ok_and(|events| events.contains(event))
    }
}

impl WaitingRequests for RequestQueue {
    fn any(&self) -> bool {
        // `ERR` alone says that the mount has ended, not that a request waits.
        self.has(PollFlags::IN)
    }

    fn is_gone(&self) -> bool {
        self.has(PollFlags::ERR)
    }
}
