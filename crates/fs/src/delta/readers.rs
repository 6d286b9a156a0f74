//! Change readers: each asks what has changed in this store since a point that it names, such as an incremental backup.
//!
//! A reader has a name, and two tables of marks on this node ([`reader`]). In each role of the node, each change of the store is
//! marked for each reader before it is made: bytes as an observer of the content, records by the metadata log, the receiver of an
//! image and the repair. Rule P34 has the promise. The marks of the mirror ([`super`]) are others: these here end with no barrier and no resync.
//!
//! - A question opens a new column under a new point, and waits until the changes are over that had begun before
//!   ([`crate::under_way`]). So a change is in the answer, and each later reading of the store sees it, or it is marked in the new
//!   column.
//! - The marks since the confirmed point stay until the next point is confirmed. An answer that is lost is asked again.
//! - A reader that does not exist on this node, that has lost its marks or names another point is told that everything may have
//!   changed, and why.
//!
//! Bounds: [`READERS_MAX`] readers. A reader that was not heard of for [`READER_KEPT_DAYS`] days is removed, with its tables.
//!
//! Without readers a change costs two atomic additions, and a look at a flag.
//!
//! Invariants:
//! - A reader is among those that are told of changes before its first turn.
//! - The marks count only for the opening of the store that has left them ([`super::table`]): never after a loss of power, which may
//!   take back what a reader has copied.
//!
//! Locks, in this order: `asking`, which is held across calls of the disk; the readers that are told (`told`) or the list, which are
//! not; those of a reader. A status takes the lock of the list only.

mod column;
mod point;
mod reader;
mod registry;
mod walk;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Ino, Osn, Timestamp};
use parking_lot::{Mutex, RwLock};
use thiserror::Error;

use super::table::{MarkTable, MarkTableSizes};
use crate::content::before_change::{ByteChange, ByteObserver};
use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::last_use::LastUse;
use crate::namespace::plan::Plan;
use crate::paths::{READER_MARK_FILES, TABLES_DIR};
use crate::under_way::{ChangeUnderWay, ChangesUnderWay, ReaderTurn};
use crate::view::StoreView;
pub use point::{ChangePoint, NotAPoint};
use reader::ChangeReader;
use registry::Registry;
pub use registry::{LostMarks, READERS_MAX, ReaderRecord};
pub use walk::{AnswerReplaced, ChangeWalk, ChangedEntry, EntryChange};

/// Days after which a reader that was not heard of is removed.
pub const READER_KEPT_DAYS: i64 = 30;
/// Longest name of a reader, in bytes.
pub const READER_NAME_MAX: usize = 64;
/// A table of a reader has so many times the slots of a column of the mirror, since its intervals are those of a backup.
const SLOTS_FACTOR: usize = 4;

/// Why a question of a change reader has no answer.
#[derive(Debug, Error)]
pub enum ReaderError {
    /// There are [`READERS_MAX`] others.
    #[error("the datastore has {READERS_MAX} change readers on this node")]
    TooMany,
    /// A name is letters, digits, `-`, `_` and `.`, and not too long.
    #[error("{0:?} is no name of a change reader")]
    BadName(String),
    /// No reader has this name.
    #[error("no change reader is named {0:?}")]
    Unknown(String),
    /// The point is not that of the last question.
    #[error("change reader {name:?} has not asked at {point}, or has asked again since")]
    OtherPoint {
        /// The reader.
        name: String,
        /// The point.
        point: ChangePoint,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a reader is told that everything may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeAnswer {
    /// The reader did not exist on this node. It is registered from now on.
    Registered,
    /// The reader has never confirmed an answer.
    Unconfirmed,
    /// The point of the question is not one of this reader on this node.
    OtherPoint,
    /// The marks were lost.
    Lost(LostMarks),
    /// More names have changed than the table has room for.
    TooManyNames,
}

/// A question under way.
pub struct ChangeQuestion {
    /// The point to be confirmed.
    pub point: ChangePoint,
    /// The confirmed point since which changes are told; the reason if everything may have changed.
    pub since: Result<ChangePoint, WholeAnswer>,
    turn: ReaderTurn,
    reader: Arc<ChangeReader>,
}

/// The question of a reader.
#[derive(Clone, Copy, Debug)]
pub struct ChangeAsk<'a> {
    /// Its name.
    pub name: &'a str,
    /// The point up to which it has everything. `None`: the one that it has confirmed here.
    pub since: Option<ChangePoint>,
    /// Each operation up to this one is over.
    pub applied: Osn,
    /// Random bytes.
    pub drawn: [u8; 16],
    /// The time by the clock of the machine.
    pub now: Timestamp,
}

/// The state that belongs to the opening of the store.
struct ReaderTables {
    backing: Arc<dyn Backing>,
    sizes: MarkTableSizes,
    last_use: LastUse,
    /// The number of the opening, once the store has noted it.
    epoch: u32,
}

/// A reader among those that are told of changes.
type ToldReader = (usize, Arc<ChangeReader>);

/// See the head of this file.
pub struct ChangeReaders {
    under_way: Arc<ChangesUnderWay>,
    has_readers: AtomicBool,
    asking: Mutex<ReaderTables>,
    told: RwLock<Vec<ToldReader>>,
    list: Mutex<Registry>,
}

/// Begin and end.
impl ChangeReaders {
    /// The readers of a store, as the last process has left them.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn open(
        backing: &Arc<dyn Backing>,
        sizes: MarkTableSizes,
        last_use: LastUse,
    ) -> Result<Self, StoreError> {
        let mut list = Registry::read(backing.as_ref())?;
        let tables = ReaderTables {
            backing: Arc::clone(backing),
            sizes,
            last_use,
            epoch: last_use.epoch,
        };
        let mut told = Vec::new();
        for (number, slot) in list.slots.iter_mut().enumerate() {
            let Some(record) = slot.as_mut().filter(|record| record.lost.is_none()) else {
                continue;
            };
            if let Some(reader) = tables.left(number, record.registration)? {
                told.push((number, Arc::new(reader)));
            } else {
                record.lost = Some(last_use.lost_marks());
                tables.remove(number);
            }
        }
        Ok(Self {
            under_way: Arc::default(),
            has_readers: AtomicBool::new(!told.is_empty()),
            asking: Mutex::new(tables),
            told: RwLock::new(told),
            list: Mutex::new(list),
        })
    }

    /// The store has noted that this is the opening `epoch`.
    pub fn opened(&self, epoch: u32) {
        self.asking.lock().epoch = epoch;
        for (_, reader) in self.told.read().iter() {
            reader.opened(epoch);
        }
    }

    /// Puts the marks on stable storage, before the present opening of the store ends cleanly.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn close(&self) -> Result<(), StoreError> {
        let tables = self.asking.lock();
        let told = self.told.read();
        for (number, reader) in told.iter() {
            reader.close();
            tables.sync(*number)?;
        }
        Ok(())
    }
}

impl LastUse {
    fn lost_marks(&self) -> LostMarks {
        if self.last_boot.is_some_and(|last| last != self.boot) {
            LostMarks::PowerLoss
        } else {
            LostMarks::OtherTables
        }
    }
}

impl ReaderTables {
    fn open(&self, number: usize) -> Result<Option<[MarkTable; 2]>, StoreError> {
        let Some([first, second]) = READER_MARK_FILES.get(number).copied() else {
            return Ok(None);
        };
        let slots = self.sizes.column_slots.saturating_mul(SLOTS_FACTOR);
        let open = |path| MarkTable::open(self.backing.as_ref(), path, slots, self.last_use);
        Ok(Some([open(first)?, open(second)?]))
    }

    fn left(&self, number: usize, registration: u64) -> Result<Option<ChangeReader>, StoreError> {
        let tables = self.open(number)?;
        Ok(tables.and_then(|tables| ChangeReader::left(registration, tables)))
    }

    /// Puts the tables of a reader on stable storage.
    fn sync(&self, number: usize) -> Result<(), StoreError> {
        for path in READER_MARK_FILES.get(number).into_iter().flatten() {
            match self.backing.open(path) {
                // The disk had no room for the table.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => opened.and_then(|file| file.sync()),
            }
            .map_err(StoreError::disk("sync", *path))?;
        }
        let named = self.backing.sync_dir(TABLES_DIR);
        named.map_err(StoreError::disk("sync the names in", TABLES_DIR))
    }

    /// Removes the tables of a reader. A table that cannot be removed is used by the next reader of that number.
    fn remove(&self, number: usize) {
        for path in READER_MARK_FILES.get(number).into_iter().flatten() {
            match self.backing.remove(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path, %error, "the table of a removed change reader stays");
                }
                _ => {}
            }
        }
    }
}

/// Marks.
impl ChangeReaders {
    /// A change begins, of bytes or records that are marked afterwards, and lasts until the value is dropped.
    pub fn begin_change(&self) -> ChangeUnderWay {
        self.under_way.begin()
    }

    /// An operation is about to change records. Its bytes are marked when they change.
    pub fn note_plan(&self, plan: &Plan) {
        self.note_keys(plan.batch.iter().map(|(key, _)| key));
    }

    /// Records are about to change.
    pub fn note_keys<'a>(&self, keys: impl Iterator<Item = &'a Vec<u8>>) {
        if self.has_readers() {
            let keys: Vec<&Vec<u8>> = keys.filter(|key| column::is_told(key)).collect();
            self.each(|reader| reader.mark_keys(&keys));
        }
    }

    /// Records are about to become those of the other node. The content of an inode that goes may be that of another one later.
    pub fn note_image<'a>(&self, batch: impl Iterator<Item = (&'a Vec<u8>, bool)> + Clone) {
        if !self.has_readers() || is_active(Mutant::ReaderForgetsImage) {
            return;
        }
        self.note_keys(batch.clone().map(|(key, _)| key));
        for (key, stays) in batch {
            if key.first() == Some(&keys::INODES)
                && !stays
                && let Some(ino) = keys::ino_of(key)
            {
                self.note_bytes(ino, &(0..u64::MAX));
            }
        }
    }

    /// Bytes of a file are about to change.
    pub fn note_bytes(&self, ino: Ino, bytes: &Range<u64>) {
        if self.has_readers() {
            self.each(|reader| reader.mark_bytes(ino, bytes));
        }
    }

    fn has_readers(&self) -> bool {
        self.has_readers.load(Ordering::SeqCst)
    }

    fn each(&self, mark: impl Fn(&ChangeReader)) {
        self.told.read().iter().for_each(|(_, reader)| mark(reader));
    }
}

impl ByteObserver for ChangeReaders {
    fn before_change(
        &self,
        change: &ByteChange<'_>,
        _: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        self.note_bytes(change.ino, &change.edit.range());
        Ok(())
    }
}

/// Questions.
impl ChangeReaders {
    /// A reader asks what has changed. `None` while changes from before the last question are under way: the caller asks again.
    /// Registers a reader that does not exist.
    ///
    /// # Errors
    /// If the name is bad, there are too many readers, or the disk fails or is full.
    pub fn ask(&self, ask: &ChangeAsk<'_>) -> Result<Option<ChangeQuestion>, ReaderError> {
        check_name(ask.name)?;
        let tables = self.asking.lock();
        if !self.under_way.can_turn() {
            return Ok(None);
        }
        let [nonce, registration] = halves(ask.drawn);
        let osn = ask.applied;
        let point = ChangePoint { osn, nonce };
        let (known, whole) = self.known(ask);
        let (reader, since) = match known {
            Some(reader) => {
                reader.turn(point);
                let since = reader.points().since.ok_or(WholeAnswer::Unconfirmed);
                (reader, since)
            }
            None => (
                self.register(&tables, ask, registration, point)?,
                Err(whole),
            ),
        };
        self.note_heard(&tables, ask.name, ask.now, since.ok());
        let turn = self.under_way.turn();
        Ok(Some(ChangeQuestion {
            point,
            since,
            turn,
            reader,
        }))
    }

    /// The reader that asks, if it exists and names no other point than its own; and the reason if not.
    fn known(&self, ask: &ChangeAsk<'_>) -> (Option<Arc<ChangeReader>>, WholeAnswer) {
        let list = self.list.lock();
        let Some(number) = list.find(ask.name) else {
            return (None, WholeAnswer::Registered);
        };
        let noted = list.get(number).and_then(|record| record.lost);
        drop(list);
        let told = self.told.read();
        let reader = told.iter().find(|(of, _)| *of == number);
        let Some(reader) = reader.map(|(_, reader)| Arc::clone(reader)) else {
            let why = noted.unwrap_or(LostMarks::OtherTables);
            return (None, WholeAnswer::Lost(why));
        };
        drop(told);
        // A reader that names the point of its last answer has taken that answer.
        if ask.since.is_some_and(|since| !reader.confirm(since)) {
            return (None, WholeAnswer::OtherPoint);
        }
        (Some(reader), WholeAnswer::Unconfirmed)
    }

    /// Makes a reader with empty tables, in the place of one with the same name.
    fn register(
        &self,
        tables: &ReaderTables,
        ask: &ChangeAsk<'_>,
        registration: u64,
        point: ChangePoint,
    ) -> Result<Arc<ChangeReader>, ReaderError> {
        let mut list = self.list.lock().clone();
        let number = list.find(ask.name).or_else(|| list.free());
        let number = number.ok_or(ReaderError::TooMany)?;
        self.forget(number);
        let opened = tables.open(number)?.ok_or(ReaderError::TooMany)?;
        let reader = ChangeReader::register(registration, opened, tables.epoch, point);
        let reader = Arc::new(reader);
        let record = ReaderRecord {
            name: ask.name.to_owned(),
            registration,
            registered: ask.now,
            heard: ask.now,
            since: None,
            lost: None,
        };
        list.set(number, Some(record));
        list.write(tables.backing.as_ref())?;
        *self.list.lock() = list;
        self.told.write().push((number, Arc::clone(&reader)));
        self.has_readers.store(true, Ordering::SeqCst);
        Ok(reader)
    }

    /// A reader is told of no change any more.
    fn forget(&self, number: usize) {
        let mut told = self.told.write();
        told.retain(|(of, _)| *of != number);
        self.has_readers.store(!told.is_empty(), Ordering::SeqCst);
    }

    /// Notes when a reader was last heard of. A disk that takes no note has no effect on the answer.
    fn note_heard(
        &self,
        tables: &ReaderTables,
        name: &str,
        now: Timestamp,
        since: Option<ChangePoint>,
    ) {
        let list = {
            let mut list = self.list.lock();
            let record = list
                .find(name)
                .and_then(|number| list.slots.get_mut(number));
            if let Some(record) = record.and_then(Option::as_mut) {
                (record.heard, record.since) = (now, since);
            }
            list.clone()
        };
        if let Err(error) = list.write(tables.backing.as_ref()) {
            tracing::warn!(reader = name, %error, "the time of a change reader is not noted");
        }
    }

    /// Whether each reading of the store from now on sees the changes that are in the answer.
    pub fn is_settled(&self, question: &ChangeQuestion) -> bool {
        self.under_way.is_over(question.turn)
    }

    /// The walk of the answer. The caller has seen [`Self::is_settled`]. The reason if everything may have changed.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn walk(
        question: &ChangeQuestion,
        view: &dyn StoreView,
    ) -> Result<Result<ChangeWalk, WholeAnswer>, OpError> {
        if let Err(whole) = question.since {
            return Ok(Err(whole));
        }
        if question.reader.older().has_all_names() {
            return Ok(Err(WholeAnswer::TooManyNames));
        }
        ChangeWalk::begin(Arc::clone(&question.reader), question.point, view).map(Ok)
    }
}

/// The list.
impl ChangeReaders {
    /// A reader has everything up to the point of its last question.
    ///
    /// # Errors
    /// If no such reader exists here, or if the point is not one of it.
    pub fn confirm(
        &self,
        name: &str,
        point: ChangePoint,
        now: Timestamp,
    ) -> Result<(), ReaderError> {
        let tables = self.asking.lock();
        let number = self.list.lock().find(name);
        let told = self.told.read();
        let reader = told.iter().find(|(of, _)| Some(*of) == number);
        let reader = reader.map(|(_, reader)| Arc::clone(reader));
        drop(told);
        if number.is_none() {
            return Err(ReaderError::Unknown(name.to_owned()));
        }
        if !reader.is_some_and(|reader| reader.confirm(point)) {
            let name = name.to_owned();
            return Err(ReaderError::OtherPoint { name, point });
        }
        self.note_heard(&tables, name, now, Some(point));
        Ok(())
    }

    /// Removes a reader, with its tables.
    ///
    /// # Errors
    /// If no such reader exists, or if the disk fails or is full: then the reader stays.
    pub fn remove(&self, name: &str) -> Result<(), ReaderError> {
        let tables = self.asking.lock();
        let number = self.list.lock().find(name);
        let number = number.ok_or_else(|| ReaderError::Unknown(name.to_owned()))?;
        self.remove_number(&tables, number)
    }

    fn remove_number(&self, tables: &ReaderTables, number: usize) -> Result<(), ReaderError> {
        let mut list = self.list.lock().clone();
        list.set(number, None);
        list.write(tables.backing.as_ref())?;
        *self.list.lock() = list;
        self.forget(number);
        tables.remove(number);
        Ok(())
    }

    /// Removes the readers that were not heard of for too long; returns their names.
    ///
    /// # Errors
    /// If the disk fails or is full: then a reader stays.
    pub fn expire(&self, now: Timestamp) -> Result<Vec<String>, ReaderError> {
        let oldest = now.secs.saturating_sub(READER_KEPT_DAYS * 24 * 3600);
        let is_old = |record: &ReaderRecord| record.heard.secs < oldest;
        if !self.list().iter().any(is_old) {
            return Ok(Vec::new());
        }
        let tables = self.asking.lock();
        let list = self.list.lock().clone();
        let mut removed = Vec::new();
        for (number, slot) in list.slots.iter().enumerate() {
            if let Some(record) = slot.as_ref().filter(|record| is_old(record)) {
                self.remove_number(&tables, number)?;
                removed.push(record.name.clone());
            }
        }
        Ok(removed)
    }

    /// The readers. Waits for no disk.
    pub fn list(&self) -> Vec<ReaderRecord> {
        self.list.lock().slots.iter().flatten().cloned().collect()
    }
}

fn check_name(name: &str) -> Result<(), ReaderError> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > READER_NAME_MAX || !name.bytes().all(is_fit) {
        return Err(ReaderError::BadName(name.to_owned()));
    }
    Ok(())
}

/// Two numbers of random bytes.
fn halves(drawn: [u8; 16]) -> [u64; 2] {
    let halves = [drawn.first_chunk(), drawn.last_chunk()];
    halves.map(|half| half.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}
