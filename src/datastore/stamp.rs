//! A second place for the mark of a failed disk: the directory of what runs, which lies in memory.
//!
//! It is for one case: a disk that takes not even the mark, that works again later, and a process that
//! was restarted in between. It outlives the process and not the run of the machine, and so do the
//! pages that must not be trusted.
//!
//! It is found by the path of the store. A store that is moved leaves it behind; a new store in the
//! same place takes it away.

use std::io;
use std::path::{Path, PathBuf};

use lockstep_fs::poison::Stamp;
use lockstep_types::Hash128;

/// Where the stamps of all stores lie.
const DIRECTORY: &str = "/run/lockstep/poisoned";

/// The stamp of one store.
pub(super) struct RuntimeStamp(PathBuf);

impl RuntimeStamp {
    /// That of the store in `directory`.
    pub fn of(directory: &Path) -> Self {
        Self::within(Path::new(DIRECTORY), directory)
    }

    fn within(stamps: &Path, directory: &Path) -> Self {
        let directory = directory.canonicalize();
        let directory = directory.as_deref().unwrap_or(Path::new("")).as_os_str();
        let name = u128::from_be_bytes(Hash128::of(directory.as_encoded_bytes()).0);
        Self(stamps.join(format!("{name:032x}.json")))
    }
}

impl Stamp for RuntimeStamp {
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

/// `None` for what is not there.
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
        let stamp = RuntimeStamp::within(&stamps, &one);
        stamp.remove().unwrap();
        assert_eq!(stamp.read().unwrap(), None);
        stamp.write(b"first").unwrap();
        stamp.write(b"then").unwrap();
        let again = RuntimeStamp::within(&stamps, &dir.path().join("other/../one"));
        assert_eq!(again.read().unwrap().unwrap(), b"then");
        assert_eq!(RuntimeStamp::within(&stamps, &other).read().unwrap(), None);
        again.remove().unwrap();
        assert_eq!(stamp.read().unwrap(), None);
    }
}
