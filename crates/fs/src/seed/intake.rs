//! Taking the contents of a seed into a store: by a further name, by shared blocks, or by a copy.
//!
//! Invariant: a content counts as taken only once its length and its sum were found to be those of the list.

use std::io;
use std::sync::Arc;

use lockstep_types::Ino;
use lockstep_types::backing::{Backing, BackingFile, FileIdentity};

use super::blocks::{BlocksEnd, EachPiece, read_blocks, runs};
use super::contents::ContentEntry;
use super::error::SeedError;
use super::names::RECORDS_FILE;
use crate::backing::os_backing::{OsBacking, os_code};
use crate::error::StoreError;
use crate::paths::{CONTENT_DIR, content_owner, content_path, is_content_dir};
use crate::store::AdoptWay;

/// Is called with each piece that was read: with its length.
pub(super) type ShowPiece<'a> = dyn FnMut(u64) -> Result<(), SeedError> + 'a;

/// The disk of the store, and that of the seed.
pub struct ImportPlaces {
    pub(super) store: Arc<dyn Backing>,
    pub(super) seed: Arc<dyn Backing>,
    real: Option<RealPlaces>,
    buffer: Vec<u8>,
}

struct RealPlaces {
    store: Arc<OsBacking>,
    seed: Arc<OsBacking>,
    is_one_place: bool,
}

impl ImportPlaces {
    /// Two directories of this machine. The caller has locked the store.
    ///
    /// # Errors
    /// One of them cannot be looked at.
    pub fn of_directories(store: Arc<OsBacking>, seed: Arc<OsBacking>) -> Result<Self, SeedError> {
        let place = |files: &OsBacking| files.mount_place().map_err(StoreError::disk("stat", "."));
        let is_one_place = place(&store)?.0 == place(&seed)?.0;
        Ok(Self {
            store: Arc::clone(&store) as Arc<dyn Backing>,
            seed: Arc::clone(&seed) as Arc<dyn Backing>,
            real: Some(RealPlaces {
                store,
                seed,
                is_one_place,
            }),
            buffer: Vec::new(),
        })
    }

    /// Any two disks. The store only takes copies.
    pub fn of_disks(store: Arc<dyn Backing>, seed: Arc<dyn Backing>) -> Self {
        Self {
            store,
            seed,
            real: None,
            buffer: Vec::new(),
        }
    }

    /// The way in which the contents are taken, if `wanted` can be done.
    pub(super) fn choose(&self, wanted: Option<AdoptWay>) -> Result<AdoptWay, SeedError> {
        let real = self.real.as_ref();
        let can_clone = || real.is_some_and(|it| it.store.can_clone_of(&it.seed, RECORDS_FILE));
        match wanted {
            Some(AdoptWay::Move) if !real.is_some_and(|it| it.is_one_place) => {
                Err(SeedError::CannotMove)
            }
            Some(AdoptWay::Reflink) if !can_clone() => Err(SeedError::CannotReflink),
            Some(way) => Ok(way),
            None if can_clone() => Ok(AdoptWay::Reflink),
            None => Ok(AdoptWay::Copy),
        }
    }

    /// Reads a content of the seed, and compares it with the list.
    pub(super) fn check(
        &mut self,
        entry: &ContentEntry,
        show: &mut ShowPiece<'_>,
    ) -> Result<(), SeedError> {
        let path = content_path(entry.ino);
        let from = self.open(entry, &path)?;
        self.read(entry, (&*from, &path), &mut |_, piece| {
            show(piece.len() as u64)
        })
    }

    /// Takes a content. A content that is to be moved was checked before.
    pub(super) fn take(
        &mut self,
        way: AdoptWay,
        entry: &ContentEntry,
        show: &mut ShowPiece<'_>,
    ) -> Result<(), SeedError> {
        let path = content_path(entry.ino);
        match way {
            AdoptWay::Copy => self.copy(entry, &path, show),
            AdoptWay::Reflink => {
                // The clone is checked, as the seed may still change.
                if let Some(real) = &self.real {
                    let cloned = real.store.clone_of(&real.seed, &path);
                    cloned.map_err(unshared(&path))?;
                }
                let clone = self.store.open(&path);
                let clone = clone.map_err(SeedError::disk("open", &path))?;
                check_length(entry, &*clone, &path)?;
                self.read(entry, (&*clone, &path), &mut |_, piece| {
                    show(piece.len() as u64)
                })
            }
            AdoptWay::Move => self.link(&path),
        }
    }

    fn copy(
        &mut self,
        entry: &ContentEntry,
        path: &str,
        show: &mut ShowPiece<'_>,
    ) -> Result<(), SeedError> {
        let from = self.open(entry, path)?;
        let to = self.store.open_or_create(path);
        let to = to.map_err(SeedError::disk("create", path))?;
        // The part of a copy that an earlier process has left may have other bytes.
        let cleared = to.set_len(0).and_then(|()| to.set_len(entry.size));
        cleared.map_err(SeedError::disk("set the length of", path))?;
        self.read(entry, (&*from, path), &mut |at, piece| {
            show(piece.len() as u64)?;
            for (offset, run) in runs(at, piece) {
                let written = to.write_at(offset, run);
                written.map_err(SeedError::disk("write", path))?;
            }
            Ok(())
        })
    }

    /// Gives a content of the seed a further name in the store.
    fn link(&self, path: &str) -> Result<(), SeedError> {
        let Some(real) = &self.real else {
            return Err(SeedError::CannotMove);
        };
        if self.is_linked(path)? {
            return Ok(());
        }
        let names = real.seed.names_of(path);
        if names.map_err(SeedError::seed("stat", path))? > 1 {
            let path = path.to_owned();
            return Err(SeedError::NamesOutside { path });
        }
        let linked = real.store.link_of(&real.seed, path);
        linked.map_err(SeedError::disk("link a file to", path))?;
        let kept = real.store.keep_private(path, false);
        kept.map_err(SeedError::disk("keep private", path))
    }

    /// Whether a path leads to the same file in the seed and in the store.
    fn is_linked(&self, path: &str) -> Result<bool, SeedError> {
        let here = self.store.identity(path);
        let here = here.map_err(SeedError::disk("stat", path))?;
        let there = self.seed.identity(path);
        let there = there.map_err(SeedError::seed("stat", path))?;
        Ok(matches!(here, Some(FileIdentity::File(..))) && here == there)
    }

    /// Opens a content of the seed, which must have its length.
    fn open(&self, entry: &ContentEntry, path: &str) -> Result<Arc<dyn BackingFile>, SeedError> {
        let file = match self.seed.open_to_read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SeedError::damaged(path, "it is missing"));
            }
            opened => opened.map_err(SeedError::reading(path))?,
        };
        check_length(entry, &*file, path)?;
        Ok(file)
    }

    /// Reads a content, and compares its sum with the list.
    fn read(
        &mut self,
        entry: &ContentEntry,
        (file, path): (&dyn BackingFile, &str),
        each: &mut EachPiece<'_, SeedError>,
    ) -> Result<(), SeedError> {
        let sum = read_blocks(file, entry.size, &mut self.buffer, each);
        let sum = sum.map_err(|end| match end {
            BlocksEnd::Read(error) => SeedError::reading(path)(error),
            BlocksEnd::Caller(error) => error,
        })?;
        if sum == entry.sum {
            Ok(())
        } else {
            Err(SeedError::damaged(path, "it does not fit its sum"))
        }
    }

    /// Removes the names of moved contents from the seed, and their directories.
    pub(super) fn empty(&self) -> Result<(), SeedError> {
        for directory in self.names_in(CONTENT_DIR)? {
            if !is_content_dir(&directory) {
                continue;
            }
            let directory = format!("{CONTENT_DIR}/{directory}");
            for name in self.names_in(&directory)? {
                let path = format!("{directory}/{name}");
                if content_owner(&path).is_some_and(|ino: Ino| ino.get() > 0)
                    && self.is_linked(&path)?
                {
                    self.remove(&path)?;
                }
            }
            let removed = self.seed.remove_empty_dir(&directory);
            removed.map_err(SeedError::seed("remove", &directory))?;
        }
        let removed = self.seed.remove_empty_dir(CONTENT_DIR);
        removed
            .map(drop)
            .or_else(missing)
            .map_err(SeedError::seed("remove", CONTENT_DIR))
    }

    /// Removes a file of the seed, if it is there.
    pub(super) fn remove(&self, path: &str) -> Result<(), SeedError> {
        let removed = self.seed.remove(path);
        removed
            .or_else(missing)
            .map_err(SeedError::seed("remove", path))
    }

    fn names_in(&self, directory: &str) -> Result<Vec<String>, SeedError> {
        match self.seed.list(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(SeedError::seed("list", directory)),
        }
    }
}

fn missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}

fn check_length(entry: &ContentEntry, file: &dyn BackingFile, path: &str) -> Result<(), SeedError> {
    let length = file.stat().map_err(SeedError::reading(path))?.length;
    if length == entry.size {
        Ok(())
    } else {
        Err(SeedError::length(path, length, entry.size))
    }
}

/// The error of a file whose blocks cannot be shared.
fn unshared(path: &str) -> impl FnOnce(io::Error) -> SeedError {
    move |error| {
        let is_missing = os_code(&error) == Some(rustix::io::Errno::NOENT.raw_os_error());
        if is_missing || error.kind() == io::ErrorKind::NotFound {
            SeedError::damaged(path, "it is missing")
        } else {
            SeedError::disk("share blocks with", path)(error)
        }
    }
}
