//! What bears another name until it is complete, so that nobody takes a part of an export for the whole.
//!
//! Invariant: what has the name already is never replaced, also if it came meanwhile.

use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::error::ExportError;
use super::manifest::escaped;
use super::place;

/// Something that bears another name until it is complete, so that nobody takes a part for the whole.
pub(super) struct Unfinished {
    /// Where it is written.
    pub(super) path: PathBuf,
    /// The name that it gets; `None` if it must be written in its place.
    complete: Option<PathBuf>,
}

impl Unfinished {
    /// A file that does not exist yet.
    pub(super) fn file(path: &Path) -> Result<Self, ExportError> {
        if path.symlink_metadata().is_ok() {
            return Err(ExportError::ManifestExists { path: path.into() });
        }
        Self::beside(path)
    }

    /// A directory that is missing, or empty. One that is the root of a file system cannot be replaced.
    pub(super) fn directory(dest: &Path) -> Result<Self, ExportError> {
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

    /// Removes the directory that was made, while it is empty.
    pub(super) fn forget(&self) {
        if self.complete.is_some() {
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    /// Says where the part is that was written.
    pub(super) fn incomplete(&self, source: ExportError) -> ExportError {
        ExportError::Incomplete {
            path: self.path.clone(),
            source: Box::new(source),
        }
    }

    /// Gives it its name, unless somebody has taken that meanwhile.
    pub(super) fn finish(self) -> Result<(), ExportError> {
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
pub(super) fn check_empty(dest: &Path) -> Result<(), ExportError> {
    match std::fs::read_dir(dest).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        _ => Err(ExportError::NotEmpty { path: dest.into() }),
    }
}
