//! The process that asks the kernel to forget pages and attributes of a held mount.
//!
//! The kernel answers such a notification only when the dirty pages are written back, and the calling thread cannot be
//! killed before that. The write-back is a request to this mount. If the node made the call itself and were killed, the
//! call would wait for the next process, and the next process for the end of the killed one. So a child process makes the
//! calls of a mount that outlives its process: it has the device, and nothing else of the node.
//!
//! The child ends when the node has closed the socket between them. If the child ends earlier, the node makes the calls.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use lockstep_types::Ino;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::device::Device;
use crate::hold::packet;

/// The hidden command of the child process. Its standard input is the socket.
const COMMAND: &str = "invalidate";

/// Text of the packet that brings the device.
const DEVICE: &[u8] = b"DEVICE";

/// An offset that means: drop attributes only, keep cached data.
pub(super) const ATTRIBUTES_ONLY: i64 = -1;

/// An offset and a length that mean: the whole file.
const WHOLE_FILE: (i64, i64) = (0, 0);

/// Bytes of an [`Invalidation`] in a packet.
const INVALIDATION_BYTES: usize = 32;

/// Most invalidations of one packet.
const PACKET_MAX: usize = 16;

/// The part of the kernel's caches that goes, for inodes with consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Invalidation {
    first: u64,
    count: u64,
    offset: i64,
    length: i64,
}

impl Invalidation {
    const fn one(ino: Ino, offset: i64, length: i64) -> Self {
        Self {
            first: ino.get(),
            count: 1,
            offset,
            length,
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        let words = [
            self.first.to_ne_bytes(),
            self.count.to_ne_bytes(),
            self.offset.to_ne_bytes(),
            self.length.to_ne_bytes(),
        ];
        words.concat()
    }

    /// The invalidations in a packet; `None` if it is no such packet.
    fn all_from_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        let (parts, []) = bytes.as_chunks::<INVALIDATION_BYTES>() else {
            return None;
        };
        parts.iter().map(|part| Self::from_bytes(part)).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let [first, count, offset, length] = words else {
            return None;
        };
        Some(Self {
            first: u64::from_ne_bytes(*first),
            count: u64::from_ne_bytes(*count),
            offset: i64::from_ne_bytes(*offset),
            length: i64::from_ne_bytes(*length),
        })
    }

    /// Makes the calls. Returns whether the kernel knows one of the inodes.
    fn call(self, device: &Device) -> Result<bool, Errno> {
        let range = [self.offset.to_ne_bytes(), self.length.to_ne_bytes()].concat();
        let mut knows = false;
        for ino in self.first..self.first.saturating_add(self.count) {
            match device.invalidate(&[&ino.to_ne_bytes(), range.as_slice()].concat()) {
                Err(Errno::NOENT) => {}
                other => knows |= other.map(|()| true)?,
            }
        }
        Ok(knows)
    }

    fn call_all(all: &[Self], device: &Device) -> Result<bool, Errno> {
        let mut knows = false;
        for invalidation in all {
            knows |= invalidation.call(device)?;
        }
        Ok(knows)
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Invalidator {
    device: Device,
    helper: Mutex<Option<Helper>>,
}

/// The child process. A drop waits for its end.
#[derive(Debug)]
struct Helper {
    socket: Option<OwnedFd>,
    process: Child,
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
    pub fn drop_pages(&self, ino: Ino, offset: i64, length: i64) -> Result<bool, Errno> {
        self.invalidate(&[Invalidation::one(ino, offset, length)])
    }

    /// Whether the kernel still knows an inode: as open file, by a name in its cache, or not evicted yet. The kernel
    /// asks for the attributes of the inode again.
    pub fn knows(&self, ino: Ino) -> Result<bool, Errno> {
        self.invalidate(&[Invalidation::one(ino, ATTRIBUTES_ONLY, 0)])
    }

    /// Makes the kernel forget the attributes of inodes, given as ranges of numbers, and their pages too if that is
    /// wanted: then it waits for write-backs. Returns whether the kernel knows one of the inodes.
    pub fn drop_inodes(&self, ranges: &[Range<u64>], with_pages: bool) -> Result<bool, Errno> {
        let (offset, length) = if with_pages {
            WHOLE_FILE
        } else {
            (ATTRIBUTES_ONLY, 0)
        };
        let mut knows = false;
        for part in ranges.chunks(PACKET_MAX) {
            let all: Vec<_> = part
                .iter()
                .map(|range| Invalidation {
                    first: range.start,
                    count: range.end.saturating_sub(range.start),
                    offset,
                    length,
                })
                .collect();
            knows |= self.invalidate(&all)?;
        }
        Ok(knows)
    }

    fn invalidate(&self, all: &[Invalidation]) -> Result<bool, Errno> {
        let mut helper = self.helper.lock();
        if let Some(running) = &*helper {
            match running.ask(all) {
                Ok(answer) => return answer,
                Err(error) => {
                    tracing::warn!(%error, "the process that drops pages has ended: this process does so");
                    *helper = None;
                }
            }
        }
        Invalidation::call_all(all, &self.device)
    }
}

impl Helper {
    fn start(device: &Device, program: &Path) -> io::Result<Self> {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let process = Command::new(program)
            .arg0("lockstep")
            .arg(COMMAND)
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .spawn()?;
        let helper = Self {
            socket: Some(socket),
            process,
        };
        if let Some(socket) = &helper.socket {
            packet::send(socket, DEVICE, &[device.as_fd()])?;
        }
        Ok(helper)
    }

    fn ask(&self, all: &[Invalidation]) -> io::Result<Result<bool, Errno>> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let text: Vec<u8> = all.iter().flat_map(|one| one.to_bytes()).collect();
        packet::send(socket, &text, &[])?;
        let (answer, _) = packet::receive(socket)?;
        let (words, _) = answer.as_chunks::<4>();
        let [code] = words else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok(match i32::from_ne_bytes(*code) {
            KNOWN => Ok(true),
            UNKNOWN => Ok(false),
            code => Err(Errno::from_raw_os_error(code)),
        })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.socket = None;
        if let Err(error) = self.process.wait() {
            tracing::debug!(%error, "the end of the process that drops pages");
        }
    }
}

/// Answers of the child. Each other number is an error code.
const KNOWN: i32 = 0;
const UNKNOWN: i32 = -1;

/// The child process: makes calls until the node closes the socket.
///
/// # Errors
/// If the socket fails, or brings no device.
pub fn run_invalidator(socket: impl AsFd) -> io::Result<()> {
    let (text, descriptors) = packet::receive(&socket)?;
    let device = descriptors.into_iter().next().map(Device::adopt);
    let (DEVICE, Some(Ok(device))) = (text.as_slice(), device) else {
        return Err(io::Error::other("the first packet brings no device"));
    };
    loop {
        let asked = match packet::receive(&socket) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            asked => asked?,
        };
        let all = Invalidation::all_from_bytes(&asked.0).ok_or(Errno::INVAL);
        let code = match all.and_then(|all| Invalidation::call_all(&all, &device)) {
            Ok(true) => KNOWN,
            Ok(false) => UNKNOWN,
            Err(errno) => errno.raw_os_error(),
        };
        packet::send(&socket, &code.to_ne_bytes(), &[])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalidations_are_read_as_they_were_written() {
        let one = Invalidation::one(Ino::ROOT, ATTRIBUTES_ONLY, 4096);
        let many = Invalidation {
            first: 7,
            count: 9,
            ..one
        };
        let bytes = [one.to_bytes(), many.to_bytes()].concat();
        assert_eq!(Invalidation::all_from_bytes(&bytes), Some(vec![one, many]));
        assert_eq!(Invalidation::all_from_bytes(&bytes[1..]), None);
    }
}
