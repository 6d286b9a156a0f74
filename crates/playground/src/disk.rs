//! A disk of one server of a playground, which can lose its power: an ext4 file system in a file, mounted with a loop device.
//!
//! A loss of power drops everything that the file system holds in memory. The kernel has only one boot id. A process that starts
//! after the loss therefore runs in a mount namespace of its own, in which another file covers the kernel's.
//!
//! Needs root, `mkfs.ext4` and loop devices. A machine without them has no such disks.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lockstep_types::DatastoreUuid;
use rustix::ioctl::{Setter, ioctl, opcode};
use rustix::mount::{UnmountFlags, unmount};

use crate::mounts;

/// Bytes of the file system. Its file takes what is written.
const BYTES: u64 = 4 << 30;
/// The call that shuts an ext4 file system down: `EXT4_IOC_SHUTDOWN`.
const SHUTDOWN: u32 = opcode::read::<u32>(b'X', 125);
/// Also what the journal holds in memory is lost: `EXT4_GOING_FLAGS_NOLOGFLUSH`.
const WITHOUT_FLUSH: u32 = 2;
/// Covers the boot id by the file of the first argument, and runs the other arguments as a command.
const WITH_BOOT_ID: &str = "mount --make-rprivate /proc && \
     mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";

/// See the head of this file. It is unmounted and removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ServerDisk {
    image: PathBuf,
    boot_id: PathBuf,
    mount: PathBuf,
}

impl ServerDisk {
    /// Makes a disk, and mounts it at a directory.
    pub(crate) fn make(mount: &Path) -> Result<Self> {
        let disk = Self {
            image: mount.with_extension("disk"),
            boot_id: mount.with_extension("boot-id"),
            mount: mount.to_owned(),
        };
        fs::create_dir_all(mount).with_context(|| format!("cannot make {}", mount.display()))?;
        File::create_new(&disk.image)
            .and_then(|image| image.set_len(BYTES))
            .with_context(|| format!("cannot make {}", disk.image.display()))?;
        let options = ["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,nodiscard"];
        run(Command::new("mkfs.ext4").args(options).arg(&disk.image))?;
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<()> {
        let (image, mount) = (&self.image, &self.mount);
        run(Command::new("mount")
            .args(["-o", "loop"])
            .args([image, mount]))
    }

    /// Loses everything that is not on stable storage. No process may use the disk.
    ///
    /// Returns the beginning of a command that starts a process of the server after the loss: with another boot id.
    pub(crate) fn lose_power(&self) -> Result<Vec<String>> {
        let root = File::open(&self.mount)
            .with_context(|| format!("cannot open {}", self.mount.display()))?;
        // SAFETY: the call reads one number, and changes no memory of this process.
        unsafe { ioctl(root.as_fd(), Setter::<SHUTDOWN, u32>::new(WITHOUT_FLUSH)) }
            .with_context(|| format!("cannot shut {} down", self.mount.display()))?;
        drop(root);
        unmount(&self.mount, UnmountFlags::empty())
            .with_context(|| format!("cannot unmount {}", self.mount.display()))?;
        self.mount()?;
        fs::write(&self.boot_id, format!("{}\n", DatastoreUuid::random()))
            .with_context(|| format!("cannot write {}", self.boot_id.display()))?;
        let boot_id = self
            .boot_id
            .to_str()
            .context("the path is not UTF-8 text")?;
        let words = [
            "unshare",
            "--mount",
            "--propagation",
            "unchanged",
            "sh",
            "-c",
            WITH_BOOT_ID,
            boot_id,
        ];
        Ok(words.map(str::to_owned).to_vec())
    }
}

impl Drop for ServerDisk {
    fn drop(&mut self) {
        // The image goes with the directory of the playground, also if a mount of it stays.
        let _ = mounts::unmount_all(&self.mount);
        for file in [&self.image, &self.boot_id] {
            let _ = fs::remove_file(file);
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {}", name.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} failed: {}",
        name.display(),
        errors.trim_end()
    );
    Ok(())
}
