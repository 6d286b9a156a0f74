//! `lockstep wait`: waits until a node serves its datastores, or until they are in sync.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use lockstep_driver::report::DatastoreStatus;
use lockstepfs::control::{ControlClient, ControlError, NodeStatus};

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::outcome::NO;
use crate::cli::terminal::warn;

/// Pause between two status requests.
const INTERVAL: Duration = Duration::from_millis(100);

/// Wait until a node is ready, or in sync
///
/// A node is ready when every datastore runs: its store is open and mounted. The node itself may start later than
/// this command. A node that is ready may still be the secondary, or wait for its peer: see `lockstep status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WaitArgs {
    /// Only this datastore
    name: Option<String>,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Wait until every mirrored datastore is in sync, too
    #[arg(long)]
    in_sync: bool,

    /// Longest wait, in seconds
    #[arg(long, value_name = "S", default_value_t = 60)]
    timeout: u64,
}

const EXAMPLES: &str = "\
Examples:
  lockstep wait                              until everything is mounted
  lockstep wait data --in-sync --timeout 600

Exit codes: 0 ready, or in sync; 1 not yet, and the time is over; 2 could not ask.";

pub(crate) fn run(args: &WaitArgs) -> Result<ExitCode> {
    let socket = args.node.socket()?;
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    loop {
        let answer = ControlClient::connect(&socket).and_then(|mut client| client.status());
        let missing = match answer {
            Ok(status) => missing(args, &status)?,
            Err(error @ ControlError::Unreachable { .. }) => vec![error.to_string()],
            Err(error) => return Err(error.into()),
        };
        if missing.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        if Instant::now() >= deadline {
            warn(&missing.join("\n"));
            return Ok(ExitCode::from(NO));
        }
        sleep(INTERVAL);
    }
}

/// Returns a line for each datastore that is not ready, or not in sync.
fn missing(args: &WaitArgs, status: &NodeStatus) -> Result<Vec<String>> {
    let is_selected =
        |store: &&DatastoreStatus| args.name.as_ref().is_none_or(|n| *n == store.settings.name);
    let selected: Vec<_> = status.datastores.iter().filter(is_selected).collect();
    if selected.is_empty() {
        let names: Vec<_> = status
            .datastores
            .iter()
            .map(|store| &*store.settings.name)
            .collect();
        bail!(
            "node {:?} has no datastore {:?}\n  cure: name one of: {}",
            status.node,
            args.name.as_deref().unwrap_or_default(),
            names.join(", ")
        );
    }
    let is_missing = |store: &&DatastoreStatus| {
        !store.sync.started || args.in_sync && !(store.sync.in_sync || store.peer.is_none())
    };
    let line = |store: &DatastoreStatus| {
        let reason = store
            .sync
            .reason
            .as_deref()
            .map(|reason| format!(": {reason}"));
        format!(
            "{}: {}{}",
            store.settings.name,
            store.sync.state,
            reason.unwrap_or_default()
        )
    };
    Ok(selected.into_iter().filter(is_missing).map(line).collect())
}
