//! One mount point: the checks before mounting, `mount(2)`, `umount(2)`.
//!
//! This module calls `mount(2)` itself, so the `fusermount3` helper need not be installed. After mounting, this
//! module must only read the mount table: a system call on the mount's path may send a request to this process.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use lockstep_types::limits::WRITE_BYTES_MAX;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::fuse_device::Device;
use super::init;
use super::mount_table::{self, MountEntry};
use crate::error::MountError;

/// Type of Lockstep's mounts in the mount table.
const KIND: &str = "fuse.lockstep";

/// A mount that this process made, or has resumed.
#[derive(Clone, Debug)]
pub(crate) struct MountPoint {
    path: PathBuf,
    /// Number of the mount in the mount table, so that no other mount on the same path is unmounted.
    id: u64,
}

/// The outcome of one `umount(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnmountAttempt {
    /// The mount is gone.
    Gone,
    /// Programs use it.
    Busy,
}

impl MountPoint {
    /// Checks whether the datastore `name` could be mounted on `path`.
    pub fn check(path: &Path, name: &str) -> Result<(), MountError> {
        Device::open()?;
        init::check_kernel(&rustix::system::uname().release().to_string_lossy())?;
        check_usable(path, &source_of(name)).map(drop)
    }

    /// Mounts the datastore `name` on `path`. Returns the descriptor of the FUSE device, too.
    pub fn mount(path: &Path, name: &str) -> Result<(Self, Device), MountError> {
        let source = source_of(name);
        let device = Device::open()?;
        let path = check_usable(path, &source)?;
        attach(&path, &source, &device)?;
        let Some(entry) = mount_table::mounts_on(&path)?.pop() else {
            let source = io::Error::other("the new mount is not in the mount table");
            return Err(MountError::Mount {
                mount_point: path,
                source,
            });
        };
        Ok((Self { path, id: entry.id }, device))
    }

    /// The mount of an earlier process, if it is still in the mount table under its number. Sends no request to it.
    pub fn adopt(id: u64, name: &str) -> Option<Self> {
        let entry = mount_table::mount_numbered(id).ok()??;
        let is_ours = entry.kind == KIND && entry.source == source_of(name);
        is_ours.then_some(Self {
            path: entry.path,
            id,
        })
    }

    /// Number of the mount in the mount table.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Path of the mount point, symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tries to unmount.
    pub fn unmount(&self) -> Result<UnmountAttempt, MountError> {
        self.unmount_with(UnmountFlags::empty())
    }

    /// Takes the mount out of the mount namespace, even while programs use it.
    pub fn detach(&self) -> Result<(), MountError> {
        self.unmount_with(UnmountFlags::DETACH).map(drop)
    }

    /// Ends the mount: every request that waits for an answer, and every later one, fails.
    pub fn abort(&self) -> Result<(), MountError> {
        self.unmount_with(UnmountFlags::FORCE | UnmountFlags::DETACH)
            .map(drop)
    }

    fn unmount_with(&self, flags: UnmountFlags) -> Result<UnmountAttempt, MountError> {
        if !self.is_visible()? {
            return Ok(UnmountAttempt::Gone);
        }
        match rustix::mount::unmount(&self.path, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(UnmountAttempt::Gone),
            Err(Errno::BUSY) => Ok(UnmountAttempt::Busy),
            Err(errno) => Err(MountError::Unmount {
                mount_point: self.path.clone(),
                source: errno.into(),
            }),
        }
    }

    /// Returns whether this mount is the visible mount of its path; false when it is gone.
    fn is_visible(&self) -> Result<bool, MountError> {
        let mounts = mount_table::mounts_on(&self.path)?;
        let ours = mounts.iter().any(|entry| entry.id == self.id);
        let visible = mounts.last().is_some_and(|entry| entry.id == self.id);
        if ours && !visible {
            return Err(MountError::Covered {
                mount_point: self.path.clone(),
            });
        }
        Ok(visible)
    }
}

/// The source of the mount, as the mount table shows it.
fn source_of(name: &str) -> String {
    format!("lockstep:{name}")
}

/// Checks that `path` can be mounted on, and resolves its symbolic links. Unmounts a dead mount of the same
/// datastore, which a killed process has left behind.
fn check_usable(path: &Path, source: &str) -> Result<PathBuf, MountError> {
    let path = resolve(path)?;
    while let Some(top) = mount_table::mounts_on(&path)?.pop() {
        clear_dead(&path, &top, source)?;
    }
    let metadata = fs::metadata(&path).map_err(|error| inspect(&path, error))?;
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory { mount_point: path });
    }
    Ok(path)
}

fn resolve(path: &Path) -> Result<PathBuf, MountError> {
    match fs::canonicalize(path) {
        // A dead mount may refuse even `realpath`.
        Err(error) if is_dead(&error) => {
            std::path::absolute(path).map_err(|error| inspect(path, error))
        }
        other => other.map_err(|error| inspect(path, error)),
    }
}

fn inspect(path: &Path, source: io::Error) -> MountError {
    let mount_point = path.to_path_buf();
    match source.kind() {
        io::ErrorKind::NotFound => MountError::Missing { mount_point },
        io::ErrorKind::NotADirectory => MountError::NotADirectory { mount_point },
        _ => MountError::Inspect {
            mount_point,
            source,
        },
    }
}

fn is_dead(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

fn clear_dead(path: &Path, top: &MountEntry, source: &str) -> Result<(), MountError> {
    let mount_point = path.to_path_buf();
    let what = top.describe();
    // `statfs` and not `stat`: the kernel may answer `stat` from its cache.
    let dead = rustix::fs::statfs(path).is_err_and(|errno| errno == Errno::NOTCONN);
    let is_ours = top.kind == KIND && top.source == source;
    match (dead, is_ours) {
        (true, true) => {}
        (true, false) => return Err(MountError::Dead { mount_point, what }),
        // An unmount would stop the service of the other node.
        (false, true) => return Err(MountError::Served { mount_point, what }),
        (false, false) => return Err(MountError::AlreadyMounted { mount_point, what }),
    }
    tracing::warn!(mount = %path.display(), "removing a mount that a dead process has left behind");
    rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .map_err(|errno| refused(path, errno))
}

/// Most names of a bare mount directory that are reported.
const REPORTED_NAMES_MAX: usize = 5;

/// Entries of a mount directory itself, below any mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BareEntries {
    /// Some of the names, in the order of the alphabet; bytes outside UTF-8 are replaced.
    pub names: Vec<String>,
    /// Whether the directory holds further names.
    pub more: bool,
}

/// Returns entries of the directory at `path` while nothing is mounted there. `None` if the directory is empty
/// or missing, or if a mount hides it. Reads only a few names.
pub fn bare_entries(path: &Path) -> Option<BareEntries> {
    // Before anything else: a mount without its process would not answer.
    if !mount_table::mounts_on(path).ok()?.is_empty() {
        return None;
    }
    let path = fs::canonicalize(path).ok()?;
    if !mount_table::mounts_on(&path).ok()?.is_empty() {
        return None;
    }
    let entries = fs::read_dir(path).ok()?.filter_map(Result::ok);
    let mut names: Vec<_> = entries
        .take(REPORTED_NAMES_MAX + 1)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let more = names.len() > REPORTED_NAMES_MAX;
    names.truncate(REPORTED_NAMES_MAX);
    names.sort();
    (!names.is_empty()).then_some(BareEntries { names, more })
}

fn attach(path: &Path, source: &str, device: &Device) -> Result<(), MountError> {
    // Device nodes and set-id bits of the datastore are honoured: no NODEV, no NOSUID. Reads change no access
    // time (docs/semantics.md), and the mount options show that.
    let flags = MountFlags::NOATIME;
    let options = options(device).map_err(|source| MountError::Mount {
        mount_point: path.to_path_buf(),
        source,
    })?;
    rustix::mount::mount(source, path, KIND, flags, options.as_c_str())
        .map_err(|errno| refused(path, errno))
}

/// The kernel checks permissions (`default_permissions`), and every user may use the mount (`allow_other`).
fn options(device: &Device) -> io::Result<CString> {
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other,max_read={}",
        device.as_raw_fd(),
        WRITE_BYTES_MAX,
    );
    Ok(CString::new(options)?)
}

fn refused(path: &Path, errno: Errno) -> MountError {
    let mount_point = path.to_path_buf();
    match errno {
        Errno::PERM | Errno::ACCESS => MountError::NotPermitted { mount_point },
        Errno::NODEV => MountError::NoFuse {
            source: errno.into(),
        },
        _ => MountError::Mount {
            mount_point,
            source: errno.into(),
        },
    }
}
