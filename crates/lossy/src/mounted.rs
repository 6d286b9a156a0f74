//! A [`Disk`] as a mounted file system, and its loss of power.
//!
//! What the kernel holds of such a file system would outlive the loss: pages it has read, pages
//! written through a mapping and not yet passed on, names. So before a loss it is made to pass on all
//! that is left (as changes that no sync covers) and unmounted; what the disk has kept is mounted as new.
//!
//! Invariants: while power is lost nobody uses the file system: a loss fails as long as anybody
//! does, and then changes nothing. Dropped, it is mounted no more.

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

/// More room than a test needs; what is not used costs nothing.
const ROOM: DiskOptions = DiskOptions {
    capacity_bytes: 4 << 30,
    capacity_files: 1 << 20,
};
/// What the mount table shows.
const NAME: &str = "lockstep-lossy";
/// Threads that take requests of the kernel.
const THREADS: usize = 4;
/// The kernel lets go of the files of a process that was killed a moment after that is gone.
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
    /// Mounts a new, empty disk. Files and directories belong to root, whoever makes them.
    ///
    /// # Errors
    /// Those of mounting; then nothing is mounted.
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

    /// Where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The disk. What of it is not on stable storage does not include what was written through a
    /// mapping and not yet passed on by the kernel.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Power is lost: of what was not synced any subset is left. Returns how it was chosen.
    ///
    /// # Errors
    /// `ResourceBusy` when somebody still uses the file system after 10 s, and nothing is lost;
    /// those of mounting.
    pub fn lose_power(&mut self, random: &mut Random) -> io::Result<Survivors> {
        self.detach()?;
        let survivors = self.disk.power_loss(random);
        self.attach()?;
        Ok(survivors)
    }

    /// The same, with these survivors.
    ///
    /// # Errors
    /// As [`Self::lose_power`].
    pub fn lose_power_with(&mut self, survivors: Survivors, random: &mut Random) -> io::Result<()> {
        self.detach()?;
        self.disk.power_loss_with(survivors, random);
        self.attach()
    }

    /// The file system is unmounted and mounted anew: all is saved that can be, and what failed syncs
    /// have given up is not seen any more.
    ///
    /// # Errors
    /// As [`Self::lose_power`]; those of the disk, as which it is mounted anew as it was.
    pub fn mount_anew(&mut self) -> io::Result<()> {
        // The kernel tells once of the writes that have failed since it was asked last.
        let _told_late = rustix::fs::syncfs(File::open(&self.mount_point)?);
        self.detach()?;
        let saved = self.disk.mount().forget_cached();
        self.attach()?;
        saved
    }

    /// From now on no sync ends, as if the disk hung. Whoever waits for one cannot even be killed
    /// before [`Self::release_syncs`].
    pub fn hold_syncs(&self) {
        self.gate.close();
    }

    /// From now on no sync of the file at `path`, from the top of the disk, ends. All others do: the kernel
    /// has a write to a file wait for a sync of that file, and who writes to other files notices nothing.
    pub fn hold_syncs_of(&self, path: &str) {
        self.gate.close_for(path);
    }

    /// Lets syncs end again, also those that wait.
    pub fn release_syncs(&self) {
        self.gate.open();
    }

    /// How many syncs wait to be released.
    pub fn held_syncs(&self) -> usize {
        self.gate.waiting()
    }

    /// Starts a program whose calls of `syncfs` reach this disk. The kernel tells a FUSE file system
    /// nothing of them: in a program that was started otherwise they succeed and save nothing.
    /// `command` is of no use afterwards.
    ///
    /// # Errors
    /// Those of starting; then it does not run.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let target = Target {
            mount_point: self.mount_point.clone(),
            disk: self.disk.take(),
            gate: Arc::clone(&self.gate),
        };
        syncs::spawn(command, target)
    }

    fn attach(&mut self) -> io::Result<()> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(NAME.to_owned())];
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let server = Server::new(self.disk.take(), Arc::clone(&self.gate));
        self.session = Some(Session::new(server, &self.mount_point, &config)?.spawn()?);
        Ok(())
    }

    /// Has the kernel pass on all it has, unmounts, and waits for the end.
    fn detach(&mut self) -> io::Result<()> {
        // Saves nothing on the disk: it is not told.
        rustix::fs::syncfs(File::open(&self.mount_point)?)?;
        let deadline = Instant::now() + PATIENCE;
        while let Err(errno) = rustix::mount::unmount(&self.mount_point, UnmountFlags::empty()) {
            if errno != Errno::BUSY || Instant::now() > deadline {
                return Err(errno.into());
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        match self.session.take().map(BackgroundSession::join) {
            // The unmount came while a thread was taking the news that a file was closed.
            Some(Err(error)) if error.kind() != io::ErrorKind::ConnectionAborted => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Lossy {
    /// Does not wait for those who still have files open.
    fn drop(&mut self) {
        self.gate.open();
        if self.session.is_some() {
            let _ = rustix::mount::unmount(&self.mount_point, UnmountFlags::DETACH);
        }
    }
}
