//! The lock of the place of a store: outside the store, so that it stays when the store is removed or replaced.
//!
//! The place is a name in a directory. The lock is a file under `/run`, named after both. A store that is a mount point keeps
//! its place when the disk is unmounted. A node that may not write there, as it does not run as root, goes without this lock.
//!
//! Invariant: the locked file is the one that has the name. A process removes the file only while it has the lock.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use lockstep_types::Hash128;
use rustix::fs::{FlockOperation, OFlags, flock};

use super::holder::{describe, holders};

/// Directory of the locks of all places.
const DIRECTORY: &str = "/run/lockstep/stores";

/// The place of a store, locked until this is dropped.
pub(super) struct PlaceLock {
    path: PathBuf,
    file: File,
}

impl PlaceLock {
    /// Locks the place of the store `root`; `None` if this process cannot make the lock. `WouldBlock` if another process has
    /// it.
    pub fn take(root: &Path) -> io::Result<Option<Self>> {
        Self::take_in(Path::new(DIRECTORY), root)
    }

    fn take_in(locks: &Path, root: &Path) -> io::Result<Option<Self>> {
        match Self::try_take(locks, root) {
            Ok(lock) => Ok(Some(lock)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Err(error) => {
                tracing::debug!(%error, store = %root.display(), "no lock of the place");
                Ok(None)
            }
        }
    }

    fn try_take(locks: &Path, root: &Path) -> io::Result<Self> {
        let path = locks.join(name_of(root)?);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(locks)?;
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(&path)?;
            lock(&file)?;
            // The process that had the lock may have removed the file meanwhile.
            let named = path.symlink_metadata().map(|named| named.ino());
            if named.is_ok_and(|ino| file.metadata().is_ok_and(|own| own.ino() == ino)) {
                return Ok(Self { path, file });
            }
        }
    }
}

impl Drop for PlaceLock {
    fn drop(&mut self) {
        // A file that stays costs nothing, and the next owner locks it.
        let _removed = std::fs::remove_file(&self.path);
        let _unlocked = flock(&self.file, FlockOperation::Unlock);
    }
}

fn lock(file: &File) -> io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
        let error = io::Error::from(errno);
        if error.kind() != io::ErrorKind::WouldBlock {
            return error;
        }
        let who = describe(&holders(file.as_fd()));
        let why = format!(
            "another process is using the store in this place{who}, even if that store was removed since; stop it first"
        );
        io::Error::new(io::ErrorKind::WouldBlock, why)
    })
}

/// The name of the lock: the directory above the store, by device and inode, and the name in it.
fn name_of(root: &Path) -> io::Result<String> {
    let place = root.canonicalize()?;
    let above = place.parent().unwrap_or(&place).metadata()?;
    let name = place.file_name().unwrap_or_default();
    let key = [
        &above.dev().to_be_bytes()[..],
        &above.ino().to_be_bytes(),
        name.as_encoded_bytes(),
    ];
    let hash = u128::from_be_bytes(Hash128::of(&key.concat()).0);
    Ok(format!("{hash:032x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_stays_locked_while_its_store_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (locks, store) = (dir.path().join("locks"), dir.path().join("store"));
        std::fs::create_dir(&store).unwrap();
        let lock = PlaceLock::take_in(&locks, &store).unwrap().unwrap();
        std::fs::remove_dir(&store).unwrap();
        std::fs::create_dir(&store).unwrap();
        let again = || PlaceLock::take_in(&locks, &dir.path().join("locks/../store"));
        let error = again().map(|lock| lock.is_some()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let beside = PlaceLock::take_in(&locks, &other).unwrap();
        assert!(beside.is_some(), "another place");
        drop((lock, beside));
        assert_eq!(std::fs::read_dir(&locks).unwrap().count(), 0);
        assert!(again().unwrap().is_some());
    }

    #[test]
    fn a_process_that_may_not_write_there_goes_without() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let taken = PlaceLock::take_in(&file.join("locks"), dir.path()).unwrap();
        assert!(taken.is_none());
    }
}
