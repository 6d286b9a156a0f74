//! State that changes as metadata operations are applied. The metadata log holds one lock around all of it.

use std::collections::VecDeque;

use lockstep_intentlog::Position;
use lockstep_types::{MetaOp, Osn};

use super::changed_keys::ChangedKeys;

/// Bits for the numbers of operations of one opening of the store.
const EPOCH_SHIFT: u32 = 40;

/// The progress of metadata operations.
pub struct Applying {
    /// Highest OSN of a metadata operation applied or rolled back.
    pub(super) applied: Osn,
    /// Intents logged and not yet committed or rolled back, in their order. The first one goes first: thousands may wait.
    pending: VecDeque<PendingIntent>,
    /// How often the store was opened.
    pub(super) epoch: u32,
    /// The sequences below were given out since the store was opened.
    given_below: u64,
    /// Records that operations have changed, while a resync follows them.
    pub(super) changed: ChangedKeys,
}

/// An intent that waits for the peer's answer.
pub struct PendingIntent {
    pub(super) op: MetaOp,
    /// The metadata operation before this one.
    pub(super) previous: Osn,
    /// Where the record lies in the log.
    pub(super) position: Position,
    /// The machine has lost power since the intent was logged.
    pub(super) is_of_lost_run: bool,
}

impl Applying {
    /// The state at a checkpoint: nothing is pending.
    pub fn new(applied: Osn, epoch: u32) -> Self {
        Self {
            applied,
            pending: VecDeque::new(),
            epoch,
            given_below: 0,
            changed: ChangedKeys::default(),
        }
    }

    /// First OSN sequence that may be given out. It is higher than any sequence given out before, even if the highest
    /// were lost with power: the count of openings is durable before the first use (P13).
    pub(super) fn first_sequence(&self) -> u64 {
        let of_opening = u64::from(self.epoch) << EPOCH_SHIFT;
        of_opening.max(self.given_below)
    }

    /// Notes that the sequences below `end` were given out.
    pub(super) fn note_given(&mut self, end: u64) {
        self.given_below = self.given_below.max(end);
    }

    /// Counts an opening. One opening may have lasted for longer than its numbers do.
    pub(super) fn begin_epoch(&mut self) {
        self.epoch = self.epoch.max(self.epoch_reached()) + 1;
    }

    /// The opening whose numbers the operations known here have reached.
    fn epoch_reached(&self) -> u32 {
        let pending = self.pending.iter().map(|intent| intent.op.osn);
        let highest = pending.fold(self.applied, Osn::max);
        u32::try_from(highest.sequence >> EPOCH_SHIFT).unwrap_or(u32::MAX - 1)
    }

    /// Adds an intent. Returns the metadata operation before it.
    pub(super) fn add_pending(&mut self, op: MetaOp, position: Position) -> Osn {
        let last = self.pending.back().map(|intent| intent.op.osn);
        let previous = last.unwrap_or(self.applied);
        self.pending.push_back(PendingIntent {
            op,
            previous,
            position,
            is_of_lost_run: false,
        });
        previous
    }

    /// The machine has lost power since the intents were logged.
    pub(super) fn note_power_lost(&mut self) {
        for intent in &mut self.pending {
            intent.is_of_lost_run = true;
        }
    }

    pub(super) fn pending(&self, osn: Osn) -> Option<&PendingIntent> {
        self.pending.iter().find(|intent| intent.op.osn == osn)
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn pending_osns(&self) -> Vec<Osn> {
        self.pending.iter().map(|intent| intent.op.osn).collect()
    }

    /// Whether the machine has lost power since an intent was logged.
    pub(super) fn is_of_lost_run(&self, osn: Osn) -> bool {
        self.pending(osn)
            .is_some_and(|intent| intent.is_of_lost_run)
    }

    /// Takes out an intent, with its index for [`Self::put_back`].
    pub(super) fn take_pending(&mut self, osn: Osn) -> Option<(usize, PendingIntent)> {
        let at = self
            .pending
            .iter()
            .position(|intent| intent.op.osn == osn)?;
        Some((at, self.pending.remove(at)?))
    }

    pub(super) fn put_back(&mut self, at: usize, intent: PendingIntent) {
        self.pending.insert(at, intent);
    }

    pub(super) fn drop_pending(&mut self) {
        self.pending.clear();
    }

    /// The log is needed from its oldest unresolved intent on, or from `position`.
    pub(super) fn log_needed_from(&self, position: Position) -> Position {
        self.pending
            .iter()
            .map(|intent| intent.position)
            .fold(position, Position::min)
    }
}
