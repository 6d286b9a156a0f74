//! The threads that read requests of the kernel: one fuser session for each descriptor of the device.
//!
//! fuser begins a session with the kernel's INIT, which comes once in the life of a mount, and creates its buffers and
//! further descriptors itself. A mount that outlives its process needs sessions without INIT, descriptors that can be kept,
//! and buffers that are in memory. So each session begins on a socket, with a made-up INIT. Then a made-up `ioctl`
//! brings the thread into [`ReaderStart::run`], where it locks its buffer in memory, waits, and replaces the socket by the
//! device.
//!
//! Why the buffer is locked: if the process is killed while the kernel copies a request into it, the kernel fails the
//! request when a page is missing. The program would get an I/O error.

use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use fuser::{Config, INodeNo, Notifier, Session, SessionACL};
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use parking_lot::{Condvar, Mutex};
use rustix::io::DupFlags;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::adaptor::Adaptor;
use super::context::Context;
use super::device::Device;
use super::request_queue::RequestQueue;

/// The node of the made-up `ioctl`. The kernel numbers nodes from one.
pub(super) const NO_NODE: INodeNo = INodeNo(0);

/// Unique number of the made-up requests: the kernel counts from two in steps of two.
const MADE_UP_UNIQUE: u64 = 1 << 62;

const HEADER_BYTES: usize = 40;
const OPCODE_INIT: u32 = 26;
const OPCODE_IOCTL: u32 = 39;
/// Bytes before the input of an `ioctl`: the header and the arguments.
const IOCTL_BYTES: usize = HEADER_BYTES + 32;

/// Bytes at the start of a buffer that the largest request fills.
const LOCKED_BYTES: usize = WRITE_BYTES_MAX + 2 * BLOCK_BYTES;

/// The moment from which the threads read from the device.
#[derive(Debug, Default)]
struct StartGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GateState {
    #[default]
    Waiting,
    Open,
    GivenUp,
}

impl StartGate {
    fn set(&self, state: GateState) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    /// Waits for the decision. Returns whether the thread is to read from the device.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while *state == GateState::Waiting {
            self.changed.wait(&mut state);
        }
        *state == GateState::Open
    }
}

/// The start of one thread.
#[derive(Debug)]
pub(super) struct ReaderStart(Mutex<Option<SocketStage>>);

/// A thread that still reads from its socket.
#[derive(Debug)]
struct SocketStage {
    /// The number of the socket, which the session owns.
    socket: RawFd,
    device: OwnedFd,
    ready: Sender<()>,
    gate: Arc<StartGate>,
}

impl ReaderStart {
    /// Prepares the calling thread, and makes it read from the device when the gate opens. `input` lies in the buffer of
    /// the thread, behind the header and the arguments of the made-up `ioctl`.
    pub fn run(&self, input: &[u8]) {
        let Some(stage) = self.0.lock().take() else {
            return;
        };
        lock_buffer(input);
        // The receiver waits for this message, unless it has given up.
        let _sent = stage.ready.send(());
        if !stage.gate.wait() {
            return;
        }
        // SAFETY: the session owns the number and is not reading, because this is its thread. `ManuallyDrop` leaves it the
        // number.
        let mut socket = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(stage.socket) });
        if let Err(error) = rustix::io::dup3(&stage.device, &mut socket, DupFlags::CLOEXEC) {
            // The other end of the socket is closed, so the session ends with an error.
            tracing::error!(%error, "a thread of the mount cannot read requests");
        }
    }
}

/// Brings the pages of a buffer into memory, and keeps them there.
fn lock_buffer(input: &[u8]) {
    let start = input.as_ptr().wrapping_sub(IOCTL_BYTES);
    let start = start.wrapping_sub(start.addr() % BLOCK_BYTES);
    let address = start.cast_mut().cast::<c_void>();
    // SAFETY: the range is a part of the buffer of fuser, which is much larger. Its bytes are not touched.
    if let Err(error) = unsafe { rustix::mm::mlock(address, LOCKED_BYTES) } {
        tracing::warn!(
            %error,
            "cannot lock the buffers of the mount in memory: a request may fail if this process is killed"
        );
        // SAFETY: as above.
        let populated = unsafe {
            rustix::mm::madvise(
                address,
                LOCKED_BYTES,
                rustix::mm::Advice::LinuxPopulateWrite,
            )
        };
        tracing::debug!(?populated, "the buffers are in memory for now");
    }
}

/// Threads that are ready to read from the device.
#[derive(Debug)]
pub(super) struct ReaderThreads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    gate: Arc<StartGate>,
    notifier: Option<Notifier>,
}

impl ReaderThreads {
    /// Starts a thread for each descriptor of a mount, whose INIT has been answered. The threads read from the device after
    /// [`Self::release`].
    pub fn prepare(devices: &[Device], context: &Arc<Context>) -> io::Result<Self> {
        let mut threads = Self {
            threads: Vec::new(),
            gate: Arc::default(),
            notifier: None,
        };
        let mut waiting = Vec::new();
        for device in devices {
            waiting.push(threads.start(device, context)?);
        }
        for (ready, _other_end) in waiting {
            let gone = |_| io::Error::other("a thread of the mount has ended early");
            ready.recv().map_err(gone)?;
        }
        Ok(threads)
    }

    fn start(
        &mut self,
        device: &Device,
        context: &Arc<Context>,
    ) -> io::Result<(Receiver<()>, OwnedFd)> {
        let (ours, socket) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (ready, is_ready) = channel();
        let start = ReaderStart(Mutex::new(Some(SocketStage {
            socket: socket.as_raw_fd(),
            device: device.duplicate()?,
            ready,
            gate: Arc::clone(&self.gate),
        })));
        let queue = RequestQueue::of(device)?;
        let adaptor = Adaptor::new(Arc::clone(context), queue, start);
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
        self.gate.set(GateState::Open);
        std::mem::take(&mut self.threads)
    }
}

impl Drop for ReaderThreads {
    fn drop(&mut self) {
        // Released threads do not look at the gate any more, or find it open.
        if !self.threads.is_empty() {
            self.gate.set(GateState::GivenUp);
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
