//! The store that adopts: its disk, and the calls that only a real directory has.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_types::backing::{Backing, BackingFile};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::error::{AdoptError, FailedSourceCall};
use crate::backing::os_backing::{MountPlace, OsBacking};
use crate::error::StoreError;

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// The store that adopts a directory. The caller has locked the store.
pub struct AdoptTarget {
    backing: Arc<dyn Backing>,
    directory: Option<RealDirectory>,
}

struct RealDirectory {
    files: Arc<OsBacking>,
    path: PathBuf,
    place: MountPlace,
    ino: u64,
}

impl AdoptTarget {
    /// A store in a directory of this machine.
    pub fn of_directory(files: Arc<OsBacking>, path: &Path) -> Result<Self, AdoptError> {
        let (place, ino) = files.mount_place().map_err(StoreError::disk("stat", "."))?;
        let backing: Arc<dyn Backing> = Arc::clone(&files) as Arc<dyn Backing>;
        Ok(Self {
            backing,
            directory: Some(RealDirectory {
                files,
                path: path.into(),
                place,
                ino,
            }),
        })
    }

    /// A store on any disk, which only takes copies.
    pub fn of_disk(backing: Arc<dyn Backing>) -> Self {
        Self {
            backing,
            directory: None,
        }
    }

    /// The disk of the store.
    pub(super) const fn backing(&self) -> &Arc<dyn Backing> {
        &self.backing
    }

    /// The real directory of the store.
    pub(super) fn files(&self) -> Option<&OsBacking> {
        Some(&self.directory.as_ref()?.files)
    }

    /// Whether these are device and inode of the directory of the store.
    pub(super) fn is_store(&self, identity: (u64, u64)) -> bool {
        let own = self.directory.as_ref();
        own.is_some_and(|own| (own.place.device, own.ino) == identity)
    }

    /// Whether a directory lies in the store, or is the store.
    pub(super) fn contains(&self, path: &Path) -> bool {
        let own = self.directory.as_ref();
        let own = own.and_then(|own| own.path.canonicalize().ok());
        own.is_some_and(|own| path.starts_with(own))
    }

    /// Whether a rename may bring a file of that place into the store.
    pub(super) fn can_move_from(&self, place: MountPlace) -> bool {
        let own = self.directory.as_ref();
        own.is_some_and(|own| own.place == place)
    }

    /// Whether the store can share the blocks of a file.
    pub(super) fn can_clone(&self, source: &OwnedFd) -> bool {
        self.files()
            .is_some_and(|own| own.can_clone(source.as_fd()))
    }

    /// Makes `path` share the blocks of a file. Returns false if the file system cannot do so with this file.
    pub(super) fn share(&self, source: BorrowedFd<'_>, path: &str) -> Result<bool, AdoptError> {
        let Some(own) = self.files() else {
            return Ok(false);
        };
        let unable = [
            Errno::OPNOTSUPP,
            Errno::INVAL,
            Errno::XDEV,
            Errno::NOTTY,
            Errno::TXTBSY,
        ];
        match own.clone_in(source, path) {
            Ok(()) => Ok(true),
            Err(error) => {
                let code = crate::backing::os_backing::os_code(&error);
                let is_unable = unable.iter().any(|it| code == Some(it.raw_os_error()));
                if is_unable {
                    return Ok(false);
                }
                Err(AdoptError::disk("share blocks with", path)(error))
            }
        }
    }

    /// Makes `path` a copy of the first `size` bytes of a file, with its holes. A file that is shorter by now has zeros at its end.
    pub(super) fn copy(
        &self,
        source: BorrowedFd<'_>,
        size: u64,
        path: &str,
    ) -> Result<Result<(), FailedSourceCall>, AdoptError> {
        let exists = self.backing.exists(path);
        if size == 0 && !exists.map_err(AdoptError::disk("look for", path))? {
            return Ok(Ok(()));
        }
        let file = self.backing.open_or_create(path);
        let file = file.map_err(AdoptError::disk("create", path))?;
        let write = AdoptError::disk("write", path);
        // The part of a copy that an earlier process has left may have other holes.
        let cleared = file.set_len(0).and_then(|()| file.set_len(size));
        cleared.map_err(AdoptError::disk("set the length of", path))?;
        match copy_data(source, size, file.as_ref()) {
            Ok(copied) => Ok(copied),
            Err(error) => Err(write(error)),
        }
    }
}

/// Copies the data of a file. The outer error is that of the copy, the inner error that of the file.
fn copy_data(
    source: BorrowedFd<'_>,
    size: u64,
    file: &dyn BackingFile,
) -> std::io::Result<Result<(), FailedSourceCall>> {
    let mut buffer = vec![0; PIECE_BYTES.min(usize::try_from(size).unwrap_or(PIECE_BYTES))];
    let mut at = 0;
    while at < size {
        let (from, to) = match next_data(source, at, size) {
            Ok(Some(range)) => range,
            Ok(None) => break,
            Err(errno) => return Ok(Err(("look for data in", errno))),
        };
        at = from;
        while at < to {
            let room = usize::try_from(to - at).unwrap_or(PIECE_BYTES);
            let room = room.min(buffer.len());
            let piece = buffer.get_mut(..room).unwrap_or_default();
            let read = match rustix::io::pread(source, &mut *piece, at) {
                Ok(0) => return Ok(Ok(())),
                Ok(read) => read,
                Err(Errno::INTR) => continue,
                Err(errno) => return Ok(Err(("read", errno))),
            };
            file.write_at(at, piece.get(..read).unwrap_or_default())?;
            at += read as u64;
        }
    }
    Ok(Ok(()))
}

/// The next data at or after an offset, up to `size`.
fn next_data(source: BorrowedFd<'_>, at: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    let from = match rustix::fs::seek(source, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        // A file system that does not know its holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        found => found?,
    };
    if from >= size {
        return Ok(None);
    }
    let to = match rustix::fs::seek(source, SeekFrom::Hole(from)) {
        Err(Errno::NXIO) => size,
        found => found?,
    };
    Ok(Some((from, to.min(size))))
}
