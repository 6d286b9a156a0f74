//! [`SumKeeper`]: the sums of a store, from the opening to the close. See the head of [`sums`](super).
//!
//! [`kept_change`](super::kept_change) and [`right_bytes`](super::right_bytes) have the rest of its functions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_sums::{SumKey, SumSecret};
use lockstep_types::backing::Backing;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{BootId, Ino};
use parking_lot::{Mutex, RwLock};

use super::changing::ChangingTable;
use super::era::EraRecord;
use super::file_sums::SumPlace;
use super::repair::repair;
use super::slot::SumEra;
use super::stripe::SumStripe;
use super::sum_files::SumFiles;
use crate::error::StoreError;
use crate::namespace::last_use::LastUse;

const STRIPES: usize = 64;

/// The events of sums since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SumTotals {
    /// Blocks whose bytes did not fit their sum when they were written in part.
    pub mismatches: u64,
    /// Removed files whose sum was not that of their blocks.
    pub left_sums: u64,
    /// Changes after which all sums of their file were void: the disk was full, or failed.
    pub given_up: u64,
}

/// The sums of a store.
pub struct SumKeeper {
    pub(super) files: SumFiles,
    /// `None` as long as the store has no secret, and in a store opened for reading only.
    pub(super) era: RwLock<Option<KeptEra>>,
    last_use: LastUse,
    stripes: Vec<Mutex<SumStripe>>,
    pub(super) counts: SumCounts,
}

/// The counters of [`SumTotals`].
#[derive(Default)]
pub(super) struct SumCounts {
    pub mismatches: AtomicU64,
    pub left_sums: AtomicU64,
    pub given_up: AtomicU64,
}

/// An era, and the secret of its sums.
pub(super) struct KeptEra {
    record: EraRecord,
    pub key: Arc<SumKey>,
    pub changing: ChangingTable,
    /// The sums of this era say nothing any more.
    is_over: AtomicBool,
}

/// Begin and end.
impl SumKeeper {
    /// The keeper of a store that is opened for reading only: it keeps nothing, and every sum is void.
    pub fn idle(backing: Arc<dyn Backing>, last_use: LastUse) -> Self {
        Self {
            files: SumFiles::new(backing),
            era: RwLock::new(None),
            last_use,
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            counts: SumCounts::default(),
        }
    }

    /// The sums of a store, as the last process has left them. Ends their era if power was lost, and makes the sums anew whose
    /// blocks were changing when the last process was killed: so nothing may have changed the store yet.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn open(backing: Arc<dyn Backing>, last_use: LastUse) -> Result<Self, StoreError> {
        let keeper = Self::idle(backing, last_use);
        let record = EraRecord::read(keeper.files.backing())?;
        if let Some(record) = record {
            let era = keeper.open_era(record);
            *keeper.era.write() = keeper.or_without(era)?;
        }
        Ok(keeper)
    }

    fn open_era(&self, mut record: EraRecord) -> Result<KeptEra, StoreError> {
        let backing = self.files.backing();
        let key = SumKey::new(&record.secret());
        let (changing, left) = ChangingTable::open(backing, &key)?;
        let LastUse {
            boot, last_boot, ..
        } = self.last_use;
        let is_other = |last: Option<BootId>| last.is_some_and(|last| last != boot);
        let is_lost = is_other(last_boot) || is_other(record.boot);
        let is_over = left.is_era_over || (is_lost && !is_active(Mutant::VoidForgotten));
        if is_over {
            record.era = self.next_era(Some(record.era));
        }
        if is_over || record.boot != Some(boot) {
            record.boot = Some(boot);
            record.change += 1;
            record.store(backing)?;
        }
        let era = KeptEra::new(record, key, changing);
        if !is_over {
            repair(era.place(&self.files), &left.changes)?;
        }
        era.changing.clear();
        Ok(era)
    }

    /// Goes without sums if the disk has no room for their tables. Without the file of the era, the next process begins another.
    fn or_without(&self, era: Result<KeptEra, StoreError>) -> Result<Option<KeptEra>, StoreError> {
        match era {
            Err(error) if error.is_full_disk() => {
                tracing::warn!(%error, "the store keeps no sums of its content: the disk is full");
                EraRecord::remove(self.files.backing())?;
                Ok(None)
            }
            era => era.map(Some),
        }
    }

    /// A number that no era had before.
    fn next_era(&self, last: Option<SumEra>) -> SumEra {
        let of_opening = (u64::from(self.last_use.epoch) + 1) << 16;
        SumEra(of_opening.max(last.map_or(0, |SumEra(number)| number + 1)))
    }

    /// The secret, if the store has one.
    pub fn secret(&self) -> Option<SumSecret> {
        let era = self.era.read();
        era.as_ref().map(|era| era.record.secret())
    }

    /// The key of the secret, if the store has one.
    pub fn key(&self) -> Option<Arc<SumKey>> {
        let era = self.era.read();
        era.as_ref().map(|era| Arc::clone(&era.key))
    }

    /// Takes a secret. Another one makes all sums void.
    ///
    /// # Errors
    /// If the disk fails, or is full: the store then keeps no sums.
    pub fn take_secret(&self, secret: &SumSecret) -> Result<(), StoreError> {
        let mut era = self.era.write();
        if era
            .as_ref()
            .is_some_and(|era| era.record.secret() == *secret)
        {
            return Ok(());
        }
        let last = era.as_ref().map(|era| &era.record);
        let record = EraRecord {
            change: last.map_or(1, |last| last.change + 1),
            era: self.next_era(last.map(|last| last.era)),
            secret: *secret.as_bytes(),
            boot: Some(self.last_use.boot),
        };
        if let Some(last) = era.take() {
            last.end();
        }
        self.forget();
        let key = SumKey::new(secret);
        let (changing, _) = ChangingTable::open(self.files.backing(), &key)?;
        record.store(self.files.backing())?;
        changing.clear();
        *era = Some(KeptEra::new(record, key, changing));
        Ok(())
    }

    /// Puts all sums on stable storage, and notes that the next run of the machine may trust them. `is_clean`: no killed process
    /// of this run of the machine may have left sums that are not there yet.
    pub fn close(&self, is_clean: bool) {
        let mut era = self.era.write();
        let Some(kept) = &mut *era else { return };
        if !is_clean || kept.is_over() {
            return;
        }
        for stripe in &self.stripes {
            stripe.lock().clear(kept.place(&self.files));
        }
        let synced = self.files.sync();
        let mut record = kept.record.clone();
        record.boot = None;
        record.change += 1;
        let stored = synced.and_then(|()| record.store(self.files.backing()));
        match stored {
            Ok(()) => kept.record = record,
            Err(error) => {
                tracing::warn!(%error, "the sums of content do not outlive this run of the machine");
                kept.end();
            }
        }
    }

    /// The events of sums since the store was opened.
    pub fn totals(&self) -> SumTotals {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SumTotals {
            mismatches: of(&self.counts.mismatches),
            left_sums: of(&self.counts.left_sums),
            given_up: of(&self.counts.given_up),
        }
    }

    fn forget(&self) {
        for stripe in &self.stripes {
            stripe.lock().forget_all();
        }
    }

    #[allow(clippy::indexing_slicing)] // the remainder is below the length
    pub(super) fn stripe(&self, ino: Ino) -> &Mutex<SumStripe> {
        &self.stripes[usize::try_from(ino.get() % STRIPES as u64).unwrap_or(0)]
    }
}

/// Adds one to a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl KeptEra {
    fn new(record: EraRecord, key: SumKey, changing: ChangingTable) -> Self {
        Self {
            key: Arc::new(key),
            record,
            changing,
            is_over: AtomicBool::new(false),
        }
    }

    pub fn place<'a>(&'a self, files: &'a SumFiles) -> SumPlace<'a> {
        SumPlace {
            files,
            key: &self.key,
            era: self.record.era,
        }
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// No sum of this era counts any more.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.changing.end_era();
    }
}
