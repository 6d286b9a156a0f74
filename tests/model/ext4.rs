//! A private ext4 for one test, to compare a mount with. A program may expect from a datastore the behaviour
//! that it sees on ext4.
//!
//! Invariant: nothing is mounted and no loop device is in use after [`Ext4`] is dropped.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use rustix::mount::UnmountFlags;
use tempfile::TempDir;

const DISK_BYTES: u64 = 64 << 20;

/// The file system, in a file.
pub struct Ext4 {
    directory: TempDir,
}

impl Ext4 {
    /// Creates and mounts an empty file system. Needs root and a loop device.
    pub fn new() -> Self {
        let ext4 = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        let image = ext4.directory.path().join("image");
        File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        fs::create_dir(ext4.root()).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(ext4.root()));
        ext4
    }

    /// The mount point.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.root(), UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}
