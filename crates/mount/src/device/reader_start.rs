//! The start of one thread that reads requests: it locks its buffer in memory, waits for the others, and goes from the
//! socket of its session to the device (`reader_threads`).
//!
//! Why the buffer is locked: if the process is killed while the kernel copies a request into it, the kernel fails the
//! request when a page is missing. The program would get an I/O error.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fuser::INodeNo;
use lockstep_types::limits::{BLOCK_BYTES, WRITE_BYTES_MAX};
use parking_lot::{Condvar, Mutex};
use rustix::io::DupFlags;

/// The node of the made-up `ioctl`. The kernel numbers nodes from one.
pub(crate) const NO_NODE: INodeNo = INodeNo(0);

/// Bytes before the input of an `ioctl`: the header of the request, and the arguments.
const IOCTL_BYTES: usize = 40 + 32;

/// Bytes at the start of a buffer that the largest request fills.
const LOCKED_BYTES: usize = WRITE_BYTES_MAX + 2 * BLOCK_BYTES;

/// The moment from which the threads read from the device.
#[derive(Debug, Default)]
pub(crate) struct StartBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BarrierState {
    /// There is no decision yet.
    #[default]
    Waiting,
    /// The threads are to read from the device.
    Open,
    /// The threads are to end.
    GivenUp,
}

impl StartBarrier {
    /// Decides for all threads.
    pub fn set(&self, state: BarrierState) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    /// Waits for the decision. Returns whether the thread is to read from the device.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while *state == BarrierState::Waiting {
            self.changed.wait(&mut state);
        }
        *state == BarrierState::Open
    }
}

/// The start of one thread.
#[derive(Debug)]
pub(crate) struct ReaderStart(Mutex<Option<SocketStage>>);

/// A thread that still reads from its socket.
#[derive(Debug)]
pub(crate) struct SocketStage {
    /// The number of the socket, which the session owns.
    pub socket: RawFd,
    /// The descriptor that takes the place of the socket.
    pub device: OwnedFd,
    /// Gets a message when the thread is prepared.
    pub ready: Sender<()>,
    /// Says when the thread goes on.
    pub barrier: Arc<StartBarrier>,
}

impl ReaderStart {
    /// The start of a thread that reads from its socket.
    pub fn new(stage: SocketStage) -> Self {
        Self(Mutex::new(Some(stage)))
    }

    /// Prepares the calling thread, and makes it read from the device when the barrier opens. `input` lies in the buffer of
    /// the thread, behind the header and the arguments of the made-up `ioctl`.
    pub fn run(&self, input: &[u8]) {
        let Some(stage) = self.0.lock().take() else {
            return;
        };
        lock_buffer(input);
        // The receiver waits for this message, unless it has given up.
        let _sent = stage.ready.send(());
        if !stage.barrier.wait() {
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
