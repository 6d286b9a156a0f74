//! The FUSE device of one mount: the calls that fuser does not have.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl};

use crate::error::MountError;

/// Device number of `/dev/fuse`.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// `FUSE_DEV_IOC_CLONE`: attaches a new descriptor of the device to the mount of another descriptor.
const CLONE: rustix::ioctl::Opcode = 0x8004_E500;

/// Codes of the notifications below, in the kernel's `fuse.h`.
const NOTIFY_INVALIDATE_INODE: u32 = 2;
const NOTIFY_RESEND: u32 = 7;
const NOTIFY_NEW_EPOCH: u32 = 8;

/// Bytes of the header of a notification.
const HEADER_BYTES: usize = 16;

/// An open descriptor of `/dev/fuse`.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

impl Device {
    /// Opens the device, for a new mount.
    pub fn open() -> Result<Self, MountError> {
        open().map_err(|source| MountError::NoFuse { source })
    }

    /// Takes a kept descriptor, if it is one of the device.
    pub fn adopt(descriptor: OwnedFd) -> Result<Self, OwnedFd> {
        if is_fuse(&descriptor).unwrap_or(false) {
            Ok(Self(descriptor))
        } else {
            Err(descriptor)
        }
    }

    /// The same descriptor, a second time.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// The same device, a second time.
    pub fn again(&self) -> io::Result<Self> {
        self.duplicate().map(Self)
    }

    /// Another descriptor of the same mount, which reads requests of its own.
    pub fn another(&self) -> io::Result<Self> {
        let Self(other) = open()?;
        let of = u32::try_from(self.0.as_raw_fd()).unwrap_or(u32::MAX);
        // SAFETY: the opcode takes a pointer to a `u32`, from which the kernel only reads.
        unsafe { ioctl(&other, Setter::<CLONE, u32>::new(of)) }?;
        Ok(Self(other))
    }

    /// Makes the kernel send all requests again that were read and not answered.
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.9.
    pub fn resend_requests(&self) -> Result<(), Errno> {
        self.notify(NOTIFY_RESEND, &[])
    }

    /// Makes the kernel forget pages or attributes of an inode: the body is inode, offset and length.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the inode.
    pub fn invalidate(&self, body: &[u8]) -> Result<(), Errno> {
        self.notify(NOTIFY_INVALIDATE_INODE, body)
    }

    /// Makes the kernel look every name up again before it uses the name. Waits for nothing.
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.16.
    pub fn expire_names(&self) -> Result<(), Errno> {
        self.notify(NOTIFY_NEW_EPOCH, &[])
    }

    /// Returns which of `events` hold for the device now, and `ERR` if the mount is gone.
    ///
    /// # Errors
    /// If the system refuses to look.
    pub fn poll_now(&self, events: PollFlags) -> Result<PollFlags, Errno> {
        let mut watched = [PollFd::from_borrowed_fd(self.0.as_fd(), events)];
        let polled = poll(&mut watched, Some(&Timespec::default()));
        let [device] = watched;
        polled.map(|_| device.revents())
    }

    /// Waits until the mount is gone or `other` can be read, but not for longer than `limit`.
    ///
    /// # Errors
    /// If the system refuses to look, or a signal comes.
    pub fn await_end_or(&self, other: impl AsFd, limit: Duration) -> Result<(), Errno> {
        let limit = Timespec::try_from(limit).map_err(|_| Errno::INVAL)?;
        let mut watched = [
            PollFd::new(&self.0, PollFlags::empty()),
            PollFd::new(&other, PollFlags::IN),
        ];
        poll(&mut watched, Some(&limit)).map(drop)
    }

    /// Whether the mount is gone, as far as the system says so.
    pub fn is_dead(&self) -> bool {
        let polled = self.poll_now(PollFlags::empty());
        polled.map_or(true, |events| events.contains(PollFlags::ERR))
    }

    /// Sends a notification: a header with the unique number zero, and a body.
    fn notify(&self, code: u32, body: &[u8]) -> Result<(), Errno> {
        let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
        let mut message = Vec::from(length.to_ne_bytes());
        message.extend(code.to_ne_bytes());
        message.extend(0_u64.to_ne_bytes());
        message.extend(body);
        rustix::io::write(&self.0, &message).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

fn open() -> io::Result<Device> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")?
        .into();
    if is_fuse(&device)? {
        return Ok(Device(device));
    }
    Err(io::Error::other("it is another device"))
}

fn is_fuse(descriptor: &OwnedFd) -> io::Result<bool> {
    let number = rustix::fs::fstat(descriptor)?.st_rdev;
    Ok((rustix::fs::major(number), rustix::fs::minor(number)) == FUSE_DEVICE)
}
