//! The grace of a node that is away: its process may restart while no other node can serve, and its clients only wait.
//!
//! A node says in each answer for how long a restart of its process is no failover. A run of the command remembers that for
//! itself, and in a file beside the control socket for the next run: the process may end between two runs.
//!
//! Invariants:
//! - A grace counts from before the question. So it is over before another node takes over.
//! - A grace is over when the mount is gone: then the node was stopped, and its clients do not wait.
//! - What cannot be read or written is no grace. Nor is a file that another user may have made, or a link.
//! - A grace is no longer than the time in which another node takes over can be.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_driver::report::DatastoreStatus;
use lockstep_fs::boot::boot_id;
use lockstep_mount::mount_table;
use lockstep_types::BootId;
use lockstepfs::private_directory;
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Most bytes of the file.
const FILE_BYTES_MAX: u64 = 8 << 10;

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grace {
    /// The run of the machine, whose clock counts.
    boot: BootId,
    /// End of the grace, in milliseconds of the monotonic clock.
    until_ms: u64,
    /// The mount that outlives the process.
    mount: PathBuf,
}

/// The moment before a question, in milliseconds of the monotonic clock.
pub(super) fn moment_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1000 + part(now.tv_nsec) / 1_000_000
}

impl Grace {
    /// The grace that a node gives in its answer to a question of the moment `asked_ms`.
    pub(super) fn of(store: &DatastoreStatus, asked_ms: u64) -> Option<Self> {
        let within_ms = store.sync.restart_within_ms?;
        let mount = Path::new(store.settings.mount.as_ref()?);
        // The table of mounts has no symbolic links. The mount itself may not answer later.
        let parent = mount.parent()?.canonicalize().ok()?;
        Some(Self {
            boot: boot_id(),
            until_ms: asked_ms.saturating_add(within_ms),
            mount: parent.join(mount.file_name()?),
        })
    }

    /// Time until the end of the grace; `None` if it is over, or longer than `longest`: no node has given that.
    pub(super) fn left(&self, longest: Duration) -> Option<Duration> {
        let left_ms = self.until_ms.checked_sub(moment_ms())?;
        if Duration::from_millis(left_ms) > longest {
            return None;
        }
        let is_mounted = mount_table::mounts_on(&self.mount).is_ok_and(|found| !found.is_empty());
        let holds = left_ms > 0 && self.boot == boot_id() && is_mounted;
        holds.then(|| Duration::from_millis(left_ms))
    }

    /// The grace that the last run has left.
    pub(super) fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&read_own(file).ok()?).ok()
    }

    /// Leaves the grace to the next run.
    pub(super) fn write(&self, file: &Path) {
        let new = file.with_extension("new");
        let text = serde_json::to_vec(self).unwrap_or_default();
        let written = write_new(&new, &text).and_then(|()| fs::rename(&new, file));
        if written.is_err() {
            // The next run asks the node, as the first one does.
            remove(file);
        }
    }
}

/// The bytes of a file that only this user or root can have written.
fn read_own(file: &Path) -> io::Result<Vec<u8>> {
    private_directory::check(file.parent().unwrap_or(Path::new("/")))?;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(file)?;
    let found = opened.metadata()?;
    let is_owner = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    if !found.is_file() || !is_owner || found.mode() & 0o022 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut bytes = Vec::new();
    opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes a file, in place of one that an interrupted run has left.
fn write_new(file: &Path, bytes: &[u8]) -> io::Result<()> {
    private_directory::check(file.parent().unwrap_or(Path::new("/")))?;
    remove(file);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?
        .write_all(bytes)
}

/// Leaves no grace to the next run.
pub(super) fn remove(file: &Path) {
    // There may be none.
    let _ = fs::remove_file(file);
}

/// The file in which a run leaves the grace of a datastore to the next run.
pub(super) fn file(socket: &Path, datastore: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(format!(".{datastore}.grace"));
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::inspect::status::tests::store;

    /// A mount of every machine.
    const PROC: &str = "/proc";

    const LONGEST: Duration = Duration::from_secs(3_600);

    fn grace(until_ms: u64) -> Grace {
        Grace {
            boot: boot_id(),
            until_ms,
            mount: PROC.into(),
        }
    }

    #[test]
    fn a_grace_ends_with_its_time_its_mount_and_the_run_of_the_machine() {
        let later = moment_ms() + 3_500_000;
        assert!(grace(later).left(LONGEST).is_some());
        assert_eq!(grace(later).left(LONGEST / 2), None, "no node gives that");
        assert_eq!(grace(moment_ms()).left(LONGEST), None);
        let unmounted = Grace {
            mount: "/proc/self".into(),
            ..grace(later)
        };
        assert_eq!(unmounted.left(LONGEST), None);
        let earlier_run = Grace {
            boot: boot_id().of_no_run(),
            ..grace(later)
        };
        assert_eq!(earlier_run.left(LONGEST), None);
    }

    #[test]
    fn only_a_node_that_says_so_gets_a_grace() {
        let mut store = store(true, true);
        store.settings.mount = Some(PROC.to_owned());
        assert_eq!(Grace::of(&store, 5), None);
        store.sync.restart_within_ms = Some(900);
        assert_eq!(Grace::of(&store, 5), Some(grace(905)));
    }

    #[test]
    fn the_next_run_finds_the_grace_and_no_file_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(&directory.path().join("a.sock"), "data");
        assert_eq!(Grace::read(&file), None);
        grace(905).write(&file);
        assert_eq!(Grace::read(&file), Some(grace(905)));
        remove(&file);
        assert_eq!(Grace::read(&file), None);
        grace(905).write(&directory.path().join("missing").join("file"));
    }

    #[test]
    fn a_link_and_a_file_of_others_are_no_grace_and_no_link_is_followed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().unwrap();
        let file = file(&directory.path().join("a.sock"), "data");
        let target = directory.path().join("target");
        grace(905).write(&target);
        let forged = fs::read(&target).unwrap();
        symlink(&target, &file).unwrap();
        assert_eq!(Grace::read(&file), None);
        symlink(&target, file.with_extension("new")).unwrap();
        grace(7).write(&file);
        assert_eq!(fs::read(&target).unwrap(), forged, "the link was followed");
        assert_eq!(Grace::read(&file), Some(grace(7)));
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&file, 0o666);
        assert_eq!(Grace::read(&file), None);
        mode(&file, 0o600);
        mode(directory.path(), 0o777);
        assert_eq!(Grace::read(&file), None);
        grace(905).write(&file);
        mode(directory.path(), 0o700);
        assert_eq!(Grace::read(&file), None, "none is left there");
    }
}
