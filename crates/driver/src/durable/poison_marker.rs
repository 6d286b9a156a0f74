//! A second place for the mark of a failed disk: a directory under `/run`, which lies in memory.
//!
//! The marker serves one case: a disk refuses even the mark, works again later, and the process was restarted in
//! between. The marker outlives the process and not the run of the machine. So do the pages that must not be trusted.
//!
//! The path of the store and the inode number of its directory identify the marker. A store that is moved leaves the
//! marker behind. A new store in the same directory removes it. A store in the directory below an unmounted disk does
//! not.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lockstep_fs::poison::MarkerStore;
use lockstep_types::Hash128;

/// Directory of the markers of all stores.
const DIRECTORY: &str = "/run/lockstep/poisoned";

/// The marker of one store.
pub(crate) struct RunDirMarker(PathBuf);

impl RunDirMarker {
    /// The marker of the store in `directory`.
    pub fn of(directory: &Path) -> Self {
        Self::within(Path::new(DIRECTORY), directory)
    }

    fn within(stamps: &Path, directory: &Path) -> Self {
        let ino = directory.metadata().map_or(0, |found| found.ino());
        let directory = directory.canonicalize();
        let directory = directory.as_deref().unwrap_or(Path::new("")).as_os_str();
        let key = [directory.as_encoded_bytes(), &ino.to_be_bytes()].concat();
        let name = u128::from_be_bytes(Hash128::of(&key).0);
        Self(stamps.join(format!("{name:032x}.json")))
    }
}

impl MarkerStore for RunDirMarker {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        found(std::fs::read(&self.0))
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        if let Some(directory) = self.0.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(&self.0, bytes)
    }

    fn remove(&self) -> io::Result<()> {
        found(std::fs::remove_file(&self.0)).map(drop)
    }
}

/// `None` if the file does not exist.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_belongs_to_one_directory_until_it_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        for store in [&one, &other] {
            std::fs::create_dir(store).unwrap();
        }
        let stamps = dir.path().join("run/poisoned");
        let stamp = RunDirMarker::within(&stamps, &one);
        stamp.remove().unwrap();
        assert_eq!(stamp.read().unwrap(), None);
        stamp.write(b"first").unwrap();
        stamp.write(b"then").unwrap();
        let again = RunDirMarker::within(&stamps, &dir.path().join("other/../one"));
        assert_eq!(again.read().unwrap().unwrap(), b"then");
        assert_eq!(RunDirMarker::within(&stamps, &other).read().unwrap(), None);
        again.remove().unwrap();
        assert_eq!(stamp.read().unwrap(), None);
    }

    /// Another directory lies in the same place, as below a disk that is not mounted.
    #[test]
    fn a_stamp_waits_for_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (place, away) = (dir.path().join("store"), dir.path().join("away"));
        let stamps = dir.path().join("run/poisoned");
        std::fs::create_dir(&place).unwrap();
        RunDirMarker::within(&stamps, &place)
            .write(b"failed")
            .unwrap();
        std::fs::rename(&place, &away).unwrap();
        std::fs::create_dir(&place).unwrap();
        let other = RunDirMarker::within(&stamps, &place);
        assert_eq!(other.read().unwrap(), None);
        other.remove().unwrap();
        std::fs::remove_dir(&place).unwrap();
        std::fs::rename(&away, &place).unwrap();
        let again = RunDirMarker::within(&stamps, &place);
        assert_eq!(again.read().unwrap().unwrap(), b"failed");
    }
}
