//! A small file system for one store, which a test can fill from outside and empty.
//!
//! Invariant: nothing is mounted and no loop device is in use after [`SmallDisk`] is dropped.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Advice, FallocateFlags};
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

use crate::node::NodeEnvironment;

/// Space for the store of a test and little more.
pub const DISK_BYTES: u64 = 512 << 20;
/// Bytes of one write to the last gaps.
const DROP_BYTES: usize = 4096;

/// The file system, in a file.
pub struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// An empty ext4.
    pub fn make() -> Self {
        Self::of(DISK_BYTES, &[])
    }

    /// An empty ext4 of so many bytes, made with these options of `mkfs.ext4`.
    pub fn of(bytes: u64, options: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("lsf.").tempdir().unwrap();
        let disk = Self { dir };
        let image = disk.image();
        File::create(&image).unwrap().set_len(bytes).unwrap();
        fs::create_dir(disk.root()).unwrap();
        let mut mkfs = Command::new("mkfs.ext4");
        run(mkfs.args(["-q", "-F"]).args(options).arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(disk.root()));
        disk
    }

    /// The file that is the disk.
    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Flips a bit of a block of a file on the disk, below the memory of the kernel. The block has these bytes, and no other one has.
    pub fn rot(&self, block: &[u8]) {
        fs::File::open(self.root())
            .and_then(|root| Ok(rustix::fs::syncfs(root)?))
            .unwrap();
        let disk = fs::read(self.image()).unwrap();
        let mut places = disk.chunks_exact(block.len());
        let at = places
            .position(|found| found == block)
            .expect("the block is on the disk");
        let other = places.position(|found| found == block);
        assert_eq!(other, None, "the block is on the disk twice");
        let image = fs::OpenOptions::new().write(true).open(self.image());
        let at = (at * block.len()) as u64;
        image.unwrap().write_all_at(&[block[0] ^ 1], at).unwrap();
    }

    /// Writes all changes to the disk, and has the kernel forget what it has of the files in memory.
    pub fn forget_cached(&self) {
        let root = fs::File::open(self.root()).unwrap();
        rustix::fs::syncfs(root).unwrap();
        forget_below(&self.root());
    }

    /// The mount point.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// This machine, with the store on this disk.
    pub fn environment(&self) -> NodeEnvironment {
        NodeEnvironment {
            disk: Some(self.root()),
            ..NodeEnvironment::default()
        }
    }

    /// Leaves so many bytes free until the result is dropped.
    pub fn leave(&self, bytes: u64) -> Ballast {
        let space = rustix::fs::statvfs(self.root()).unwrap();
        let path = self.root().join("ballast");
        let file = File::create(&path).unwrap();
        let ballast = Ballast { path };
        let most = space.f_bavail * space.f_frsize - bytes;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, most).unwrap();
        ballast
    }

    /// Leaves no free space until the result is dropped.
    pub fn fill(&self) -> Ballast {
        self.fill_with("ballast")
    }

    /// Fills the disk beside other ballast.
    pub fn fill_more(&self) -> Ballast {
        self.fill_with("more ballast")
    }

    fn fill_with(&self, name: &str) -> Ballast {
        let path = self.root().join(name);
        let file = File::create(&path);
        let ballast = Ballast { path };
        let Ok(mut file) = file else {
            // The disk has no space for a new file either.
            return ballast;
        };
        while file.write_all(&[0; DROP_BYTES]).is_ok() {}
        // Also takes the space that was promised to unwritten pages.
        let _ = file.sync_all();
        while file.write_all(&[0; DROP_BYTES]).is_ok() {}
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.root(), UnmountFlags::empty());
    }
}

/// A file that fills the disk; dropping it frees the space.
pub struct Ballast {
    path: PathBuf,
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn forget_below(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            forget_below(&path);
        } else if let Ok(file) = File::open(&path) {
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}
