//! A file system for stores, whose changes a test stops: they do not return, and report no error.
//!
//! Invariant: nothing hangs or is mounted after the values here are dropped, also if the test fails. If the test is killed,
//! the changes go on.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use lockstep_testbed::{NodeEnvironment, await_that};
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

/// Size of the file system: room for two stores.
const DISK_BYTES: u64 = 1 << 30;
/// Lets the changes go on when the standard input ends.
const THAW: &str = "cat > /dev/null; exec fsfreeze --unfreeze \"$0\"";

/// The file system, in a file.
pub struct StallingDisk(TempDir);

impl StallingDisk {
    /// An empty ext4.
    pub fn make() -> Self {
        let disk = Self(tempfile::Builder::new().prefix("lsw.").tempdir().unwrap());
        let image = disk.0.path().join("image");
        File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        fs::create_dir(disk.root()).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(disk.root()));
        disk
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }

    /// This machine, with the store in a directory of this disk.
    pub fn environment(&self, directory: &str) -> NodeEnvironment {
        let disk = self.root().join(directory);
        fs::create_dir(&disk).unwrap();
        NodeEnvironment {
            disk: Some(disk),
            ..NodeEnvironment::default()
        }
    }

    /// Stops all changes, until the result is dropped.
    pub fn stall(&self) -> Stall {
        let thawing = Command::new("sh")
            .args(["-c", THAW])
            .arg(self.root())
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn();
        let stall = Stall(thawing.unwrap());
        run(Command::new("fsfreeze").arg("--freeze").arg(self.root()));
        stall
    }
}

impl Drop for StallingDisk {
    fn drop(&mut self) {
        // A killed node may have just ended.
        let mut unmounted = false;
        let mut tries = 0;
        while !unmounted && tries < 100 {
            unmounted = rustix::mount::unmount(self.root(), UnmountFlags::empty()).is_ok();
            tries += 1;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if !unmounted {
            let _ = rustix::mount::unmount(self.root(), UnmountFlags::DETACH);
        }
    }
}

/// The stop of all changes.
pub struct Stall(Child);

impl Stall {
    /// Lets the changes go on.
    pub fn end(mut self) {
        drop(self.0.stdin.take());
        await_that("the thaw", || self.0.try_wait().unwrap().is_some());
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}
