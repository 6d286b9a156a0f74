//! `lockstep drill`: a planned failover to the other node and back, timed, with a report.
//!
//! The commands of roles concern one node each. So the way back is a command of the other node: the operator gives it with
//! `--back`, or runs it there while this command waits.

use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstepfs::config::Role;
use lockstepfs::control::{ControlClient, RoleCommand};

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::inspect::status;
use crate::cli::operate::failover::{departure, unproved};
use crate::cli::outcome::NO;
use crate::cli::terminal::{duration, say, warn};

/// Pause between two status requests.
const POLL: Duration = Duration::from_millis(20);

/// Rehearse a planned failover: to the other node, and back
///
/// Run this command on the primary, while the nodes are in sync. The other node serves in between, so the programs of this
/// node get EROFS until the role is back (`standby` in the configuration): stop them before. A file that is removed and still
/// open here is freed: its descriptors end with ESTALE. The report has the time of each step.
///
/// The way back is `lockstep failover` on the other node: give its command with --back, or run it there when this command
/// says so.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DrillArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Command of a shell that runs `lockstep failover` on the other node
    #[arg(long, value_name = "COMMAND")]
    back: Option<String>,

    /// Longest wait for each step, in seconds
    #[arg(long, value_name = "S", default_value_t = 600)]
    timeout: u64,
}

const EXAMPLES: &str = "\
Examples:
  lockstep drill data --back 'ssh root@10.0.0.2 lockstep failover data'
  lockstep drill data            waits until `lockstep failover data` is run on the other node

Exit codes: 0 there and back, and in sync; 1 a step failed or took too long, or a resync was needed; 2 could
not begin, or could not ask.";

pub(crate) fn run(args: &DrillArgs) -> Result<ExitCode> {
    let mut drill = Drill::begin(args)?;
    let is_complete = drill.go_there()? && drill.come_back()?;
    if drill.saw_resync {
        say("a resync was needed: a planned failover needs none; see the logs of both nodes\n")?;
    }
    Ok(if is_complete && !drill.saw_resync {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    })
}

/// A drill under way.
struct Drill<'a> {
    args: &'a DrillArgs,
    client: ControlClient,
    begin: Instant,
    saw_resync: bool,
}

impl<'a> Drill<'a> {
    /// Checks that this node is the primary in sync.
    fn begin(args: &'a DrillArgs) -> Result<Self> {
        let client = ControlClient::connect(&args.node.socket()?)?;
        let mut drill = Self {
            args,
            client,
            begin: Instant::now(),
            saw_resync: false,
        };
        let store = drill.status()?;
        if store.settings.role != Role::Primary {
            bail!(
                "this node is not the primary of {}\n  cure: run the drill on the primary",
                args.name
            );
        }
        if !store.sync.in_sync {
            bail!(
                "the nodes are not in sync ({})\n  cure: wait until `lockstep status` says in sync, then try again",
                store.sync.state
            );
        }
        let generation = store.work.generation;
        say(&format!(
            "drill of {}: this node is the primary of generation {generation}\n",
            args.name
        ))?;
        Ok(drill)
    }

    /// Lets the other node serve. Returns whether the nodes got in sync.
    fn go_there(&mut self) -> Result<bool> {
        let begin = Instant::now();
        let hand_over = RoleCommand::HandOver {
            accepts_differences: false,
        };
        let report = self.client.change_role(&self.args.name, hand_over)?;
        let (took, pause) = (
            duration(begin.elapsed()),
            duration(Duration::from_millis(report.pause_ms)),
        );
        let (generation, address) = (report.generation, departure(&report));
        let unproved = unproved(&report);
        say(&format!(
            "there     {took}: the other node serves (generation {generation}); requests waited {pause}{address}{unproved}\n"
        ))?;
        self.wait("in sync", |store| {
            store.settings.role == Role::Secondary && store.sync.in_sync
        })
    }

    /// Has the other node give the role back. Returns whether that was in time, and the nodes got in sync.
    fn come_back(&mut self) -> Result<bool> {
        let name = &self.args.name;
        match &self.args.back {
            Some(command) if !runs(command)? => {
                warn(&format!(
                    "the command of --back failed: the other node serves\n  cure: run `lockstep failover {name}` there"
                ));
                return Ok(false);
            }
            Some(_) => {}
            None => warn(&format!(
                "run `lockstep failover {name}` on the other node now"
            )),
        }
        let is_back = self.wait("back", |store| {
            let serves = !matches!(
                store.sync.service,
                ServiceStatus::None | ServiceStatus::Undecided
            );
            store.settings.role == Role::Primary && serves
        })?;
        if !is_back || !self.wait("in sync", |store| store.sync.in_sync)? {
            return Ok(false);
        }
        let generation = self.status()?.work.generation;
        let total = duration(self.begin.elapsed());
        say(&format!(
            "total     {total}: this node is the primary of generation {generation}, in sync\n"
        ))?;
        Ok(true)
    }

    /// Waits until the status is as wanted, and prints the time of that step. Returns whether that was in time.
    fn wait(&mut self, step: &str, is: impl Fn(&DatastoreStatus) -> bool) -> Result<bool> {
        let begin = Instant::now();
        let limit = Duration::from_secs(self.args.timeout);
        loop {
            let store = self.status()?;
            if is(&store) {
                say(&format!("{step:<8}  {}\n", duration(begin.elapsed())))?;
                return Ok(true);
            }
            if begin.elapsed() >= limit {
                warn(&format!(
                    "{step}: not within {} s (now: {})\n  cure: see `lockstep why {}` on both nodes",
                    limit.as_secs(),
                    store.sync.state,
                    self.args.name
                ));
                return Ok(false);
            }
            sleep(POLL);
        }
    }

    /// The status of the datastore. Notes whether the nodes are being resynced.
    fn status(&mut self) -> Result<DatastoreStatus> {
        let (_, store) = status::of_datastore(&mut self.client, &self.args.name)?;
        self.saw_resync |= store.sync.state.starts_with("resyncing");
        Ok(store)
    }
}

/// Runs a command of a shell, with its output on standard error. Returns whether it succeeded.
fn runs(command: &str) -> Result<bool> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(std::io::stderr());
    let status = shell.status().context("cannot run the command of --back")?;
    Ok(status.success())
}
