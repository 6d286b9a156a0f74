//! The change readers of a store, for a driver: the changes since a point that a reader has confirmed.

use lockstep_types::Timestamp;

use super::facade::Store;
use crate::delta::{
    AnswerReplaced, ChangeAsk, ChangePoint, ChangeQuestion, ChangeReaders, ChangeWalk,
    ChangedEntry, ReaderError, ReaderRecord, WholeAnswer,
};
use crate::error::OpError;

/// The change readers of one store.
#[derive(Clone, Copy)]
pub struct ChangeAccess<'a> {
    readers: &'a ChangeReaders,
    store: &'a Store,
}

impl<'a> ChangeAccess<'a> {
    /// The change readers of this store.
    pub fn of(store: &'a Store) -> Self {
        Self {
            readers: &store.readers,
            store,
        }
    }
}

/// A question, in this order.
impl ChangeAccess<'_> {
    /// A reader asks: changes from now on are in its next answer. `since`: the point up to which the reader has everything, which
    /// confirms that point; `None` for the last one that it has confirmed. Registers a reader that does not exist here. `None`: changes
    /// from before an earlier question are under way, and the caller asks again soon.
    ///
    /// # Errors
    /// If the name is bad, if there are too many readers, or if the disk has failed or is full.
    pub fn ask(
        self,
        name: &str,
        since: Option<ChangePoint>,
        drawn: [u8; 16],
        now: Timestamp,
    ) -> Result<Option<ChangeQuestion>, ReaderError> {
        self.store.content.disk().check_not_poisoned()?;
        self.readers.ask(&ChangeAsk {
            name,
            since,
            applied: self.store.applied(),
            drawn,
            now,
        })
    }

    /// Whether the changes are over that had begun before the question. The caller waits for that, and then walks.
    pub fn is_settled(self, question: &ChangeQuestion) -> bool {
        self.readers.is_settled(question)
    }

    /// The walk of the answer; the reason if everything may have changed.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn walk(
        self,
        question: &ChangeQuestion,
    ) -> Result<Result<ChangeWalk, WholeAnswer>, OpError> {
        ChangeReaders::walk(question, &self.store.tree())
    }

    /// The next entries of a walk, perhaps none; `None` at its end.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn next_page(
        self,
        walk: &mut ChangeWalk,
    ) -> Result<Result<Option<Vec<ChangedEntry>>, AnswerReplaced>, OpError> {
        walk.next_page(&self.store.tree())
    }
}

/// The list.
impl ChangeAccess<'_> {
    /// A reader has everything up to the point of its last question: the marks before are dropped.
    ///
    /// # Errors
    /// If no such reader exists here, if the point is not one of it, or if the disk has failed.
    pub fn confirm(
        self,
        name: &str,
        point: ChangePoint,
        now: Timestamp,
    ) -> Result<(), ReaderError> {
        self.store.content.disk().check_not_poisoned()?;
        self.readers.confirm(name, point, now)
    }

    /// Removes a reader, with its tables.
    ///
    /// # Errors
    /// If no such reader exists here, or if the disk has failed or is full.
    pub fn remove(self, name: &str) -> Result<(), ReaderError> {
        self.store.content.disk().check_not_poisoned()?;
        self.readers.remove(name)
    }

    /// Removes the readers that were not heard of for too long; returns their names.
    ///
    /// # Errors
    /// If the disk has failed or is full.
    pub fn expire(self, now: Timestamp) -> Result<Vec<String>, ReaderError> {
        self.readers.expire(now)
    }

    /// The readers. Waits for no disk.
    pub fn list(self) -> Vec<ReaderRecord> {
        self.readers.list()
    }
}
