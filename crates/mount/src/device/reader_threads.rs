//! The threads that read requests of the kernel: one fuser session for each descriptor of the device.
//!
//! fuser begins a session with the kernel's INIT, which comes once in the life of a mount, and creates its buffers and
//! further descriptors itself. A mount that outlives its process needs sessions without INIT, descriptors that can be kept,
//! and buffers that are in memory. So each session begins on a socket, with a made-up INIT. Then a made-up `ioctl`
//! brings the thread into `reader_start`, where it locks its buffer in memory, waits, and replaces the socket by the
//! device.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, JoinHandle};

use fuser::{Config, Filesystem, Notifier, Session, SessionACL};
use rustix::net::{SendFlags, send};

use super::fuse_device::Device;
use super::reader_start::{BarrierState, NO_NODE, ReaderStart, SocketStage, StartBarrier};
use super::request_queue::RequestQueue;
use crate::hold::packet;

/// Unique number of the made-up requests: the kernel counts from two in steps of two.
const MADE_UP_UNIQUE: u64 = 1 << 62;

const HEADER_BYTES: usize = 40;
const OPCODE_INIT: u32 = 26;
const OPCODE_IOCTL: u32 = 39;
/// Threads that are ready to read from the device.
#[derive(Debug)]
pub(crate) struct ReaderThreads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    barrier: Arc<StartBarrier>,
    notifier: Option<Notifier>,
}

impl ReaderThreads {
    /// Starts a thread for each descriptor of a mount, whose INIT has been answered. The threads read from the device after
    /// [`Self::release`]. `adaptor` makes the file system of a thread, which gives [`NO_NODE`]'s `ioctl` to the start.
    pub fn prepare<F: Filesystem + 'static>(
        devices: &[Device],
        adaptor: impl Fn(RequestQueue, ReaderStart) -> F,
    ) -> io::Result<Self> {
        let mut threads = Self {
            threads: Vec::new(),
            barrier: Arc::default(),
            notifier: None,
        };
        let mut waiting = Vec::new();
        for device in devices {
            waiting.push(threads.start(device, &adaptor)?);
        }
        for (ready, _other_end) in waiting {
            let gone = |_| io::Error::other("a thread of the mount has ended early");
            ready.recv().map_err(gone)?;
        }
        Ok(threads)
    }

    fn start<F: Filesystem + 'static>(
        &mut self,
        device: &Device,
        adaptor: impl Fn(RequestQueue, ReaderStart) -> F,
    ) -> io::Result<(Receiver<()>, OwnedFd)> {
        let (ours, socket) = packet::open_pair()?;
        let (ready, is_ready) = channel();
        let start = ReaderStart::new(SocketStage {
            socket: socket.as_raw_fd(),
            device: device.duplicate()?,
            ready,
            barrier: Arc::clone(&self.barrier),
        });
        let queue = RequestQueue::of(device)?;
        let adaptor = adaptor(queue, start);
        send(&ours, &init_request(), SendFlags::NOSIGNAL)?;
        let session = Session::from_fd(adaptor, socket, SessionACL::All, Self::config())?;
        self.notifier.get_or_insert_with(|| session.notifier());
        send(&ours, &ioctl_request(), SendFlags::NOSIGNAL)?;
        let name = format!("fuse-{}", self.threads.len());
        let thread = Builder::new().name(name).spawn(move || session.run())?;
        self.threads.push(thread);
        Ok((is_ready, ours))
    }

    /// The settings of each session.
    pub fn config() -> Config {
        let mut config = Config::default();
        config.acl = SessionACL::All;
        config.n_threads = Some(1);
        config
    }

    /// The channel for notifications to the kernel, which works after [`Self::release`].
    pub fn notifier(&self) -> Option<Notifier> {
        self.notifier.clone()
    }

    /// Lets the threads read from the device. Returns them; each ends when the mount is gone.
    pub fn release(mut self) -> Vec<JoinHandle<io::Result<()>>> {
        self.barrier.set(BarrierState::Open);
        std::mem::take(&mut self.threads)
    }
}

impl Drop for ReaderThreads {
    fn drop(&mut self) {
        // Released threads do not look at the barrier any more, or find it open.
        if !self.threads.is_empty() {
            self.barrier.set(BarrierState::GivenUp);
        }
    }
}

/// A request of the kernel, without a caller.
fn request(opcode: u32, arguments: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + arguments.len()).unwrap_or(u32::MAX);
    let mut request = Vec::from(length.to_ne_bytes());
    request.extend(opcode.to_ne_bytes());
    request.extend(MADE_UP_UNIQUE.to_ne_bytes());
    request.extend(NO_NODE.0.to_ne_bytes());
    // User, group, process, and the length of extensions.
    request.extend([0; 16]);
    request.extend(arguments);
    request
}

/// An INIT of a kernel that can do everything.
fn init_request() -> Vec<u8> {
    const VERSION: [u32; 2] = [7, 40];
    const READ_AHEAD_BYTES: u32 = 128 << 10;
    let mut arguments = Vec::new();
    for word in VERSION.into_iter().chain([READ_AHEAD_BYTES]) {
        arguments.extend(word.to_ne_bytes());
    }
    // All capabilities, in two words.
    arguments.extend([0xFF; 8]);
    arguments.extend([0; 44]);
    request(OPCODE_INIT, &arguments)
}

/// An `ioctl` with one byte of input.
fn ioctl_request() -> Vec<u8> {
    let mut arguments = vec![0; 24];
    arguments.extend(1_u32.to_ne_bytes());
    arguments.extend(0_u32.to_ne_bytes());
    arguments.push(0);
    request(OPCODE_IOCTL, &arguments)
}
