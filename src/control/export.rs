//! The request of `lockstep export` to a running node: a snapshot, and the places to which the node writes it.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lockstep_driver::report::CommandFailure;

use super::proto;

/// A place of this machine, as the command sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPlace {
    /// The absolute path of the new file or directory.
    pub path: PathBuf,
    /// Device and inode of the directory above: a service may see other directories than the command does.
    directory: (u64, u64),
}

/// A snapshot to be written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportQuestion {
    /// The name of the snapshot.
    pub at: String,
    /// The copy.
    pub dest: ExportPlace,
    /// The list of all names, if one is wanted.
    pub manifest: Option<ExportPlace>,
}

impl ExportPlace {
    /// The place with an absolute path.
    ///
    /// # Errors
    /// The directory above cannot be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        let above = fs::metadata(path.parent().unwrap_or(path))?;
        Ok(Self {
            path: path.to_owned(),
            directory: (above.dev(), above.ino()),
        })
    }

    /// Checks that this process means the same place by the path.
    ///
    /// # Errors
    /// The path leads this process to another directory, or to none.
    pub fn check(&self) -> Result<(), CommandFailure> {
        match Self::of(&self.path) {
            Ok(seen) if seen == *self => Ok(()),
            _ => Err(CommandFailure::new(
                format!(
                    "the node sees another directory in the place of {}: its service has its own view of the file system",
                    self.path.parent().unwrap_or(&self.path).display()
                ),
                "choose a directory that its service may write, outside of /tmp, or copy the files from \
                 .lockstep/snapshots in the mount",
            )),
        }
    }
}

impl From<ExportPlace> for proto::ExportPlace {
    fn from(place: ExportPlace) -> Self {
        let (device, inode) = place.directory;
        Self {
            path: place.path.into_os_string().into_vec(),
            device,
            inode,
        }
    }
}

impl From<proto::ExportPlace> for ExportPlace {
    fn from(place: proto::ExportPlace) -> Self {
        Self {
            path: PathBuf::from(std::ffi::OsStr::from_bytes(&place.path)),
            directory: (place.device, place.inode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_that_of_one_directory() {
        let directory = tempfile::tempdir().unwrap();
        let above = directory.path().join("above");
        fs::create_dir(&above).unwrap();
        let place = ExportPlace::of(&above.join("copy")).unwrap();
        assert_eq!(
            ExportPlace::from(proto::ExportPlace::from(place.clone())),
            place
        );
        place.check().unwrap();
        fs::rename(&above, directory.path().join("other")).unwrap();
        fs::create_dir(&above).unwrap();
        let failure = place.check().unwrap_err();
        assert!(
            failure.cause.contains("sees another directory"),
            "{failure:?}"
        );
        fs::remove_dir(&above).unwrap();
        assert!(place.check().is_err());
    }
}
