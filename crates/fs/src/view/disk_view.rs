//! The present of a store, with content as the disk has it and not as memory has it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use lockstep_types::Ino;
use lockstep_types::backing::{BackingFile, BackingStat, ReservedRuns};

use super::{FileTimes, StoreView};
use crate::error::{OpError, StoreError};
use crate::kv::Each;
use crate::namespace::keys::KeyRange;
use crate::namespace::plan::View;
use crate::namespace::record::Inode;

/// See the head of this file. Records are read as in the view below: their database checks them itself.
#[derive(Clone, Copy)]
pub struct DiskView<'a>(pub &'a dyn StoreView);

impl View for DiskView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpError> {
        self.0.get(key)
    }

    fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, OpError> {
        self.0.keys(range)
    }

    fn inode(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        self.0.inode(ino)
    }
}

impl StoreView for DiskView<'_> {
    fn scan(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        self.0.scan(range, each)
    }

    fn scan_down(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        self.0.scan_down(range, each)
    }

    fn file_times(&self, ino: Ino) -> Result<Option<FileTimes>, OpError> {
        self.0.file_times(ino)
    }

    fn content(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        let content = self.0.content(ino)?;
        Ok(content.map(|file| Arc::new(DiskFile(file)) as Arc<dyn BackingFile>))
    }

    fn content_stat(&self, ino: Ino) -> Result<BackingStat, StoreError> {
        self.0.content_stat(ino)
    }

    fn check_content(&self, ino: Ino) -> Result<(), OpError> {
        self.0.check_content(ino)
    }
}

/// A content file that is only read, from the disk.
struct DiskFile(Arc<dyn BackingFile>);

impl DiskFile {
    fn read_only() -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, "a view is only read")
    }
}

impl BackingFile for DiskFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read_disk(offset, into)
    }

    fn read_disk(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.read_disk(offset, into)
    }

    fn stat(&self) -> io::Result<BackingStat> {
        self.0.stat()
    }

    fn reserved(&self, range: Range<u64>) -> io::Result<ReservedRuns> {
        self.0.reserved(range)
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.0.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.0.seek_hole(offset)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(Self::read_only())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(Self::read_only())
    }

    fn allocate(&self, _: u64, _: u64, _: bool) -> io::Result<()> {
        Err(Self::read_only())
    }

    fn punch_hole(&self, _: u64, _: u64) -> io::Result<()> {
        Err(Self::read_only())
    }

    fn zero_range(&self, _: u64, _: u64, _: bool) -> io::Result<()> {
        Err(Self::read_only())
    }

    fn sync(&self) -> io::Result<()> {
        Err(Self::read_only())
    }
}
