//! The `syncfs` calls of a program, passed on to the disk.
//!
//! The kernel answers `syncfs` on a FUSE file system itself (only virtiofs gets the call). So a program is
//! started with a seccomp filter that leaves these calls, and no others, to us. For each call the kernel
//! first writes back all writes through mappings, then the disk saves everything.
//!
//! Invariant: a call that returns success to the program has saved everything on the disk, unless the disk
//! has lost power meanwhile. The kernel answers calls for other file systems.

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;

use libc::{c_ulong, seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};
use lockstep_types::backing::Backing;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::disk::Mount;
use crate::gate::Gate;

/// Number and size of the two requests on the descriptor of a filter. libc does not define them.
const NOTIF_RECV: c_ulong = request(0, size_of::<seccomp_notif>());
const NOTIF_SEND: c_ulong = request(1, size_of::<seccomp_notif_resp>());
/// Leaves a call to the kernel.
const CONTINUE: u32 = 1;
/// Room for one descriptor in a message.
const ONE_FD: usize = rustix::cmsg_space!(ScmRights(1));

/// `_IOWR('!', number, size)`.
const fn request(number: c_ulong, size: usize) -> c_ulong {
    (3 << 30) | ((size as c_ulong) << 16) | ((b'!' as c_ulong) << 8) | number
}

/// The disk of the calls.
pub(crate) struct Target {
    pub mount_point: PathBuf,
    pub disk: Mount,
    /// The gate that calls pass before they save anything.
    pub gate: Arc<Gate>,
}

/// Starts a program whose `syncfs` calls for the file system of `target` save its disk.
pub(crate) fn spawn(command: &mut Command, target: Target) -> io::Result<Child> {
    let (ours, theirs) = UnixStream::pair()?;
    let filtered = move || send(&theirs, &filter_syncs()?);
    // SAFETY: between fork and exec the closure only makes system calls and allocates nothing.
    unsafe { command.pre_exec(filtered) };
    let mut child = command.spawn()?;
    let served = receive(&ours).and_then(|calls| {
        let serve = move || serve(&calls, &target);
        std::thread::Builder::new()
            .name("syncfs".to_owned())
            .spawn(serve)
    });
    if let Err(error) = served {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(child)
}

/// Installs a filter for the `syncfs` calls of this process and of the programs it executes. The reader of
/// the returned descriptor decides the calls.
fn filter_syncs() -> io::Result<OwnedFd> {
    let step = |code: u32, jf, k| sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt: 0,
        jf,
        k,
    };
    let wanted = u32::try_from(libc::SYS_syncfs).unwrap_or(u32::MAX);
    let mut steps = [
        // The number of the call comes first.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, wanted),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_USER_NOTIF),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog {
        len: u16::try_from(steps.len()).unwrap_or_default(),
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let made = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    match i32::try_from(made) {
        // SAFETY: a new descriptor without another owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn send(socket: &UnixStream, fd: &OwnedFd) -> io::Result<()> {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); ONE_FD];
    let mut message = SendAncillaryBuffer::new(&mut space);
    message.push(SendAncillaryMessage::ScmRights(&fds));
    let bytes = [io::IoSlice::new(b"f")];
    rustix::net::sendmsg(socket, &bytes, &mut message, SendFlags::empty())?;
    Ok(())
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); ONE_FD];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [io::IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(socket, &mut bytes, &mut message, flags)?;
    let fds = message.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.ok_or_else(|| io::Error::other("the program was started without its filter"))
}

/// Decides calls until no process with the filter exists.
fn serve(calls: &OwnedFd, target: &Target) {
    while wait(calls.as_fd()) {
        // An error means that the caller was killed meanwhile.
        if let Ok(call) = next(calls) {
            answer(calls, call.id, decide(&call, target).as_ref());
        }
    }
}

/// Waits for a call. Returns false if there will be no more calls.
fn wait(calls: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(calls, PollFlags::IN)];
    while let Err(error) = poll(&mut polled, None) {
        if error != rustix::io::Errno::INTR {
            return false;
        }
    }
    polled[0].revents().contains(PollFlags::IN)
}

fn next(calls: &OwnedFd) -> io::Result<seccomp_notif> {
    // SAFETY: the structure holds only numbers, for which zeros are valid; the kernel requires zeros.
    let mut call: seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the request writes one such structure.
    let done = unsafe { libc::ioctl(calls.as_raw_fd(), NOTIF_RECV, &raw mut call) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(call)
}

/// Decides a call: the outcome of a call for this disk, `None` for other file systems.
fn decide(call: &seccomp_notif, target: &Target) -> Option<io::Result<()>> {
    let [fd, ..] = call.data.args;
    let meant = fs::metadata(format!("/proc/{}/fd/{fd}", call.pid)).ok()?;
    let top = File::open(&target.mount_point).ok()?;
    if top.metadata().ok()?.dev() != meant.dev() {
        return None;
    }
    // Open until the disk is done: the file system cannot be unmounted meanwhile.
    let passed_on = rustix::fs::syncfs(&top);
    target.gate.pass(None);
    let saved = passed_on.map_err(Into::into);
    Some(saved.and_then(|()| target.disk.sync_all()))
}

fn answer(calls: &OwnedFd, id: u64, outcome: Option<&io::Result<()>>) {
    let error = match outcome {
        Some(Err(error)) => -error.raw_os_error().unwrap_or(libc::EIO),
        _ => 0,
    };
    let mut response = seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags: if outcome.is_none() { CONTINUE } else { 0 },
    };
    // SAFETY: the request reads one such structure. The request fails if the caller was killed.
    unsafe { libc::ioctl(calls.as_raw_fd(), NOTIF_SEND, &raw mut response) };
}
