//! The commands that a running node answers.

use std::net::IpAddr;

use lockstep_driver::report::{
    ChangeReaderStatus, ChangesPart, ChangesQuestion, CommandFailure, DiffPart, DiffQuestion,
    ReaderCommand, RoleReport, SnapshotCommand, SnapshotStatus, TrashAnswer, TrashCommand,
    VerifyMode, VerifyProgress, VerifyReport,
};

use lockstep_fs::export::{ExportSummary, Lost};
use lockstep_fs::seed::{SeedProgress, SeedSummary};

use super::export::ExportQuestion;
use super::report::NodeStatus;

/// A change of the role of a node, as an operator asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleCommand {
    /// The primary gives its role to the other node, which is in sync.
    HandOver {
        /// Also if a comparison before finds that the copies differ.
        accepts_differences: bool,
    },
    /// This node becomes the primary without the other node.
    Promote {
        /// Also if this copy may lack acknowledged operations.
        accepts_loss: bool,
    },
    /// This primary becomes the secondary. The next resync drops the operations that only this copy has.
    Demote,
}

/// The commands that a running node answers. Methods may block; several threads call them at once.
pub trait ControlService: Send + Sync + 'static {
    /// Returns the current status of the node. Must not wait for a peer or a disk.
    fn status(&self) -> NodeStatus;

    /// Compares both nodes of the datastore `name` and calls `progress` from time to time.
    fn verify(
        &self,
        name: &str,
        mode: VerifyMode,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, CommandFailure>;

    /// Tells a change reader what has changed in the datastore `name`, part by part, until `take` returns false.
    fn changes(
        &self,
        name: &str,
        question: &ChangesQuestion,
        take: &mut dyn FnMut(ChangesPart) -> bool,
    ) -> Result<(), CommandFailure>;

    /// Carries out a command about the change readers of the datastore `name`; returns the list afterwards.
    fn change_readers(
        &self,
        name: &str,
        command: &ReaderCommand,
    ) -> Result<Vec<ChangeReaderStatus>, CommandFailure>;

    /// Carries out a command about the snapshots of the datastore `name`; returns the list of this node afterwards.
    fn snapshots(
        &self,
        name: &str,
        command: &SnapshotCommand,
    ) -> Result<Vec<SnapshotStatus>, CommandFailure>;

    /// Carries out a command about the trash of the datastore `name`.
    fn trash(&self, name: &str, command: &TrashCommand) -> Result<TrashAnswer, CommandFailure>;

    /// Writes a snapshot of the datastore `name` out as a plain tree, as long as `goes_on`. Calls `report` with each loss.
    fn export(
        &self,
        name: &str,
        question: &ExportQuestion,
        report: &mut dyn FnMut(&Lost),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<ExportSummary, CommandFailure>;

    /// Writes a seed of a snapshot of the datastore `name`, as long as `goes_on`. Calls `progress` often.
    fn export_seed(
        &self,
        name: &str,
        question: &ExportQuestion,
        progress: &mut dyn FnMut(SeedProgress),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<SeedSummary, CommandFailure>;

    /// Tells the difference between two snapshots of the datastore `name`, or between a snapshot and the present, part by part, until `take`
    /// returns false.
    fn snapshot_diff(
        &self,
        name: &str,
        question: &DiffQuestion,
        take: &mut dyn FnMut(DiffPart) -> bool,
    ) -> Result<(), CommandFailure>;

    /// Changes the role of this node in the datastore `name`. Returns when the change is done, or has failed and has
    /// changed nothing.
    fn change_role(&self, name: &str, change: RoleCommand) -> Result<RoleReport, CommandFailure>;

    /// Notes that a program moves the cluster address `address` by the answers about the datastore `name`, and whether an NFS
    /// server is behind it. The note soon expires. Must not wait for a peer or a disk.
    fn follow_address(&self, name: &str, address: IpAddr, has_nfs: bool);
}
