//! `lockstep snapshot`: makes, lists, renames, deletes, holds and compares snapshots, and brings files back to one.

mod diff;
mod rollback;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use lockstep_driver::report::{SnapshotCommand, SnapshotStatus};
use lockstepfs::control::ControlClient;

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::terminal::{self, say, say_json};

/// Make, list, rename, delete, hold and compare snapshots of a datastore, and bring files back
///
/// A snapshot shows all files of a datastore as they were at one moment, the same on both servers. Making one takes the same time for
/// ten files and for ten million; programs wait for a moment, until the changes that have begun are over. From then on each first
/// change of a block keeps the old one.
///
/// Ask the primary; `list` and `diff` answer on both nodes, each for its own copy.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    action: SnapshotAction,
}

#[derive(Debug, Subcommand)]
enum SnapshotAction {
    /// Make a snapshot of this moment, on both nodes
    Create(CreateArgs),
    /// List the snapshots of this node, the oldest first
    List(ListArgs),
    /// Give a snapshot another name, on both nodes
    Rename(RenameArgs),
    /// Delete a snapshot on both nodes; its space is freed in the background
    Delete(DeleteArgs),
    Diff(diff::DiffArgs),
    Rollback(rollback::RollbackArgs),
    /// Put a hold on a snapshot, on both nodes: while it has one, nothing deletes it
    Hold(SnapshotHoldArgs),
    /// Take a hold off a snapshot, on both nodes
    Release(SnapshotHoldArgs),
}

/// The datastore, and the form of the output.
#[derive(Debug, Args)]
struct TargetArgs {
    /// Name of the datastore
    datastore: String,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Print the list of snapshots afterwards as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Also show about how much only each snapshot takes, which its deletion gives back: reads the index of kept blocks
    #[arg(long)]
    space: bool,
}

#[derive(Debug, Args)]
struct CreateArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Name of the snapshot: up to 128 bytes, without a slash
    name: String,

    /// Do not run the commands `snapshot_hooks` of the configuration before and after it
    #[arg(long)]
    no_hooks: bool,
}

#[derive(Debug, Args)]
struct RenameArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Name of the snapshot
    name: String,

    /// Its new name
    to: String,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Name of the snapshot
    name: String,
}

#[derive(Debug, Args)]
struct SnapshotHoldArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Name of the snapshot
    name: String,

    /// Name of the hold, for instance of the program that needs the snapshot: up to 128 bytes, without a slash
    hold: String,
}

const EXAMPLES: &str = "\
Examples:
  lockstep snapshot create data before-upgrade
  lockstep snapshot list data
  lockstep snapshot list data --space
  lockstep snapshot rename data before-upgrade known-good
  lockstep snapshot delete data known-good
  lockstep snapshot diff data monday tuesday
  lockstep snapshot rollback data known-good
  lockstep snapshot hold data before-upgrade backup
  lockstep snapshot release data before-upgrade backup

States in the list: `settled`: its bytes are on stable storage of this node. `unsettled`: some may be in memory only, for a few
seconds after it was made. `torn`: this machine has lost its power before that, so files may show bytes of an earlier moment; the
other node may have it whole. `missing`: it was made on the other node alone, and arrives once the nodes are in sync. `deleting`: its space is being freed.

Exit codes: 0 done; 2 could not be done, or a command of `snapshot_hooks` has failed: the message says whether there is a snapshot.";

pub(crate) fn run(args: &SnapshotArgs) -> Result<ExitCode> {
    let (target, command, done) = match &args.action {
        SnapshotAction::Diff(diff) => return diff::run(diff),
        SnapshotAction::Rollback(rollback) => return rollback::run(rollback),
        SnapshotAction::List(list) if list.space => {
            (&list.target, SnapshotCommand::ListSpace, None)
        }
        SnapshotAction::List(list) => (&list.target, SnapshotCommand::List, None),
        SnapshotAction::Create(create) => {
            let name = create.name.clone();
            let done = format!("made {name}\n");
            let hooks = !create.no_hooks;
            let command = SnapshotCommand::Create { name, hooks };
            (&create.target, command, Some(done))
        }
        SnapshotAction::Rename(rename) => {
            let (name, to) = (rename.name.clone(), rename.to.clone());
            let done = format!("renamed {name} to {to}\n");
            let command = SnapshotCommand::Rename { name, to };
            (&rename.target, command, Some(done))
        }
        SnapshotAction::Delete(delete) => {
            let name = delete.name.clone();
            let done = format!("deleted {name}; its space is being freed\n");
            (&delete.target, SnapshotCommand::Delete { name }, Some(done))
        }
        SnapshotAction::Hold(args) => {
            let (name, hold) = (args.name.clone(), args.hold.clone());
            let done = format!("{hold} holds {name}\n");
            let command = SnapshotCommand::Hold { name, hold };
            (&args.target, command, Some(done))
        }
        SnapshotAction::Release(args) => {
            let (name, hold) = (args.name.clone(), args.hold.clone());
            let done = format!("{hold} holds {name} no more\n");
            let command = SnapshotCommand::Release { name, hold };
            (&args.target, command, Some(done))
        }
    };
    let mut client = ControlClient::connect(&target.node.socket()?)?;
    let snapshots = client.snapshots(&target.datastore, &command)?;
    if target.json {
        say_json(&serde_json::json!({ "snapshots": snapshots }))?;
    } else {
        say(&done.unwrap_or_else(|| table(&snapshots)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One line for each snapshot.
fn table(snapshots: &[SnapshotStatus]) -> String {
    if snapshots.is_empty() {
        return "no snapshots\n".to_owned();
    }
    let line = |snapshot: &SnapshotStatus| {
        let SnapshotStatus {
            name,
            osn,
            time,
            kind,
            state,
            local,
            holds,
            alone_bytes,
            alone_records,
        } = snapshot;
        let place = if *local { ", this node only" } else { "" };
        let held = if holds.is_empty() {
            String::new()
        } else {
            format!(", held by {}", holds.join(", "))
        };
        let alone = match (alone_bytes, alone_records) {
            (Some(bytes), Some(records)) => {
                let bytes = terminal::bytes(*bytes);
                format!(", alone about {bytes} and {records} records")
            }
            _ => String::new(),
        };
        format!("{time}  {state:<9}  {name}  (operation {osn}, {kind}{place}{held}{alone})\n")
    };
    snapshots.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_line_for_each_snapshot() {
        let snapshot = SnapshotStatus {
            name: "before upgrade".to_owned(),
            osn: "1.42".to_owned(),
            time: "2026-11-30T12:00:00Z".to_owned(),
            kind: "user".to_owned(),
            state: "torn".to_owned(),
            local: false,
            holds: vec!["backup".to_owned(), "me".to_owned()],
            alone_bytes: Some(3 << 20),
            alone_records: Some(12),
        };
        let local = SnapshotStatus {
            local: true,
            holds: Vec::new(),
            alone_bytes: None,
            ..snapshot.clone()
        };
        assert_eq!(table(&[]), "no snapshots\n");
        assert_eq!(
            table(&[snapshot, local]),
            "2026-11-30T12:00:00Z  torn       before upgrade  (operation 1.42, user, held by backup, me, alone about 3.00 MiB and 12 records)\n\
             2026-11-30T12:00:00Z  torn       before upgrade  (operation 1.42, user, this node only)\n"
        );
    }
}
