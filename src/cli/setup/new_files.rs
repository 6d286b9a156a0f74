//! Directories, stores and files that `lockstep init` makes.
//!
//! Invariant: if a later step of the command fails, they are removed again. Existing files stay as they are.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lockstep_link::identity::{CERTIFICATE_FILE, KEY_FILE};

/// Directories that did not exist before. A drop removes those that are empty, unless they are kept.
#[derive(Default)]
pub(in crate::cli) struct NewDirectories(Vec<PathBuf>);

impl NewDirectories {
    /// Makes the directory and its missing parents.
    pub(in crate::cli) fn make(&mut self, path: &Path) -> Result<()> {
        self.make_missing(path)
            .with_context(|| format!("cannot make the directory {}", path.display()))
    }

    fn make_missing(&mut self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.make_missing(parent)?;
        }
        match DirBuilder::new().mode(0o755).create(path) {
            Ok(()) => self.0.push(path.to_owned()),
            // Another program has made it in the meantime: it stays.
            Err(_) if path.is_dir() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(in crate::cli) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewDirectories {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // An error means that the directory is not empty: another program uses it.
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// A store that was made. A drop removes it, unless it is kept.
pub(in crate::cli) struct NewStore {
    /// `None` if the store existed before.
    pub(in crate::cli) path: Option<PathBuf>,
    /// Whether the directory of the store existed before.
    pub(in crate::cli) had_directory: bool,
}

impl NewStore {
    /// Keeps the store. Returns whether it was made.
    pub(in crate::cli) fn keep(mut self) -> bool {
        self.path.take().is_some()
    }
}

impl Drop for NewStore {
    fn drop(&mut self) {
        let Some(path) = &self.path else { return };
        let entries = path.read_dir().into_iter().flatten().filter_map(Result::ok);
        for entry in entries {
            // This process has made all entries a moment ago.
            let _ = match entry.file_type() {
                Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(entry.path()),
                _ => std::fs::remove_file(entry.path()),
            };
        }
        if !self.had_directory {
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// Refuses a directory that holds a configuration of this name, or an identity.
pub(in crate::cli) fn refuse_existing(directory: &Path, config: &str) -> Result<()> {
    for name in [config, KEY_FILE, CERTIFICATE_FILE] {
        let path = directory.join(name);
        if path.symlink_metadata().is_ok() {
            bail!(
                "{} exists, and existing files are never overwritten\n  \
                 cure: choose another --dir, or move the old files away",
                path.display()
            );
        }
    }
    Ok(())
}

/// Writes a file that did not exist before.
pub(in crate::cli) fn write_new(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .inspect_err(|_| remove_new(path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Removes a file that this process has made. If that fails, the next run reports that the file exists.
pub(in crate::cli) fn remove_new(path: &Path) {
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_removes_the_new_directories_that_are_empty() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        std::fs::create_dir(path("old")).unwrap();
        let mut made = NewDirectories::default();
        for name in ["old", "old/new", "a/b", "a/used"] {
            made.make(&path(name)).unwrap();
        }
        std::fs::write(path("a/used/file"), "").unwrap();
        drop(made);
        assert!(path("old").is_dir() && path("a/used/file").is_file());
        assert!(!path("old/new").exists() && !path("a/b").exists());

        let mut made = NewDirectories::default();
        made.make(&path("kept")).unwrap();
        made.keep();
        assert!(path("kept").is_dir());
    }
}
