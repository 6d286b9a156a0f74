//! The sums of the content of a store (rule P32): for a driver, and for a comparison of both copies.
//!
//! The caller keeps every change of the bytes away about whose sums it asks, or which it says to be right. Other blocks of the
//! same file may change meanwhile; the sum of the file then changes, too.

use std::sync::Arc;

use lockstep_sums::{BlockSum, SumKey, SumSecret};
use lockstep_types::Ino;

use super::facade::Store;
use crate::content::ContentStore;
use crate::error::StoreError;
use crate::sums::{KeptSum, SumKeeper, SumTotals};

/// The sums of one store.
#[derive(Clone, Copy)]
pub struct SumsAccess<'a> {
    sums: &'a SumKeeper,
    content: &'a ContentStore,
}

impl Store {
    /// The sums of the content.
    pub fn sums(&self) -> SumsAccess<'_> {
        SumsAccess {
            sums: self.content.observers().sums(),
            content: &self.content,
        }
    }
}

/// The secret.
impl SumsAccess<'_> {
    /// The secret; `None` as long as the store has none, and in a store opened for reading only. Every sum is void then.
    pub fn secret(self) -> Option<SumSecret> {
        self.sums.secret()
    }

    /// The key that is made of the secret; `None` without one.
    pub fn key(self) -> Option<Arc<SumKey>> {
        self.sums.key()
    }

    /// Takes a secret, durably. Another one than before makes every sum void.
    ///
    /// # Errors
    /// If the disk fails or is full. The store then keeps no sums.
    pub fn take_secret(self, secret: &SumSecret) -> Result<(), StoreError> {
        let disk = self.content.disk();
        disk.check_not_poisoned()?;
        self.sums.take_secret(secret)
    }
}

/// Questions.
impl SumsAccess<'_> {
    /// The sum of a file, and how many of its blocks are void.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn file(self, ino: Ino) -> Result<KeptSum, StoreError> {
        self.sums.file(ino, self.content.length(ino)?)
    }

    /// The sums of `count` blocks from `first` on; `None` for a void sum. Blocks behind the end have the sum of zeros.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn blocks(
        self,
        ino: Ino,
        first: u64,
        count: u64,
    ) -> Result<Vec<Option<BlockSum>>, StoreError> {
        let blocks = first..first.saturating_add(count);
        self.sums.blocks(ino, blocks, self.content.length(ino)?)
    }

    /// The events of sums since the store was opened.
    pub fn totals(self) -> SumTotals {
        self.sums.totals()
    }
}

/// Bytes that are known to be right.
impl SumsAccess<'_> {
    /// The content of a file has these bytes, and they are right: a comparison with the other node says so, or an operator. Void
    /// sums of the blocks that the bytes cover are made of the bytes. The last block of the content may be covered in part.
    ///
    /// # Errors
    /// If the disk fails or is full.
    pub fn adopt(self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.set(ino, offset, bytes, false)
    }

    /// The same, but sums that are not void are made anew, too: for a sum that is wrong while both nodes have equal bytes.
    ///
    /// # Errors
    /// If the disk fails or is full.
    pub fn set_right(self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.set(ino, offset, bytes, true)
    }

    fn set(self, ino: Ino, offset: u64, bytes: &[u8], all: bool) -> Result<(), StoreError> {
        self.content.disk().check_not_poisoned()?;
        match self.content.open_content_once(ino)? {
            Some(content) => self.sums.set_right(ino, (offset, bytes), &*content, all),
            None => Ok(()),
        }
    }
}
