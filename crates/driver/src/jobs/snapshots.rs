//! The snapshots of a datastore: the commands of an operator, and the work behind them in the background of each node.
//!
//! A command is an operation of the datastore (rule P35), and so of the primary. The list is that of this node.

use std::sync::Arc;

use lockstep_fs::StoreError;
use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotRecord};
use lockstep_fs::store::{FallbackAccess, SnapshotAccess};
use lockstep_repl::state::State;
use lockstep_types::limits::{SNAPSHOT_HOLDS_MAX, SNAPSHOT_WAIT_MS, SNAPSHOTS_MAX};
use lockstep_types::{Errno, MetaRequest, SnapshotId, SnapshotKind, SnapshotName};

use crate::engine::Engine;
use crate::host::single_job::SingleJob;
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::own_operation::carry_out;
use crate::report::{CommandFailure, SnapshotCommand, SnapshotStatus};

/// The name of a snapshot that is made for an arrival (rule P37).
pub(super) const ARRIVAL: &str = "arrival";

/// The snapshots of a running datastore.
#[derive(Clone, Copy)]
pub(crate) struct SnapshotService<'a> {
    snapshots: SnapshotAccess<'a>,
    engine: &'a Engine,
}

impl<'a> SnapshotService<'a> {
    /// The snapshots of the store of a node.
    pub fn of(engine: &'a Engine) -> Self {
        Self {
            engine,
            snapshots: SnapshotAccess::of(&engine.store),
        }
    }

    /// The snapshots of this node, the oldest first. Waits for no disk.
    pub fn list(self) -> Vec<SnapshotStatus> {
        let all = self.snapshots.all();
        all.iter().map(|(id, record)| status(*id, record)).collect()
    }

    /// The same list, with the space that each snapshot takes alone. Reads the index of kept values, once in all.
    ///
    /// # Errors
    /// The disk fails.
    pub fn list_with_space(self) -> Result<Vec<SnapshotStatus>, CommandFailure> {
        let all = self.snapshots.all();
        let with_space = |(id, record): (&SnapshotId, &Arc<SnapshotRecord>)| {
            let alone = self.snapshots.space_alone(*id)?;
            Ok(SnapshotStatus {
                alone_bytes: Some(alone.bytes),
                alone_records: Some(alone.records),
                ..status(*id, record)
            })
        };
        let listed: Result<_, StoreError> = all.iter().map(with_space).collect();
        listed.map_err(|error| CommandFailure::new(error.to_string(), "see the log of this node"))
    }

    /// Carries out a command that is about a snapshot of this node's own copy, in any role. Returns whether the command is one.
    ///
    /// # Errors
    /// The snapshot is the fallback of a resync, or the disk fails.
    pub fn own_command(self, command: &SnapshotCommand) -> Result<bool, CommandFailure> {
        let SnapshotCommand::Delete { name } = command else {
            return Ok(false);
        };
        let all = self.snapshots.list();
        let mut own = all.iter().filter(|(id, _)| id.is_local());
        let Some((id, record)) = own.find(|(_, record)| record.name == *name) else {
            return Ok(false);
        };
        if matches!(record.kind, SnapshotKind::Fallback { .. }) {
            return Err(CommandFailure::new(
                "the fallback is the only whole copy of this node while a resync changes the copy",
                "nothing is to be done: the fallback goes when the nodes are in sync",
            ));
        }
        let begun = self.snapshots.begin_deletion(*id);
        begun.map_err(|error| CommandFailure::new(error.to_string(), "see the log of this node"))
    }

    /// Carries a command out on the primary. Returns once both nodes have done it, on stable storage.
    ///
    /// # Errors
    /// The command is refused, or its outcome is not known.
    pub fn command(
        self,
        command: &SnapshotCommand,
        pipeline: &MetaPipeline,
        state: &dyn Fn() -> State,
    ) -> Result<(), CommandFailure> {
        let request = match command {
            SnapshotCommand::List | SnapshotCommand::ListSpace => return Ok(()),
            SnapshotCommand::Create { name, .. } => creation(checked(name)?, SnapshotKind::User),
            SnapshotCommand::Rename { name, to } => MetaRequest::SnapshotRename {
                id: self.find(name)?,
                name: checked(to)?,
            },
            SnapshotCommand::Delete { name } => MetaRequest::SnapshotDelete {
                id: self.find(name)?,
            },
            SnapshotCommand::Hold { name, hold } => MetaRequest::SnapshotHold {
                id: self.find(name)?,
                hold: checked_hold(hold)?,
            },
            SnapshotCommand::Release { name, hold } => MetaRequest::SnapshotRelease {
                id: self.find(name)?,
                hold: checked_hold(hold)?,
            },
        };
        let done = carry_out(request, self.engine, pipeline);
        done.map_err(|errno| self.refused(command, errno, state()))
    }

    /// The checked name of a new snapshot.
    ///
    /// # Errors
    /// It is no name, or it is taken.
    pub fn new_name(self, name: &str) -> Result<SnapshotName, CommandFailure> {
        let checked = checked(name)?;
        if self.find(name).is_ok() {
            return Err(name_is_taken(name));
        }
        Ok(checked)
    }

    fn find(self, name: &str) -> Result<SnapshotId, CommandFailure> {
        let found = self.named(name).map(|(id, _)| id);
        found.ok_or_else(|| self.unknown(name))
    }

    /// The snapshot of the datastore with a name.
    pub fn named(self, name: &str) -> Option<(SnapshotId, Arc<SnapshotRecord>)> {
        let all = self.snapshots.all();
        let mut taken = all.iter().filter(|(id, record)| record.is_taken(**id));
        let found = taken.find(|(_, record)| record.name == name);
        found.map(|(id, record)| (*id, Arc::clone(record)))
    }

    fn unknown(self, name: &str) -> CommandFailure {
        let datastore = self.engine.name();
        CommandFailure::new(
            format!("the datastore has no snapshot {name:?}"),
            format!("see the snapshots with `lockstep snapshot list {datastore}`"),
        )
    }

    /// The refusal of a command, for the operator.
    pub fn refused(self, command: &SnapshotCommand, errno: Errno, state: State) -> CommandFailure {
        let datastore = self.engine.name();
        if let Some(refusal) = self.refused_by_holds(command, errno) {
            return refusal;
        }
        match (errno, command) {
            (
                Errno::Exists,
                SnapshotCommand::Create { name: taken, .. }
                | SnapshotCommand::Rename { to: taken, .. },
            ) => name_is_taken(taken),
            (
                Errno::NoEntry,
                SnapshotCommand::Rename { name, .. }
                | SnapshotCommand::Delete { name }
                | SnapshotCommand::Hold { name, .. }
                | SnapshotCommand::Release { name, .. },
            ) => self.unknown(name),
            (Errno::QuotaExceeded, _) => CommandFailure::new(
                format!("the datastore has {SNAPSHOTS_MAX} snapshots, which is the most"),
                format!("delete one with `lockstep snapshot delete {datastore} NAME`"),
            ),
            (Errno::Busy, _) => self.busy(state),
            (Errno::Again | Errno::Io, _) if !self.engine.poison.has_failed() => {
                CommandFailure::new(
                    "the role of this node has changed meanwhile, or the node stops: the outcome is not known",
                    format!(
                        "see with `lockstep snapshot list {datastore}` on the primary whether it is done"
                    ),
                )
            }
            _ => CommandFailure::new(
                errno.to_string(),
                format!("see `lockstep status {datastore}`, and docs/operations/disks.md"),
            ),
        }
    }

    /// Why a command was refused, if the holds on a snapshot are the cause.
    fn refused_by_holds(self, command: &SnapshotCommand, errno: Errno) -> Option<CommandFailure> {
        let datastore = self.engine.name();
        Some(match (errno, command) {
            (Errno::Busy, SnapshotCommand::Delete { name }) => {
                let holds = self.holds(name);
                CommandFailure::new(
                    format!("the snapshot {name:?} is held by {holds}"),
                    format!(
                        "release each hold with `lockstep snapshot release {datastore} {name:?} HOLD`"
                    ),
                )
            }
            (Errno::Exists, SnapshotCommand::Hold { name, hold }) => CommandFailure::new(
                format!("the snapshot {name:?} is already held by {hold:?}"),
                "choose another name for the hold, or leave it at the one that is there",
            ),
            (Errno::QuotaExceeded, SnapshotCommand::Hold { name, .. }) => CommandFailure::new(
                format!("the snapshot {name:?} has {SNAPSHOT_HOLDS_MAX} holds, which is the most"),
                format!("release one with `lockstep snapshot release {datastore} {name:?} HOLD`"),
            ),
            (Errno::NoData, SnapshotCommand::Release { name, hold }) => CommandFailure::new(
                format!("the snapshot {name:?} is not held by {hold:?}"),
                format!("see the holds with `lockstep snapshot list {datastore}`"),
            ),
            _ => return None,
        })
    }

    /// The holds on a snapshot of the datastore, for a sentence.
    fn holds(self, name: &str) -> String {
        let holds = self
            .named(name)
            .map_or_else(Vec::new, |(_, record)| record.holds.clone());
        let holds: Vec<String> = holds
            .iter()
            .map(|hold| format!("{:?}", hold.as_str()))
            .collect();
        holds.join(", ")
    }

    /// Why no snapshot was made in a state. Nothing was done.
    fn busy(self, state: State) -> CommandFailure {
        let datastore = self.engine.name();
        match state {
            State::Synced | State::OutOfSync | State::Unmirrored => CommandFailure::new(
                format!(
                    "changes that had begun before were not over after {SNAPSHOT_WAIT_MS} ms: no snapshot was made"
                ),
                "try again; if that does not help, see in `lockstep status` whether a disk or the network is slow",
            ),
            State::ResyncNamespace
            | State::ResyncTail
            | State::ResyncContent
            | State::EnteringSync => CommandFailure::new(
                "the other node is being brought up to date, and its copy shows no moment: no snapshot was made",
                format!("try again after `lockstep wait {datastore} --in-sync`"),
            ),
            _ => CommandFailure::new(
                format!("this node is {}: no snapshot was made", state.describe()),
                format!("see `lockstep why {datastore}`, then try again"),
            ),
        }
    }
}

/// The operation that makes a snapshot.
pub(super) const fn creation(name: SnapshotName, kind: SnapshotKind) -> MetaRequest {
    MetaRequest::SnapshotCreate {
        name,
        kind,
        // Known once the operation has its number.
        inos_below: 0,
    }
}

/// Whether a snapshot can be made in a state.
pub(super) const fn may_begin(state: State) -> bool {
    matches!(state, State::Synced | State::OutOfSync | State::Unmirrored)
}

/// Checks the name of a new snapshot of the datastore.
fn checked(name: &str) -> Result<SnapshotName, CommandFailure> {
    if FallbackAccess::names(name) {
        return Err(CommandFailure::new(
            format!("{name:?} is a name for the snapshots that a node makes of its own copy"),
            "choose a name other than `fallback`, and one that does not begin with `lost-`",
        ));
    }
    if name == ARRIVAL {
        return Err(CommandFailure::new(
            format!(
                "{name:?} is the name of the snapshot that a node makes while it brings snapshots to the other one"
            ),
            "choose another name",
        ));
    }
    SnapshotName::new(name).map_err(|error| {
        CommandFailure::new(
            format!("{name:?} is no name of a snapshot: {error}"),
            "choose another name",
        )
    })
}

fn name_is_taken(name: &str) -> CommandFailure {
    CommandFailure::new(
        format!("the datastore has a snapshot {name:?} already"),
        "choose another name, or rename or delete that snapshot",
    )
}

/// Checks the name of a hold.
fn checked_hold(hold: &str) -> Result<SnapshotName, CommandFailure> {
    SnapshotName::new(hold).map_err(|error| {
        CommandFailure::new(
            format!("{hold:?} is no name of a hold: {error}"),
            "choose another name",
        )
    })
}

fn status(id: SnapshotId, record: &SnapshotRecord) -> SnapshotStatus {
    let kind = match record.kind {
        SnapshotKind::User => "user",
        SnapshotKind::Scheduled => "schedule",
        SnapshotKind::Fallback { .. } => "fallback",
        SnapshotKind::Lost { .. } => "lost",
        SnapshotKind::Arrival => "arrival",
    };
    let state = match record.bytes {
        _ if record.is_deleted => "deleting",
        SnapshotBytes::Unsettled => "unsettled",
        SnapshotBytes::Settled => "settled",
        SnapshotBytes::Torn => "torn",
        SnapshotBytes::Missing => "missing",
    };
    SnapshotStatus {
        name: record.name.clone(),
        osn: id.to_string(),
        time: record.time.utc(),
        kind: kind.to_owned(),
        state: state.to_owned(),
        local: id.is_local(),
        holds: record.holds.iter().map(ToString::to_string).collect(),
        alone_bytes: None,
        alone_records: None,
    }
}

/// The work of a node for its snapshots that takes long: to settle new ones, and to free what deleted ones alone have seen.
#[derive(Default)]
pub(crate) struct SnapshotUpkeep(SingleJob);

impl SnapshotUpkeep {
    /// Begins the work on another thread, if there is any and none runs.
    pub fn begin(&self, engine: &Arc<Engine>) {
        if !SnapshotAccess::of(&engine.store).has_work() {
            return;
        }
        let Some(run) = self.0.begin() else {
            return;
        };
        let engine = Arc::clone(engine);
        let host = Arc::clone(&engine.host);
        host.spawn(Box::new(move || {
            let datastore = engine.name();
            let snapshots = SnapshotAccess::of(&engine.store);
            if let Err(error) = snapshots.settle() {
                tracing::warn!(datastore, %error, "a loss of power may still tear a snapshot");
            }
            let goes_on = || !engine.is_stopping() && !engine.poison.has_failed();
            if let Err(error) = snapshots.go_on_deleting(&goes_on) {
                tracing::warn!(datastore, %error, "the space of a deleted snapshot is not all free yet");
            }
            drop(run);
        }));
    }
}
