//! `lockstep wait`: waits until a node serves its datastores, or until they are in sync.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use lockstep_driver::report::{DatastoreStatus, ResyncPhase, ResyncStatus};
use lockstepfs::control::{ControlClient, ControlError, NodeStatus};

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::inspect::status::resync_text;
use crate::cli::outcome::NO;
use crate::cli::terminal::{LiveLines, warn};

/// Pause between two status requests.
const INTERVAL: Duration = Duration::from_millis(100);
/// Without a terminal, time between two lines about the same step of a resync.
const SAME_STEP: Duration = Duration::from_secs(30);

/// Wait until a node is ready, or in sync
///
/// A node is ready when every datastore runs: its store is open and mounted. The node itself may start later than
/// this command. A node that is ready may still be the secondary, or wait for its peer: see `lockstep status`.
/// While a resync runs, this command shows its progress, on either node: as a bar on a terminal, otherwise as a line for each
/// phase, and one every 30 s.
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
    let mut progress = Progress::new();
    loop {
        let answer = ControlClient::connect(&socket).and_then(|mut client| client.status());
        let missing = match answer {
            Ok(status) => missing(args, &status)?,
            Err(error @ ControlError::Unreachable { .. }) => vec![Missing::node(&error)],
            Err(error) => return Err(error.into()),
        };
        if missing.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        if Instant::now() >= deadline {
            drop(progress);
            let lines: Vec<_> = missing.iter().map(Missing::line).collect();
            warn(&lines.join("\n"));
            return Ok(ExitCode::from(NO));
        }
        progress.show(&missing);
        sleep(INTERVAL);
    }
}

/// A datastore that is not ready, or not in sync; or a node that does not answer.
struct Missing {
    /// Name of the datastore; nothing for a node.
    name: String,
    /// The trouble, in words.
    trouble: String,
    resync: Option<ResyncStatus>,
}

impl Missing {
    fn node(error: &ControlError) -> Self {
        Self {
            name: String::new(),
            trouble: error.to_string(),
            resync: None,
        }
    }

    fn datastore(store: &DatastoreStatus) -> Self {
        let (name, state) = (&store.settings.name, &store.sync.state);
        let reason = store.sync.reason.as_deref();
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        Self {
            name: name.clone(),
            trouble: format!("{name}: {state}{reason}"),
            resync: store.resync,
        }
    }

    fn line(&self) -> String {
        let row = self.resync.as_ref().map(resync_text::row);
        row.map_or_else(
            || self.trouble.clone(),
            |row| format!("{}\n  {row}", self.trouble),
        )
    }

    /// The line on a terminal.
    fn live_line(&self) -> String {
        match &self.resync {
            Some(resync) => resync_text::bar(&self.name, resync),
            None => self.trouble.lines().next().unwrap_or_default().to_owned(),
        }
    }
}

/// A step of a resync: the phase, and whether its totals are known.
type ResyncStep = (ResyncPhase, bool);

/// The progress that is shown during the wait.
struct Progress {
    live: LiveLines,
    /// The steps in the lines without a terminal, by datastore.
    steps: BTreeMap<String, (ResyncStep, Instant)>,
}

impl Progress {
    fn new() -> Self {
        Self {
            live: LiveLines::new(),
            steps: BTreeMap::new(),
        }
    }

    fn show(&mut self, missing: &[Missing]) {
        if self.live.are_visible() {
            let lines: Vec<_> = missing.iter().map(Missing::live_line).collect();
            self.live.show(&lines);
            return;
        }
        for Missing { name, resync, .. } in missing {
            if let Some(resync) = resync
                && self.is_due(name, (resync.phase, resync.bytes_total.is_some()))
            {
                warn(&format!("{name}: {}", resync_text::row(resync)));
            }
        }
    }

    /// Whether a line about a datastore is due, without a terminal.
    fn is_due(&mut self, name: &str, step: ResyncStep) -> bool {
        let shown = self.steps.get(name);
        if shown.is_some_and(|(last, at)| *last == step && at.elapsed() < SAME_STEP) {
            return false;
        }
        self.steps.insert(name.to_owned(), (step, Instant::now()));
        true
    }
}

/// Returns each datastore that is not ready, or not in sync.
fn missing(args: &WaitArgs, status: &NodeStatus) -> Result<Vec<Missing>> {
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
    let missing = selected.into_iter().filter(is_missing);
    Ok(missing.map(Missing::datastore).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_for_each_step_of_each_datastore() {
        let mut progress = Progress::new();
        let (counting, counted) = ((ResyncPhase::Content, false), (ResyncPhase::Content, true));
        let steps = [
            ("one", counting),
            ("one", counting),
            ("other", counting),
            ("one", counted),
            ("one", counted),
        ];
        let due = steps.map(|(name, step)| progress.is_due(name, step));
        assert_eq!(due, [true, false, true, true, false]);
    }
}
