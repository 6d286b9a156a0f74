//! A [`Disk`] as a mounted file system, and its loss of power.
//!
//! The kernel's caches would outlive a power loss: pages it has read, pages written through a mapping and not
//! written back yet, names. So before a loss the kernel has to write back everything (as changes that no sync
//! covers), and the file system is unmounted. The content that the disk has kept is then mounted again.
//!
//! Invariants: no process uses the file system during a power loss. While any process uses it, a loss fails
//! and changes nothing. A dropped file system is unmounted.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, Session};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::disk::{Disk, DiskOptions, Survivors};
use crate::fuse::Server;
use crate::gate::Gate;
use crate::random::Random;
use crate::syncs::{self, Target};

/// More room than a test needs. Unused room costs nothing.
const ROOM: DiskOptions = DiskOptions {
    capacity_bytes: 4 << 30,
    capacity_files: 1 << 20,
};
/// The source that the mount table shows.
const NAME: &str = "lockstep-lossy";
/// Number of threads that take requests of the kernel.
const THREADS: usize = 4;
/// The kernel closes the files of a killed process a moment after the process ended.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// A disk, mounted. Needs root and `/dev/fuse`.
pub struct Lossy {
    disk: Disk,
    mount_point: PathBuf,
    gate: Arc<Gate>,
    session: Option<BackgroundSession>,
}

impl Lossy {
    /// Mounts a new, empty disk. Files and directories always belong to root.
    ///
    /// # Errors
    /// Errors of mounting; then nothing is mounted.
    pub fn mount(mount_point: impl Into<PathBuf>) -> io::Result<Self> {
        let mut lossy = Self {
            disk: Disk::new(ROOM),
            mount_point: mount_point.into(),
            gate: Arc::default(),
            session: None,
        };
        lossy.attach()?;
        Ok(lossy)
    }

    /// The mount point.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The disk. It does not know writes through a mapping that the kernel has not written back yet.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Loses power: any subset of the unsynced changes survives. Returns the choice.
    ///
    /// # Errors
    /// `ResourceBusy` if a process still uses the file system after 10 s, and nothing is lost; errors of
    /// mounting.
    pub fn lose_power(&mut self, random: &mut Random) -> io::Result<Survivors> {
        self.detach()?;
        let survivors = self.disk.power_loss(random);
        self.attach()?;
        Ok(survivors)
    }

    /// Loses power with the given survivors.
    ///
    /// # Errors
    /// As [`Self::lose_power`].
    pub fn lose_power_with(&mut self, survivors: Survivors, random: &mut Random) -> io::Result<()> {
        self.detach()?;
        self.disk.power_loss_with(survivors, random);
        self.attach()
    }

    /// Unmounts and mounts again: saves all that can be saved, and no longer shows the changes that failed
    /// syncs gave up.
    ///
    /// # Errors
    /// As [`Self::lose_power`]; errors of the disk, which is then mounted unchanged.
    pub fn remount(&mut self) -> io::Result<()> {
        // The kernel reports once the writes that have failed since the last such call.
        let _told_late = rustix::fs::syncfs(File::open(&self.mount_point)?);
        self.detach()?;
        let saved = self.disk.mount().forget_cached();
        self.attach()?;
        saved
    }

    /// From now on no sync ends, as if the disk hung. A process that waits for a sync cannot even be killed
    /// before [`Self::release_syncs`].
    pub fn hold_syncs(&self) {
        self.gate.close();
    }

    /// From now on no sync of the file at `path` (from the top of the disk) ends. All other syncs end. The
    /// kernel lets a write to a file wait for a sync of that file; writers of other files notice nothing.
    pub fn hold_syncs_of(&self, path: &str) {
        self.gate.close_for(path);
    }

    /// Lets syncs end again, waiting syncs too.
    pub fn release_syncs(&self) {
        self.gate.open();
    }

    /// Number of syncs that wait for a release.
    pub fn held_syncs(&self) -> usize {
        self.gate.waiting()
    }

    /// Starts a program whose `syncfs` calls reach this disk. The kernel does not pass `syncfs` to a FUSE
    /// file system: in other programs the calls succeed and save nothing. `command` cannot be used again.
    ///
    /// # Errors
    /// Errors of starting; then the program does not run.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let target = Target {
            mount_point: self.mount_point.clone(),
            disk: self.disk.mount_for_kernel(),
            gate: Arc::clone(&self.gate),
        };
        syncs::spawn(command, target)
    }

    fn attach(&mut self) -> io::Result<()> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(NAME.to_owned())];
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let server = Server::new(self.disk.mount_for_kernel(), Arc::clone(&self.gate));
        self.session = Some(Session::new(server, &self.mount_point, &config)?.spawn()?);
        Ok(())
    }

    /// Lets the kernel write back everything, unmounts, and waits for the end.
    fn detach(&mut self) -> io::Result<()> {
        // Saves nothing on the disk: the kernel does not pass the call on.
        rustix::fs::syncfs(File::open(&self.mount_point)?)?;
        let deadline = Instant::now() + PATIENCE;
        while let Err(errno) = rustix::mount::unmount(&self.mount_point, UnmountFlags::empty()) {
            if errno != Errno::BUSY || Instant::now() > deadline {
                return Err(errno.into());
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        match self.session.take().map(BackgroundSession::join) {
            // The unmount came while a thread received the notice of a closed file.
            Some(Err(error)) if error.kind() != io::ErrorKind::ConnectionAborted => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Lossy {
    /// Does not wait for processes that still have files open.
    fn drop(&mut self) {
        self.gate.open();
        if self.session.is_some() {
            let _ = rustix::mount::unmount(&self.mount_point, UnmountFlags::DETACH);
        }
    }
}
