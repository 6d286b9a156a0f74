//! Operations of a primary that wait for the peer's answer: logged as intents, then committed or rolled back.

use lockstep_types::{MetaOp, Osn};

use super::facade::Store;
use crate::error::{OpError, StoreError};
use crate::metadata_log::{Applied, Intent};

/// The intents of one store.
#[derive(Clone, Copy)]
pub struct Intents<'a> {
    store: &'a Store,
}

impl Store {
    /// Operations that wait for the peer's answer.
    pub const fn intents(&self) -> Intents<'_> {
        Intents { store: self }
    }
}

impl Intents<'_> {
    /// Logs the intent of `op`, before the operation is sent to the peer (paper, section 5.1: PENDING).
    pub fn log(self, op: &MetaOp) -> Result<Intent, OpError> {
        self.store.metadata_log.log_pending(self.store.tree(), op)
    }

    /// A pending operation and the one before it, to be sent again.
    pub fn get(self, osn: Osn) -> Option<(MetaOp, Osn)> {
        self.store.metadata_log.pending(osn)
    }

    /// Intents that were logged and whose outcome this node does not know.
    pub fn in_doubt(self) -> Vec<Osn> {
        self.store.metadata_log.in_doubt()
    }

    /// Whether a secondary that has got to `osn` follows this store (rule P8).
    pub fn is_followed_at(self, osn: Osn) -> bool {
        self.store.metadata_log.is_followed_at(osn)
    }

    /// Applies a pending operation that the peer has committed; `None` if it is not pending. When this fails, the
    /// operation stays pending, and no later operation may be applied until this one is rolled back (rule P8).
    pub fn commit(self, osn: Osn) -> Result<Option<Applied>, OpError> {
        self.store
            .metadata_log
            .commit_pending(self.store.tree(), osn)
    }

    /// Drops a pending operation that the peer has refused or never got.
    pub fn roll_back(self, osn: Osn) -> Result<(), StoreError> {
        let disk = self.store.content.disk();
        self.store.metadata_log.roll_back(disk, osn)
    }
}
