//! The process that asks the kernel to forget pages and attributes of a held mount.
//!
//! The kernel answers such a notification only when the dirty pages are written back, and the calling thread cannot be
//! killed before that. The write-back is a request to this mount. If the node made the call itself and were killed, the
//! call would wait for the next process, and the next process for the end of the killed one. So a child process makes the
//! calls of a mount that outlives its process: it has the device, and nothing else of the node.
//!
//! The child has one thread more than calls, so a call that lasts holds no other call up. It ends when the node has closed
//! the socket between them, and its calls have ended. If the child ends earlier, the node makes the calls.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_types::Ino;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::file_pages::FilePages;
use super::invalidation::Invalidation;
use crate::device::child_process::hidden_command;
use crate::device::fuse_device::Device;
use crate::hold::packet;

/// The hidden command of the child process. Its standard input is the socket.
const COMMAND: &str = "invalidate";

/// Text of the packet that brings the device.
const DEVICE: &[u8] = b"DEVICE";

/// Bytes of a [`CallId`] in a packet.
const ID_BYTES: usize = 8;

/// Most invalidations of one call.
pub(crate) const PACKET_MAX: usize = 15;

/// A call of the other side of the socket: the number of the packet that has begun it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId(u64);

/// A call that has begun.
pub(crate) enum CallState {
    /// The kernel has answered.
    Ended(Result<bool, Errno>),
    /// The kernel has not answered yet.
    Running,
    /// The answer is lost: the process that has made the call is gone.
    Lost,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Invalidator {
    device: Device,
    helper: Mutex<Option<Helper>>,
}

/// The other side, which makes the calls. A drop waits for the end of the child process.
#[derive(Debug)]
struct Helper {
    socket: Option<OwnedFd>,
    /// The child process; `None` if threads of this process make the calls.
    process: Option<Child>,
    last: CallId,
}

impl Invalidator {
    /// An invalidator whose calls the child process makes, if `program` is given: this program.
    pub fn start(device: Device, program: Option<&Path>) -> io::Result<Arc<Self>> {
        let helper = program.map(|program| Helper::start(&device, program));
        Ok(Arc::new(Self {
            helper: Mutex::new(helper.transpose()?),
            device,
        }))
    }

    /// Makes the kernel write back and drop its pages of a range. Waits for the write-backs: no thread that takes
    /// requests of the kernel may call this.
    pub fn drop_pages(&self, pages: &FilePages) -> Result<bool, Errno> {
        self.invalidate(&[Invalidation::pages(pages)])
    }

    /// Whether the kernel still knows an inode: as open file, by a name in its cache, or not evicted yet. The kernel
    /// asks for the attributes of the inode again.
    pub fn knows(&self, ino: Ino) -> Result<bool, Errno> {
        let one = FilePages::of(ino, 0..0);
        self.invalidate(&[Invalidation::attributes(&one.inodes)])
    }

    /// Makes the kernel forget the attributes of inodes, given as ranges of numbers.
    pub fn drop_attributes(&self, ranges: &[Range<u64>]) -> Result<(), Errno> {
        for part in ranges.chunks(PACKET_MAX) {
            let all: Vec<_> = part.iter().map(Invalidation::attributes).collect();
            self.invalidate(&all)?;
        }
        Ok(())
    }

    /// Begins to make the kernel write back and drop pages, [`PACKET_MAX`] parts at most. The call may last; others may
    /// begin meanwhile.
    ///
    /// # Errors
    /// If no process can make the call.
    pub fn begin(&self, parts: &[FilePages]) -> io::Result<CallId> {
        let all: Vec<_> = parts.iter().map(Invalidation::pages).collect();
        let mut helper = self.helper.lock();
        if let Some(running) = &mut *helper {
            match running.begin(&all) {
                Ok(call) => return Ok(call),
                Err(error) => note_end(&error),
            }
        }
        helper.insert(Helper::here(&self.device)?).begin(&all)
    }

    /// Waits for the end of a call of [`Self::begin`].
    pub fn await_end(&self, call: CallId, limit: Duration) -> CallState {
        let mut helper = self.helper.lock();
        let state = helper.as_ref().map(|it| it.await_end(call, limit));
        match state {
            None => CallState::Lost,
            Some(Ok(answer)) => answer.map_or(CallState::Running, CallState::Ended),
            Some(Err(error)) => {
                note_end(&error);
                *helper = None;
                CallState::Lost
            }
        }
    }

    fn invalidate(&self, all: &[Invalidation]) -> Result<bool, Errno> {
        let mut helper = self.helper.lock();
        if let Some(running) = &mut *helper {
            match running.ask(all) {
                Ok(answer) => return answer,
                Err(error) => {
                    note_end(&error);
                    *helper = None;
                }
            }
        }
        Invalidation::call_all(all, &self.device)
    }
}

fn note_end(error: &io::Error) {
    tracing::warn!(%error, "the process that drops pages has ended: this process does so");
}

impl Helper {
    /// A child process.
    fn start(device: &Device, program: &Path) -> io::Result<Self> {
        let (socket, theirs) = packet::open_pair()?;
        let process = hidden_command(program, COMMAND).stdin(theirs).spawn()?;
        let helper = Self::new(socket, Some(process));
        if let Some(socket) = &helper.socket {
            packet::send(socket, DEVICE, &[device.as_fd()])?;
        }
        Ok(helper)
    }

    /// Threads of this process.
    fn here(device: &Device) -> io::Result<Self> {
        let (socket, theirs) = packet::open_pair()?;
        let callers = Callers::new(theirs, device.again()?);
        callers.start_one()?;
        Ok(Self::new(socket, None))
    }

    const fn new(socket: OwnedFd, process: Option<Child>) -> Self {
        Self {
            socket: Some(socket),
            process,
            last: CallId(0),
        }
    }

    fn socket(&self) -> io::Result<&OwnedFd> {
        let socket = self.socket.as_ref();
        socket.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn begin(&mut self, all: &[Invalidation]) -> io::Result<CallId> {
        self.last.0 += 1;
        let parts = all.iter().flat_map(|one| one.to_bytes());
        let text: Vec<u8> = self.last.0.to_ne_bytes().into_iter().chain(parts).collect();
        packet::send(self.socket()?, &text, &[])?;
        Ok(self.last)
    }

    fn ask(&mut self, all: &[Invalidation]) -> io::Result<Result<bool, Errno>> {
        let call = self.begin(all)?;
        loop {
            if let Some(answer) = self.answer_of(call)? {
                return Ok(answer);
            }
        }
    }

    /// Waits for the answer of a call; `None` if the kernel does not answer in time.
    fn await_end(&self, call: CallId, limit: Duration) -> io::Result<Option<Result<bool, Errno>>> {
        let end = Instant::now() + limit;
        while self.has_answer(end.saturating_duration_since(Instant::now()))? {
            if let Some(answer) = self.answer_of(call)? {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    fn has_answer(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut watched = [PollFd::new(self.socket()?, PollFlags::IN)];
        match poll(&mut watched, Some(&limit)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives the next answer; `None` if it is the one of another call, which nobody waits for any more.
    fn answer_of(&self, call: CallId) -> io::Result<Option<Result<bool, Errno>>> {
        let (answer, _) = packet::receive(self.socket()?)?;
        let Some((id, code)) = answer.split_first_chunk::<ID_BYTES>() else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let code = code.try_into().map_err(io::Error::other)?;
        let is_wanted = u64::from_ne_bytes(*id) == call.0;
        Ok(is_wanted.then(|| match i32::from_ne_bytes(code) {
            KNOWN => Ok(true),
            UNKNOWN => Ok(false),
            code => Err(Errno::from_raw_os_error(code)),
        }))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.socket = None;
        if let Some(Err(error)) = self.process.as_mut().map(Child::wait) {
            tracing::debug!(%error, "the end of the process that drops pages");
        }
    }
}

/// Answers of the other side. Each other number is an error code.
const KNOWN: i32 = 0;
const UNKNOWN: i32 = -1;

/// The threads that make calls. All of them read from one socket.
struct Callers<S> {
    socket: S,
    device: Device,
    /// Threads that make no call.
    idle: AtomicUsize,
}

impl<S: AsFd + Send + Sync + 'static> Callers<S> {
    /// No thread yet.
    fn new(socket: S, device: Device) -> Arc<Self> {
        Arc::new(Self {
            socket,
            device,
            idle: AtomicUsize::new(0),
        })
    }

    /// Starts one more thread.
    fn start_one(self: &Arc<Self>) -> io::Result<()> {
        let shared = Arc::clone(self);
        let name = "fuse-drop-call".to_owned();
        let body = move || {
            // The other side is gone.
            let _ended = shared.run();
        };
        thread::Builder::new().name(name).spawn(body).map(drop)
    }

    /// Makes calls until the socket is closed.
    fn run(self: &Arc<Self>) -> io::Result<()> {
        loop {
            self.idle.fetch_add(1, Ordering::SeqCst);
            let asked = packet::receive(&self.socket);
            let is_last = self.idle.fetch_sub(1, Ordering::SeqCst) == 1;
            let (asked, _) = match asked {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                asked => asked?,
            };
            if is_last {
                // Without another thread the next call waits for this one.
                let _started = self.start_one();
            }
            self.make(&asked)?;
        }
    }

    /// Makes one call, and answers.
    fn make(&self, asked: &[u8]) -> io::Result<()> {
        let (id, all) = asked.split_at(ID_BYTES.min(asked.len()));
        let all = Invalidation::all_from_bytes(all).ok_or(Errno::INVAL);
        let code = match all.and_then(|all| Invalidation::call_all(&all, &self.device)) {
            Ok(true) => KNOWN,
            Ok(false) => UNKNOWN,
            Err(errno) => errno.raw_os_error(),
        };
        packet::send(&self.socket, &[id, &code.to_ne_bytes()].concat(), &[])
    }
}

/// The child process: makes calls until the node closes the socket.
///
/// # Errors
/// If the socket fails, or brings no device.
pub fn run_invalidator(socket: impl AsFd + Send + Sync + 'static) -> io::Result<()> {
    let (text, descriptors) = packet::receive(&socket)?;
    let device = descriptors.into_iter().next().map(Device::adopt);
    let (DEVICE, Some(Ok(device))) = (text.as_slice(), device) else {
        return Err(io::Error::other("the first packet brings no device"));
    };
    Callers::new(socket, device).run()
}
