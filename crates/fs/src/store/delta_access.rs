//! The delta of a store, for a driver and for a resync: the changes since both copies were equal.

use lockstep_delta::{BarrierName, MarkAccount, MarkPage, ResyncBase};
use lockstep_types::{Generation, Ino, Osn};

use super::facade::Store;
use crate::delta::{ChangedRecords, DeltaJob, DeltaTracker, DeltaWalk, WalkProgress};
use crate::metadata_log::MetadataLog;

/// The delta of one store (rule P21).
#[derive(Clone, Copy)]
pub struct DeltaAccess<'a> {
    delta: &'a DeltaTracker,
    log: &'a MetadataLog,
}

impl Store {
    /// The changes since both copies were equal.
    pub fn delta(&self) -> DeltaAccess<'_> {
        DeltaAccess {
            delta: &self.delta,
            log: &self.metadata_log,
        }
    }
}

/// Begin and end.
impl DeltaAccess<'_> {
    /// This secondary is in sync with the primary of generation `base`.
    pub fn follow(self, base: Generation) {
        self.log.follow_primary(base);
    }

    /// The primary has done every operation below `below`.
    pub fn note_done_below(self, below: Osn) {
        self.delta.note_done_below(below);
    }

    /// This node leads in generation `led`, without the other node: a secondary that has become the primary, or a primary that was
    /// stopped and goes on. After a loss of its power, the other node has the marks of all changes before; to be called before the names
    /// of barriers are hidden then.
    pub fn lead_alone(self, led: Generation, has_lost_power: bool) {
        self.delta.lead_alone(led, has_lost_power);
    }

    /// This primary has lost the connection with its secondary. The nodes were in sync, in generation `base`. Changes memory only.
    pub fn begin_alone(self, base: Generation) {
        let applied = self.log.applied_lately();
        self.delta.begin_alone(base, applied);
    }

    /// The delta and the marks of mirrored intervals say nothing about the other copy any more. Changes memory only.
    pub fn end(self) {
        self.delta.end();
    }

    /// The copies are equal again. Changes memory only.
    pub fn end_equal(self) {
        self.delta.end_equal();
    }

    /// Tells the tables of each begin and end. To be called before the mark "out of sync" is durable, on a thread that may wait for
    /// the disk: the head of `delta` has the reason.
    pub fn settle(self) {
        self.delta.settle();
    }
}

/// Changes.
impl DeltaAccess<'_> {
    /// Adds a write that may be on one node only.
    pub fn add_write(self, ino: Ino, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        self.delta.add_bytes(ino, &(offset..end));
    }

    /// The records that may differ from those of a copy that was equal in generation `base` and has the operations up to
    /// `applied`; `None` if the delta does not say so.
    pub fn records(self, base: Generation, applied: Osn) -> Option<ChangedRecords> {
        self.delta.records(base, applied)
    }
}

/// A resync since a barrier, and the columns.
impl DeltaAccess<'_> {
    /// Adds all marks since a barrier to the delta, as the begin of a resync whose namespace has not arrived. `led`: the generation
    /// of this primary. `peer`: the account of the other node. `told`: its marks, if [`ResyncBase::needs_marks`]. Returns false if the
    /// barrier is no base ([`Self::base_with`]).
    pub fn adopt_base(
        self,
        name: BarrierName,
        led: Generation,
        peer: &MarkAccount,
        told: &[MarkPage],
    ) -> bool {
        let applied = self.log.applied();
        self.delta.adopt_base(name, led, applied, peer, told)
    }

    /// The youngest barrier that both nodes know by name, and since which the marks of both name each place at which the copies may
    /// differ. `peer`: the account of the other node.
    pub fn base_with(self, peer: &MarkAccount) -> Option<ResyncBase> {
        self.delta.base_with(peer)
    }

    /// The barriers and the marks of this node, for its greeting.
    pub fn account(self) -> MarkAccount {
        self.delta.account()
    }

    /// The marks of this node since a barrier: the page behind `told` marks, of at most [`MarkPage::MARKS_MAX`]. The pages belong
    /// together if nothing changes between them.
    pub fn tell_marks(self, since: BarrierName, told: u64) -> MarkPage {
        self.delta.tell_marks(since, told)
    }

    /// Notes the whole delta in the open column: the secondary is about to get these places, and may lose them. From now on each
    /// change is noted there, too. After [`BarrierEvent::MirroringBegun`], before anything is sent.
    ///
    /// [`BarrierEvent::MirroringBegun`]: lockstep_delta::BarrierEvent::MirroringBegun
    pub fn keep_in_columns(self) {
        self.delta.keep_in_columns();
    }

    /// The records that may differ, whether the other copy has the namespace of the resync or not; `None` without a delta.
    pub fn adopted_records(self) -> Option<ChangedRecords> {
        self.delta.adopted_records()
    }
}

/// The progress of a resync, which goes on from there when it has lost its connection.
impl DeltaAccess<'_> {
    /// A resync begins to send the namespace: of everything, or of the changes.
    pub fn begin_image(self, whole: bool) -> DeltaJob {
        self.delta.begin_image(whole)
    }

    /// No metadata operation is under way, and every record that may differ is about to be sent. `whole`: the generation of a
    /// resync of everything.
    pub fn image_held(self, job: DeltaJob, whole: Option<Generation>) {
        let applied = self.log.applied();
        self.delta.image_held(job, whole, applied);
    }

    /// The secondary has the namespace.
    pub fn image_arrived(self, job: DeltaJob) {
        self.delta.image_arrived(job);
    }

    /// A resync begins to make the content equal of a copy that was equal in generation `base` and has the operations up to
    /// `applied`; `None` if the delta does not say how it differs.
    pub fn begin_walk(self, base: Generation, applied: Osn) -> Option<DeltaWalk> {
        self.delta.begin_walk(base, applied)
    }

    /// The walk of a resync has gone on.
    pub fn walked(self, job: DeltaJob, progress: WalkProgress<'_>) {
        self.delta.walked(job, progress);
    }
}
