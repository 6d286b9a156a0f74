//! A server that can lose power: a disk of its own that forgets, fails and hangs when told to, and a
//! boot id of its own.
//!
//! What the kernel has only one of, the boot id, every process of a server sees in a mount namespace
//! of its own, where a file lies over it; the nodes are the programs as they are shipped.
//!
//! Invariants: the processes of a server are gone when it loses power; its next ones see another boot
//! id. All mounts are made in a namespace of the test, and go with it, however that ends; so does what
//! a node leaves in `/run`.

#![allow(dead_code)] // not every test uses all of it

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
use crate::nodes::{Ground, STORE};

/// Where the kernel tells its boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A server. Clones are the same one.
#[derive(Clone)]
pub struct Server(Arc<Inside>);

struct Inside {
    lossy: Mutex<Lossy>,
    dir: TempDir,
}

impl Server {
    /// A new one, which has lost nothing yet. The thread must have called [`isolate`].
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("lsp.").tempdir().unwrap();
        let disk = dir.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let lossy = Mutex::new(Lossy::mount(disk).unwrap());
        let server = Self(Arc::new(Inside { lossy, dir }));
        server.boot();
        server
    }

    /// What a node stands on that runs here.
    pub fn ground(&self) -> Ground {
        let server = self.clone();
        Ground {
            disk: Some(self.0.lossy.lock().mount_point().to_owned()),
            spawn: Arc::new(move |command| server.spawn(command)),
        }
    }

    /// Of what was not synced anything may be lost. Nothing may run here.
    pub fn lose_power(&self, chance: &mut Chance) {
        let mut lossy = self.0.lossy.lock();
        let survivors = lossy.lose_power(&mut Random::new(chance.any())).unwrap();
        println!("power lost, and with it what was not synced but {survivors:?}");
        self.boot();
    }

    /// Calls of the disk fail from now on.
    pub fn fail(&self, failure: Failure) {
        let lossy = self.0.lossy.lock();
        match failure {
            Failure::Of(class, nth) => lossy.disk().fail_call(class, nth, Errno::Io),
            Failure::OfAll(class) => lossy.disk().fail_calls(class, Errno::Io),
        }
    }

    /// The disk does not fail any more. What it has lost is not seen any more once memory does not hold
    /// it. Nothing may run here.
    pub fn repair(&self) {
        let lossy = self.0.lossy.lock();
        lossy.disk().stop_failing();
        lossy.disk().drop_lost_pages();
    }

    /// The same, with its file system unmounted, checked and mounted anew.
    pub fn repair_and_mount_anew(&self) {
        let mut lossy = self.0.lossy.lock();
        lossy.disk().stop_failing();
        lossy.remount().unwrap();
    }

    /// No sync of the disk ends as long as the result lives.
    pub fn hang(&self) -> Hang {
        self.0.lossy.lock().hold_syncs();
        Hang(self.clone())
    }

    /// No sync of that file in the store ends as long as the result lives. Whoever writes other files does
    /// not notice: the kernel has only a write to the same file wait for a sync.
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
            // Or the others would see that boot id too.
            mount_change(&proc, MountPropagationFlags::PRIVATE)?;
            mount_bind(&boot_id, &kernels)?;
            Ok(())
        };
        // SAFETY: between fork and exec it makes system calls only and allocates nothing.
        unsafe { command.pre_exec(enter) };
        self.0.lossy.lock().spawn(command)
    }
}

/// What of a disk fails, with `EIO`.
#[derive(Clone, Copy, Debug)]
pub enum Failure {
    /// One call of the class: the next if it is 1.
    Of(CallClass, u64),
    /// All of the class.
    OfAll(CallClass),
}

/// A disk that hangs. Nobody who waits for it can be killed, so this must go before the nodes do.
pub struct Hang(Server);

impl Hang {
    /// How many syncs wait.
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

/// Takes this thread, and those that it starts, to a mount namespace of its own, with a `/run` of its
/// own: what is mounted there is seen by the servers of the test, not by the machine, and goes with the
/// test.
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
