//! The guard of a mount: a process that has the kernel drop its caches when the lease of the node is over, also if the node
//! is suspended or gone (`docs/adr/0014`).
//!
//! The node is suspended, hangs, or is gone and its mount is held: then no thread of the node drops anything, and the kernel
//! would go on answering from its caches while the other node serves. The guard has the device and the memory of the mount, with
//! the end of the lease and the numbers of all inodes that the kernel knows. The node never sends it a message: the two share a
//! timer that rings at the end of the lease (`lease_watch`), so a lease that goes on wakes nobody.
//!
//! The guard ends when
//! - the mount is gone,
//! - another guard has taken its place (a new process has resumed the mount), or
//! - no process keeps the mount any more: the node has ended, and so has the holder, if there is one. The node and the holder share
//!   one open file of the memory, which is locked, and the guard waits for the lock through an open file of its own.
//!
//! Invariants:
//! - The guard holds the device open for no longer than that, so the mount of a node without a holder ends with the node.
//! - The guard touches no file of the mount.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::guard_sweep::GuardSweep;
use super::known_inodes::ranges;
use super::lease_watch::{LeaseSight, LeaseWatch};
use crate::device::child_process::hidden_command;
use crate::device::connection_abort::ConnectionAbort;
use crate::device::fuse_device::Device;
use crate::hold::packet;
use crate::memory::guard_words::machine_time;
use crate::memory::lease_timer::LeaseTimer;
use crate::memory::mount_memory::MountMemory;

/// The hidden command of the process. Its standard input is a socket, which brings one packet.
const COMMAND: &str = "guard";

/// Attempts to begin a drop in the time of a lease.
const ATTEMPTS_IN_LEASE: u32 = 3;

/// Pause before another start of a guard.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The mount that a guard is for.
#[derive(Debug)]
pub(crate) struct GuardedMount {
    /// This program.
    pub program: PathBuf,
    pub mount_point: PathBuf,
    pub device: Device,
    pub memory: MountMemory,
    /// Rings at the end of each lease that this process shows.
    pub timer: Arc<LeaseTimer>,
    /// The length of a lease.
    pub lease: Duration,
}

impl GuardedMount {
    /// Starts the guard, and starts it again if it ends before the mount does, or cannot be started.
    pub fn start(self) -> io::Result<()> {
        let guard = self.spawn().inspect_err(note_failure).ok();
        let named = thread::Builder::new().name("fuse-guard".to_owned());
        named.spawn(move || self.keep(guard)).map(drop)
    }

    fn keep(&self, mut guard: Option<Child>) {
        loop {
            let ended = guard.as_mut().map(Child::wait);
            if self.device.is_dead() {
                return;
            }
            if let Some(ended) = ended {
                tracing::warn!(
                    ?ended,
                    "the guard of the mount has ended: starting another one"
                );
            }
            guard = start_again(RESTART_PAUSE, || self.device.is_dead(), || self.spawn());
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let (socket, theirs) = packet::open_pair()?;
        let number = self.memory.guard_words().next_number()?;
        // The packet is there before the process begins: this process may be suspended at any moment.
        let descriptors = [self.device.as_fd(), self.memory.as_fd(), self.timer.as_fd()];
        let lease_ms = self.lease.as_millis();
        packet::send(
            &socket,
            format!("{number} {lease_ms}").as_bytes(),
            &descriptors,
        )?;
        hidden_command(&self.program, COMMAND)
            .arg(&self.mount_point)
            .stdin(theirs)
            // A stop of the node's process group is for the node.
            .process_group(0)
            .spawn()
    }
}

/// Starts a process after a pause, again and again until that succeeds. `None` once `is_over` says so. The system may be short of
/// memory or processes for a moment: a guard that is given up would be missed at the next failover.
fn start_again<T>(
    pause: Duration,
    is_over: impl Fn() -> bool,
    mut start: impl FnMut() -> io::Result<T>,
) -> Option<T> {
    let mut is_told = false;
    loop {
        thread::sleep(pause);
        if is_over() {
            return None;
        }
        match start() {
            Ok(started) => return Some(started),
            Err(error) if !std::mem::replace(&mut is_told, true) => note_failure(&error),
            Err(_) => {}
        }
    }
}

/// Logs that a mount has no guard.
pub(crate) fn note_failure(error: &io::Error) {
    tracing::error!(
        %error,
        "the mount has no guard: if this process is suspended or killed, programs on this node may read from the kernel's \
         caches what the other node has changed since"
    );
}

/// See the head of this file.
struct Guard {
    number: u64,
    /// The pause before another attempt to begin a drop.
    pause: Duration,
    /// `None` if the kernel has no such file: then only `umount -f` ends a call that is held up.
    connection: Option<ConnectionAbort>,
    memory: MountMemory,
    watch: LeaseWatch,
    device: Arc<Device>,
    sweep: GuardSweep,
}

/// The process of a guard: returns when the guard ends.
///
/// # Errors
/// If the socket brings no mount, or the memory cannot be read.
pub fn run_guard(socket: impl AsFd) -> io::Result<()> {
    let (text, descriptors) = packet::receive(&socket)?;
    let guard = Arc::new(Guard::of(&text, descriptors)?);
    let kept = guard.memory.clone();
    let waiting = Arc::clone(&guard);
    let wait = move || match await_lock(&kept) {
        Ok(()) => waiting.leave(),
        Err(_) => std::process::exit(1),
    };
    let named = thread::Builder::new().name("guard-wait".to_owned());
    named.spawn(wait)?;
    guard.run()
}

/// Waits until no other process keeps the memory.
fn await_lock(memory: &MountMemory) -> io::Result<()> {
    loop {
        match flock(memory, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            locked => return Ok(locked?),
        }
    }
}

/// Opens a memory file anew: a copy of the descriptor would share the lock of the node and the holder.
fn open_anew(descriptor: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let file = File::options().read(true).write(true).open(path)?;
    Ok(file.into())
}

impl Guard {
    fn of(text: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let text = std::str::from_utf8(text).unwrap_or_default();
        let (number, lease_ms) = text.split_once(' ').unwrap_or_default();
        let descriptors = <[OwnedFd; 3]>::try_from(descriptors);
        let (Ok(number), Ok(lease_ms), Ok([device, memory, timer])) =
            (number.parse(), lease_ms.parse(), descriptors)
        else {
            return Err(io::Error::other("the first packet brings no mount"));
        };
        let device = Device::adopt(device).map_err(|_| io::Error::other("no device"))?;
        let (opened, record) = MountMemory::open(open_anew(&memory)?)?;
        drop(memory);
        let device = Arc::new(device);
        Ok(Self {
            number,
            pause: Duration::from_millis(lease_ms) / ATTEMPTS_IN_LEASE,
            connection: ConnectionAbort::open(record.mount_id).ok(),
            watch: LeaseWatch::new(opened.guard_words(), LeaseTimer::adopt(timer)?),
            memory: opened,
            sweep: GuardSweep::new(Arc::clone(&device)),
            device,
        })
    }

    /// Watches the lease until the mount is gone, or another guard has taken the place of this one.
    fn run(self: &Arc<Self>) -> io::Result<()> {
        loop {
            if self.device.is_dead() || self.watch.number()? != self.number {
                return Ok(());
            }
            match self.watch.look(machine_time())? {
                LeaseSight::Wait(limit) => self.sleep(limit),
                LeaseSight::Over(end) => {
                    let dropped = self.begin_drop(end);
                    // Without a thread or memory for a call, the drop is tried again: the node may be in no state to start
                    // another guard. A lease that no program has shown is due again and again.
                    if dropped.is_err() || end.is_zero() {
                        self.sleep(self.pause);
                    }
                }
            }
        }
    }

    /// Sleeps until the timer rings or the mount is gone, but not for longer than `limit`.
    fn sleep(&self, limit: Duration) {
        // An error is one of the device: the next look finds that.
        let _slept = self.device.await_end_or(&self.watch, limit);
    }

    /// Drops the kernel's caches after the end of a lease. A call that is held up goes on beside the further looks.
    fn begin_drop(self: &Arc<Self>, end: Duration) -> io::Result<()> {
        let inodes = ranges(&self.memory.known_inodes()?);
        self.sweep.run(&inodes)?;
        self.watch.note_drop(end)
    }

    /// Ends this process: no process keeps the mount any more. A call that is held up would keep the device open, and programs
    /// would wait without end. So the connection is ended first.
    fn leave(&self) -> ! {
        if let Some(connection) = &self.connection {
            // The end of this process closes the device, if no call is held up.
            let _aborted = connection.abort();
        }
        std::process::exit(0)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_guard_that_cannot_be_started_is_tried_again_until_the_mount_is_gone() {
        let failures = Cell::new(3);
        let start = || {
            failures.set(failures.get() - 1);
            if failures.get() > 0 {
                Err(io::ErrorKind::OutOfMemory.into())
            } else {
                Ok(7)
            }
        };
        assert_eq!(start_again(Duration::ZERO, || false, start), Some(7));
        failures.set(3);
        let is_over = || failures.get() == 2;
        assert_eq!(start_again(Duration::ZERO, is_over, start), None);
    }
}
