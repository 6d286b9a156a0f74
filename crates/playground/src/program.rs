//! The commands of the `lockstep` program that the playground and the demo run, and the parts of their JSON output
//! that they read.
//!
//! Each command runs in a process group of its own, so that Ctrl-C in a terminal reaches only the process that
//! started the command.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lockstep_types::Role;
use serde::Deserialize;

use crate::config::DATASTORE;

/// Exit codes that mean that a command was carried out: 0 for yes, 1 for no.
const ANSWERS: [i32; 2] = [0, 1];

/// The state of the playground's datastore, as `lockstep status --json` prints it.
#[derive(Debug, Deserialize)]
pub(crate) struct StatusAnswer {
    /// The state in words.
    pub(crate) state: String,
    /// Whether both nodes hold every acknowledged operation.
    pub(crate) in_sync: bool,
    /// Why the nodes are not in sync, where the node gives a reason.
    pub(crate) reason: Option<String>,
    /// Whether the store is open and, on the primary, mounted.
    pub(crate) started: bool,
    /// The other node; `None` for an unmirrored datastore.
    pub(crate) peer: Option<serde_json::Value>,
    pub(crate) role: Role,
    /// How often the primary has changed, from 1.
    pub(crate) generation: u64,
    /// The witness; `None` without one.
    pub(crate) witness: Option<ProtectionAnswer>,
    /// Whether a resync has begun to change the copy, and has not ended.
    pub(crate) mixed: bool,
    resync: Option<ResyncAnswer>,
}

impl StatusAnswer {
    /// Bytes that the resync under way has sent; zero without one.
    pub(crate) fn resynced_bytes(&self) -> u64 {
        self.resync.as_ref().map_or(0, |resync| resync.bytes_sent)
    }

    /// Whether the other node takes over if this one dies.
    pub(crate) fn is_protected(&self) -> bool {
        self.witness
            .as_ref()
            .is_some_and(|witness| witness.protects)
    }
}

/// The knowledge that a node has of its witness.
#[derive(Debug, Deserialize)]
pub(crate) struct ProtectionAnswer {
    protects: bool,
}

/// The progress of a resync.
#[derive(Debug, Deserialize)]
struct ResyncAnswer {
    bytes_sent: u64,
}

#[derive(Debug, Deserialize)]
struct NodeAnswer {
    datastores: Vec<StatusAnswer>,
}

/// The outcome of a comparison, as `lockstep verify --json` prints it.
#[derive(Debug, Deserialize)]
pub(crate) struct VerifyAnswer {
    pub(crate) identical: bool,
    pub(crate) inodes_compared: u64,
    pub(crate) bytes_compared: u64,
    pub(crate) differences_total: u64,
    pub(crate) healed_total: u64,
    /// The first differences.
    pub(crate) differences: Vec<serde_json::Value>,
}

/// The snapshots of a node, as `lockstep snapshot list --json` prints them.
#[derive(Debug, Deserialize)]
struct SnapshotsAnswer {
    snapshots: Vec<SnapshotAnswer>,
}

#[derive(Debug, Deserialize)]
struct SnapshotAnswer {
    name: String,
    state: String,
}

/// The file of the `lockstep` program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
}

impl Program {
    /// The program that this process runs.
    pub(crate) fn of_this_process() -> Result<Self> {
        let path = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(Self { path })
    }

    /// The program in this file.
    pub(crate) fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the store of the node with this configuration, unless it has one.
    pub(crate) fn create_store(&self, config: &Path) -> Result<()> {
        let arguments = ["create-store", DATASTORE, "--config"];
        self.run(&arguments, config, &ANSWERS).map(drop)
    }

    /// Asks the node at this control socket for the state of the datastore.
    pub(crate) fn status(&self, control: &Path) -> Result<StatusAnswer> {
        let arguments = ["status", DATASTORE, "--json", "--control"];
        let output = self.run(&arguments, control, &ANSWERS)?;
        let answer: NodeAnswer =
            serde_json::from_slice(&output).context("cannot read the output of status")?;
        let mut datastores = answer.datastores.into_iter();
        datastores.next().context("the node has no datastore")
    }

    /// The text of the row of this name in the output of `lockstep status` for people.
    pub(crate) fn status_row(&self, row: &str, control: &Path) -> Result<String> {
        let output = self.run(&["status", DATASTORE, "--control"], control, &ANSWERS)?;
        let text = String::from_utf8_lossy(&output);
        let mut rows = text.lines().map(str::trim_start);
        let found = rows.find_map(|line| line.strip_prefix(row));
        let found = found.with_context(|| format!("the status has no row {row}:\n{text}"))?;
        Ok(found.trim().to_owned())
    }

    /// Has the node at this control socket serve its copy, whatever that lacks.
    pub(crate) fn promote_by_force(&self, control: &Path) -> Result<()> {
        let arguments = ["promote", DATASTORE, "--force-data-loss", "--control"];
        self.run(&arguments, control, &[0]).map(drop)
    }

    /// Has the node at this control socket give up its role.
    pub(crate) fn demote(&self, control: &Path) -> Result<()> {
        let arguments = ["demote", DATASTORE, "--control"];
        self.run(&arguments, control, &[0]).map(drop)
    }

    /// Compares both nodes.
    pub(crate) fn verify(&self, control: &Path) -> Result<VerifyAnswer> {
        self.compare(&["verify", DATASTORE, "--json", "--control"], control)
    }

    /// Compares the disks of both nodes, and heals what differs.
    pub(crate) fn repair(&self, control: &Path) -> Result<VerifyAnswer> {
        let options = ["--deep", "--repair", "--json", "--control"];
        self.compare(
            &[["verify", DATASTORE].as_slice(), &options].concat(),
            control,
        )
    }

    fn compare(&self, arguments: &[&str], control: &Path) -> Result<VerifyAnswer> {
        let output = self.run(arguments, control, &ANSWERS)?;
        serde_json::from_slice(&output).context("cannot read the output of verify")
    }

    /// Carries out a command about a snapshot: its verb and its arguments.
    pub(crate) fn snapshot(&self, command: &[&str], control: &Path) -> Result<()> {
        let arguments = [&["snapshot"], command, &["--control"]].concat();
        self.run(&arguments, control, &[0]).map(drop)
    }

    /// The names of the snapshots that are not deleted.
    pub(crate) fn snapshots(&self, control: &Path) -> Result<Vec<String>> {
        let arguments = ["snapshot", "list", DATASTORE, "--json", "--control"];
        let output = self.run(&arguments, control, &[0])?;
        let answer: SnapshotsAnswer =
            serde_json::from_slice(&output).context("cannot read the list of snapshots")?;
        let all = answer.snapshots.into_iter();
        let there = all.filter(|snapshot| snapshot.state != "deleting");
        Ok(there.map(|snapshot| snapshot.name).collect())
    }

    /// Exports the store of the stopped node with this configuration, complete, into `dest`.
    pub(crate) fn export(&self, dest: &Path, config: &Path) -> Result<()> {
        let arguments = [
            OsStr::new("export"),
            DATASTORE.as_ref(),
            dest.as_ref(),
            "--config".as_ref(),
        ];
        self.run(&arguments, config, &[0]).map(drop)
    }

    /// Runs `lockstep init` with these arguments, of which the last one takes `dir`.
    pub(crate) fn init(&self, arguments: &[OsString], dir: &Path) -> Result<()> {
        self.run(arguments, dir, &[0]).map(drop)
    }

    /// Whether the node at this control socket serves the datastore. The answer is held until it changes, but at most
    /// for `hold`. A node that does not run is told at once.
    pub(crate) fn health(&self, control: &Path, hold: Duration) -> Result<ServingAnswer> {
        let hold = hold.as_millis().to_string();
        let arguments = ["health", DATASTORE, "--hold-ms", &hold, "--control"];
        let output = self.output(&arguments, control)?;
        Ok(match output.status.code() {
            Some(0) => ServingAnswer::Serves,
            Some(1) => ServingAnswer::ServesNot,
            _ => ServingAnswer::Silent,
        })
    }

    /// Runs a command and returns its standard output; an error with its standard error if the exit code is not
    /// one of `answers`.
    fn run(
        &self,
        arguments: &[impl AsRef<OsStr>],
        last: &Path,
        answers: &[i32],
    ) -> Result<Vec<u8>> {
        let output = self.output(arguments, last)?;
        let code = output.status.code();
        if code.is_some_and(|code| answers.contains(&code)) {
            return Ok(output.stdout);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let errors = errors.trim_end().trim_start_matches("error: ");
        let name = arguments.first().map(OsString::from).unwrap_or_default();
        bail!("lockstep {} failed: {errors}", name.display())
    }

    fn output(&self, arguments: &[impl AsRef<OsStr>], last: &Path) -> Result<Output> {
        let mut command = Command::new(&self.path);
        command.args(arguments).arg(last).process_group(0);
        let program = self.path.display();
        command
            .output()
            .with_context(|| format!("cannot run {program}"))
    }
}

/// The answer of `lockstep health`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServingAnswer {
    Serves,
    ServesNot,
    /// The node could not be asked.
    Silent,
}
