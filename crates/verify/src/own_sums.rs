//! The sums that a node keeps of its own content, as a deep comparison reads them, and their check against the disk.
//!
//! [`CheckedView`] is the view of a store from its disk in which each read of content is compared with the sums. A
//! comparison reads through the view, so that no byte is read twice. A finding is a reason for a second look under the lock of
//! the blocks, and no more: a file without a lock may change while it is read.
//!
//! Invariant: nothing here changes a byte or a sum.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use lockstep_fs::keys::KeyRange;
use lockstep_fs::kv::Each;
use lockstep_fs::plan::View;
use lockstep_fs::record::Inode;
use lockstep_fs::store::SumsAccess;
use lockstep_fs::view::FileTimes;
use lockstep_fs::view::disk_view::DiskView;
use lockstep_fs::{OpError, Store, StoreError, StoreView};
use lockstep_repl::checked::SumsWord;
use lockstep_sums::{BlockSum, FileSum, SumKey, SumSecret};
use lockstep_types::Ino;
use lockstep_types::backing::{BackingFile, BackingStat};
use lockstep_types::limits::BLOCK_BYTES;
use parking_lot::Mutex;

use crate::attribution::SumFit;

/// The bytes of a block, as a number of file offsets.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most sums that are asked for at once.
const SUMS_AT_ONCE: u64 = 4096;

/// The sums that a store keeps.
pub trait OwnSums: Sync {
    /// The secret of the sums, with everything that follows from it.
    fn key(&self) -> Arc<SumKey>;

    /// The sums of `count` blocks of a file from number `first` on, one for each; `None` where a sum says nothing. A hole, and
    /// a block beyond the end, have the sum zero.
    ///
    /// # Errors
    /// If the sums cannot be read.
    fn blocks(&self, ino: Ino, first: u64, count: u64) -> Result<Vec<Option<BlockSum>>, OpError>;

    /// The sum of a file; `None` if it says nothing.
    ///
    /// # Errors
    /// If the sums cannot be read.
    fn file(&self, ino: Ino) -> Result<Option<FileSum>, OpError>;

    /// Puts the sums of these bytes in place, which the caller has found to be right. A sum from before, void or not, is replaced. `offset` is
    /// a multiple of the size of a block, and `bytes` are whole blocks, or end with the file.
    ///
    /// # Errors
    /// If the sums cannot be written.
    fn set_right(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), OpError>;
}

/// The answers of the sums since the last [`CheckedView::take`].
#[derive(Default)]
struct Findings {
    misfits: BTreeSet<u64>,
    void: BTreeSet<u64>,
    void_blocks: u64,
}

/// See the head of this file.
pub struct CheckedView<'a> {
    disk: DiskView<'a>,
    sums: &'a dyn OwnSums,
    key: Arc<SumKey>,
    findings: Mutex<Findings>,
}

impl<'a> CheckedView<'a> {
    /// The disk below `view`, checked by `sums`.
    pub fn new(view: &'a dyn StoreView, sums: &'a dyn OwnSums) -> Self {
        Self {
            disk: DiskView(view),
            key: sums.key(),
            sums,
            findings: Mutex::default(),
        }
    }

    /// Takes what the sums have said since the last call.
    pub fn take(&self) -> SumsWord {
        let found = std::mem::take(&mut *self.findings.lock());
        SumsWord {
            misfits: found.misfits.into_iter().collect(),
            void: found.void.into_iter().collect(),
            void_blocks: found.void_blocks,
        }
    }

    /// Checks the sums of a range that the disk has as a hole: a block with a sum of its own has lost its bytes.
    pub fn check_hole(&self, ino: Ino, bytes: &Range<u64>) {
        let (mut at, end) = (bytes.start / BLOCK, bytes.end.div_ceil(BLOCK));
        while at < end {
            let count = SUMS_AT_ONCE.min(end - at);
            self.note(
                ino,
                self.sums_of(ino, at, count)
                    .map(|sum| fit(sum, BlockSum::ZEROS)),
            );
            at += count;
        }
    }

    /// Checks bytes that were read from the disk. `offset` is a multiple of the size of a block, and the bytes end with a
    /// block or with the file.
    fn check(&self, ino: Ino, offset: u64, bytes: &[u8]) {
        let blocks = bytes.chunks(BLOCK_BYTES);
        let sums = self.sums_of(ino, offset / BLOCK, blocks.len() as u64);
        self.note(
            ino,
            sums.zip(blocks).map(|(sum, bytes)| match sum {
                None => SumFit::Void,
                Some(_) => fit(sum, self.key.block(bytes)),
            }),
        );
    }

    /// Sums that cannot be read say nothing.
    fn sums_of(
        &self,
        ino: Ino,
        first: u64,
        count: u64,
    ) -> impl Iterator<Item = Option<BlockSum>> + use<> {
        let sums = self.sums.blocks(ino, first, count).unwrap_or_default();
        let rest = std::iter::repeat(None);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        sums.into_iter().chain(rest).take(count)
    }

    fn note(&self, ino: Ino, fits: impl Iterator<Item = SumFit>) {
        let (mut misfits, mut void) = (0, 0);
        for fit in fits {
            match fit {
                SumFit::Fits => {}
                SumFit::Misfits => misfits += 1,
                SumFit::Void => void += 1,
            }
        }
        if misfits + void == 0 {
            return;
        }
        let mut found = self.findings.lock();
        if misfits > 0 {
            found.misfits.insert(ino.get());
        }
        if void > 0 {
            found.void.insert(ino.get());
            found.void_blocks += void;
        }
    }
}

/// The answer of a sum about bytes that have the sum `of_bytes`.
pub(crate) fn fit(sum: Option<BlockSum>, of_bytes: BlockSum) -> SumFit {
    match sum {
        None => SumFit::Void,
        Some(sum) if sum == of_bytes => SumFit::Fits,
        Some(_) => SumFit::Misfits,
    }
}

impl View for CheckedView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpError> {
        self.disk.get(key)
    }

    fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, OpError> {
        self.disk.keys(range)
    }

    fn inode(&self, ino: Ino) -> Result<Option<Inode>, OpError> {
        self.disk.inode(ino)
    }
}

impl StoreView for CheckedView<'_> {
    fn scan(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        self.disk.scan(range, each)
    }

    fn scan_down(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), OpError> {
        self.disk.scan_down(range, each)
    }

    fn file_times(&self, ino: Ino) -> Result<Option<FileTimes>, OpError> {
        self.disk.file_times(ino)
    }

    fn content(&self, ino: Ino) -> Result<Option<Arc<dyn BackingFile>>, StoreError> {
        self.disk.content(ino)
    }

    fn content_stat(&self, ino: Ino) -> Result<BackingStat, StoreError> {
        self.disk.content_stat(ino)
    }

    fn check_content(&self, ino: Ino) -> Result<(), OpError> {
        self.disk.check_content(ino)
    }

    fn read_raw(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        self.disk.read_raw(ino, offset, buffer)?;
        self.check(ino, offset, buffer);
        Ok(())
    }
}

/// The sums that a store keeps (rule P32).
pub struct StoreSums<'a> {
    sums: SumsAccess<'a>,
    key: Arc<SumKey>,
}

impl<'a> StoreSums<'a> {
    /// The sums of a store.
    pub fn of(store: &'a Store) -> Self {
        let sums = store.sums();
        // Without a secret each sum is void, and no key is used.
        let no_key = || Arc::new(SumKey::new(&SumSecret::new([0; 32])));
        let key = sums.key().unwrap_or_else(no_key);
        Self { sums, key }
    }
}

impl OwnSums for StoreSums<'_> {
    fn key(&self) -> Arc<SumKey> {
        Arc::clone(&self.key)
    }

    fn blocks(&self, ino: Ino, first: u64, count: u64) -> Result<Vec<Option<BlockSum>>, OpError> {
        Ok(self.sums.blocks(ino, first, count)?)
    }

    fn file(&self, ino: Ino) -> Result<Option<FileSum>, OpError> {
        Ok(self.sums.file(ino)?.whole())
    }

    fn set_right(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), OpError> {
        Ok(self.sums.set_right(ino, offset, bytes)?)
    }
}
