//! A server that can lose power. The server has a boot id of its own, and a disk of its own that loses data, fails
//! and hangs on request.
//!
//! The kernel has only one boot id. Each process of a server therefore runs in a mount namespace of its own, in which
//! another file covers the kernel's. The nodes are the shipped programs.
//!
//! Invariants: no process of a server survives a power loss of the server; later processes see another boot id. All
//! mounts and the files of a node in `/run` lie in a mount namespace of the test, and vanish with the test, however
//! it ends.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use lockstep_lossy::Lossy;
use lockstep_lossy::disk::CallClass;
use lockstep_lossy::random::Random;
use lockstep_types::{DatastoreUuid, Errno};
use parking_lot::Mutex;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::thread::UnshareFlags;
use tempfile::TempDir;

use crate::chance::Chance;
use crate::node::{NodeEnvironment, STORE};

/// The kernel's file with the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A server. Clones refer to the same server.
#[derive(Clone)]
pub struct Server(Arc<Inside>);

struct Inside {
    lossy: Mutex<Lossy>,
    dir: TempDir,
}

impl Server {
    /// A new server that has lost nothing yet. The thread must have called [`isolate`].
    #[must_use]
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("lsp.").tempdir().unwrap();
        let disk = dir.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let lossy = Mutex::new(Lossy::mount(disk).unwrap());
        let server = Self(Arc::new(Inside { lossy, dir }));
        server.boot();
        server
    }

    /// The environment for a node on this server.
    pub fn environment(&self) -> NodeEnvironment {
        let server = self.clone();
        NodeEnvironment {
            disk: Some(self.0.lossy.lock().mount_point().to_owned()),
            spawn: Arc::new(move |command| server.spawn(command)),
        }
    }

    /// Loses any part of the unsynced data. No process may run on the server.
    pub fn lose_power(&self, chance: &mut Chance) {
        let mut lossy = self.0.lossy.lock();
        let survivors = lossy.lose_power(&mut Random::new(chance.any())).unwrap();
        println!("power lost; of the unsynced changes survive {survivors:?}");
        self.boot();
    }

    /// Makes calls of the disk fail from now on.
    pub fn fail(&self, failure: Failure) {
        let lossy = self.0.lossy.lock();
        match failure {
            Failure::Of(class, nth) => lossy.disk().fail_call(class, nth, Errno::Io),
            Failure::OfAll(class) => lossy.disk().fail_calls(class, Errno::Io),
        }
    }

    /// Ends the failures. Lost data stays visible while it is in memory. No process may run on the server.
    pub fn repair(&self) {
        let lossy = self.0.lossy.lock();
        lossy.disk().stop_failing();
        lossy.disk().drop_lost_pages();
    }

    /// Ends the failures, and unmounts, checks and remounts the file system of the disk.
    pub fn repair_and_remount(&self) {
        let mut lossy = self.0.lossy.lock();
        lossy.disk().stop_failing();
        lossy.remount().unwrap();
    }

    /// No sync of the disk ends while the result lives.
    pub fn hang(&self) -> Hang {
        self.0.lossy.lock().hold_syncs();
        Hang(self.clone())
    }

    /// No sync of that file in the store ends while the result lives. Writers of other files do not notice: the
    /// kernel blocks only a write to the same file until the sync ends.
    pub fn hang_on(&self, file: &str) -> Hang {
        let path = format!("{STORE}/{file}");
        self.0.lossy.lock().hold_syncs_of(&path);
        Hang(self.clone())
    }

    fn boot_id(&self) -> PathBuf {
        self.0.dir.path().join("boot_id")
    }

    fn boot(&self) {
        fs::write(self.boot_id(), format!("{}\n", DatastoreUuid::random())).unwrap();
    }

    fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let boot_id = path(&self.boot_id());
        let (proc, kernels) = (path(Path::new("/proc")), path(Path::new(BOOT_ID)));
        let enter = move || {
            // SAFETY: there is one thread, and all its descriptors stay its own.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
            // Otherwise the other servers would see that boot id too.
            mount_change(&proc, MountPropagationFlags::PRIVATE)?;
            mount_bind(&boot_id, &kernels)?;
            Ok(())
        };
        // SAFETY: between fork and exec it makes system calls only and allocates nothing.
        unsafe { command.pre_exec(enter) };
        self.0.lossy.lock().spawn(command)
    }
}

/// The calls of a disk that fail, with `EIO`.
#[derive(Clone, Copy, Debug)]
pub enum Failure {
    /// One call of the class: the next if it is 1.
    Of(CallClass, u64),
    /// All calls of the class.
    OfAll(CallClass),
}

/// A disk that hangs. A process that waits for the disk cannot be killed, so this value must be dropped before the
/// nodes.
pub struct Hang(Server);

impl Hang {
    /// The number of waiting syncs.
    pub fn waiting(&self) -> usize {
        self.0.0.lossy.lock().held_syncs()
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        self.0.0.lossy.lock().release_syncs();
    }
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Moves this thread, and later threads that it starts, to a new mount namespace with a new `/run`. The servers of
/// the test see the mounts in it, the machine does not, and the mounts vanish with the test.
pub fn isolate() {
    // SAFETY: the descriptors stay shared with the other threads.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS) }.unwrap();
    for how in [
        MountPropagationFlags::PRIVATE,
        MountPropagationFlags::SHARED,
    ] {
        mount_change("/", how | MountPropagationFlags::REC).unwrap();
    }
    mount("run", "/run", "tmpfs", MountFlags::empty(), None).unwrap();
}
