//! Operations of a primary that wait for the peer's answer: logged as intents, then committed or rolled back.

use lockstep_intentlog::{Position, Record};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{MetaOp, Osn};

use super::{Applied, MetadataLog, may_make_room};
use crate::error::{OpError, StoreError};
use crate::tree::Tree;

/// The answer of a logged intent.
#[derive(Clone, Copy, Debug)]
pub struct Intent {
    /// The metadata operation before it.
    pub previous: Osn,
    /// Where its record lies in the log.
    pub position: Position,
}

/// The intents of one store.
#[derive(Clone, Copy)]
pub struct Intents<'a> {
    log: &'a MetadataLog,
    tree: Tree<'a>,
}

impl<'a> Intents<'a> {
    /// The intents in `log`, of operations on `tree`.
    pub const fn new(log: &'a MetadataLog, tree: Tree<'a>) -> Self {
        Self { log, tree }
    }
}

impl Intents<'_> {
    /// Logs the intent of `op`, before the operation is sent to the peer (paper, section 5.1: PENDING).
    pub fn log(self, op: &MetaOp) -> Result<Intent, OpError> {
        self.tree.disk().check_not_poisoned()?;
        self.log
            .wait_for_log(self.tree, may_make_room(&op.request))?;
        let mut applying = self.log.applying.lock();
        let position = self
            .log
            .log_record(self.tree.disk(), &Record::Pending(op.clone()))?;
        let previous = applying.add_pending(op.clone(), position);
        Ok(Intent { previous, position })
    }

    /// A pending operation and the one before it, to be sent again.
    pub fn get(self, osn: Osn) -> Option<(MetaOp, Osn)> {
        let applying = self.log.applying.lock();
        let intent = applying.pending(osn)?;
        Some((intent.op.clone(), intent.previous))
    }

    /// Whether a secondary that has got to `osn` follows this store: it has everything that is applied here, and
    /// besides at most operations that wait for its answer (rule P8).
    pub fn is_followed_at(self, osn: Osn) -> bool {
        let applying = self.log.applying.lock();
        osn == applying.applied || applying.pending(osn).is_some()
    }

    /// Applies a pending operation that the peer has committed; `None` if it is not pending, because it was refused
    /// here before it was sent.
    ///
    /// When this fails, the operation stays pending, also for a later process. No later operation may be applied until
    /// this one is rolled back. Otherwise this store would claim to be further than an operation that it lacks (rule
    /// P8).
    pub fn commit(self, osn: Osn) -> Result<Option<Applied>, OpError> {
        let mut applying = self.log.applying.lock();
        let Some((at, mut intent)) = applying.take_pending(osn) else {
            return Ok(None);
        };
        let committed = Record::Committed { osn };
        let taken_back = Record::Pending(intent.op.clone());
        match self.log.apply_logged(
            self.tree,
            &mut applying,
            &intent.op,
            &committed,
            &taken_back,
        ) {
            Ok(applied) => Ok(Some(applied)),
            Err(failure) => {
                intent.position = failure.taken_back.unwrap_or(intent.position);
                applying.put_back(at, intent);
                Err(diverged(osn, failure.error))
            }
        }
    }

    /// Drops a pending operation that the peer has refused or never got.
    pub fn roll_back(self, osn: Osn) -> Result<(), StoreError> {
        let mut applying = self.log.applying.lock();
        if let Some((_, intent)) = applying.take_pending(osn) {
            // The peer may have the operation. No intent was pending when a trace began: the trace names this one (rule P28).
            let is_traced = intent.is_of_lost_run && self.log.delta.trace().is_active();
            if !is_traced && !is_active(Mutant::RollBackExecuted) {
                self.log.delta.end();
            }
            self.log
                .log_record(self.tree.disk(), &Record::RolledBack { osn })?;
        }
        Ok(())
    }

    /// Intents that were logged and whose outcome this node does not know.
    pub fn in_doubt(self) -> Vec<Osn> {
        self.log.applying.lock().pending_osns()
    }

    /// Whether the machine has lost power since the intent of `osn` was logged.
    pub fn is_of_lost_run(self, osn: Osn) -> bool {
        self.log.applying.lock().is_of_lost_run(osn)
    }
}

/// An operation that both nodes had agreed on must apply. If this store refuses it, the stores differ.
fn diverged(osn: Osn, error: OpError) -> OpError {
    match error {
        OpError::Refused(errno) => StoreError::Diverged { osn, errno }.into(),
        OpError::Store(error) => OpError::Store(error),
    }
}
