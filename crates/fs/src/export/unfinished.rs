//! Files and directories with a temporary name until they are complete, so that no user takes a part of an export for
//! the whole.
//!
//! Invariant: an existing file of the final name is never replaced, even if it appears during the export.

use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::error::ExportError;
use super::place;
use crate::text::escaped;

/// A file or directory with a temporary name.
pub(crate) struct Unfinished {
    /// The temporary path.
    pub(crate) path: PathBuf,
    /// The final path; `None` if it is written in place.
    complete: Option<PathBuf>,
}

impl Unfinished {
    /// A file that does not exist yet.
    pub(crate) fn file(path: &Path) -> Result<Self, ExportError> {
        if path.symlink_metadata().is_ok() {
            return Err(ExportError::ManifestExists { path: path.into() });
        }
        Self::beside(path)
    }

    /// A missing or empty directory. The root of a file system cannot be replaced.
    pub(crate) fn directory(dest: &Path) -> Result<Self, ExportError> {
        match std::fs::symlink_metadata(dest) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::beside(dest),
            _ => {
                check_empty(dest)?;
                Ok(Self {
                    path: dest.into(),
                    complete: None,
                })
            }
        }
    }

    fn beside(path: &Path) -> Result<Self, ExportError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        if partial.symlink_metadata().is_ok() {
            return Err(ExportError::PartExists { path: partial });
        }
        Ok(Self {
            path: partial,
            complete: Some(path.into()),
        })
    }

    /// Removes the new directory, while it is empty.
    pub(crate) fn forget(&self) {
        if self.complete.is_some() {
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    /// Removes the new file: the part of a list tells nothing that the next list does not tell.
    pub(crate) fn forget_file(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// Adds the place of the partial copy to an error.
    pub(crate) fn incomplete(&self, source: ExportError) -> ExportError {
        ExportError::Incomplete {
            path: self.path.clone(),
            source: Box::new(source),
        }
    }

    /// Gives it its final name, unless that name exists by now.
    pub(crate) fn finish(self) -> Result<(), ExportError> {
        let Some(complete) = &self.complete else {
            return Ok(());
        };
        let (part, complete) = (self.path.as_os_str(), complete.as_os_str());
        let (part, complete) = (part.as_encoded_bytes(), complete.as_encoded_bytes());
        place::rename_to_new((CWD, part), (CWD, complete))
            .map_err(ExportError::write("rename", escaped(part)))
    }
}

/// Fails unless the directory is empty.
pub(crate) fn check_empty(dest: &Path) -> Result<(), ExportError> {
    match std::fs::read_dir(dest).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        _ => Err(ExportError::NotEmpty { path: dest.into() }),
    }
}
