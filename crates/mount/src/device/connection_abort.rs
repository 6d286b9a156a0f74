//! The file by which the kernel ends the connection of a mount: every request that waits, and every later one, fails.
//!
//! The file is in the kernel's file system of FUSE connections (`fusectl`). It is opened while the mount is in the mount table,
//! and works after the mount has left the table, too. The file system need not be mounted: this module mounts it where no path
//! leads.

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::mount_table;

/// An open connection. It does not keep the mount alive.
#[derive(Debug)]
pub(crate) struct ConnectionAbort(File);

impl ConnectionAbort {
    /// Opens the connection of a mount, by the number of the mount in the mount table.
    pub fn open(mount_id: u64) -> io::Result<Self> {
        let entry = mount_table::mount_numbered(mount_id).map_err(io::Error::other)?;
        let number = entry.map(|entry| entry.device_minor);
        let number = number.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&control)?;
        let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        let root = fsmount(&control, flags, attributes)?;
        let path = format!("{number}/abort");
        let file = openat(&root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self(file.into()))
    }

    /// Ends the connection.
    pub fn abort(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
}
