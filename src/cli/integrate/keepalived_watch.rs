//! `lockstep keepalived-watch`: restarts a keepalived that hangs. A service of this server runs the command all the time.
//!
//! keepalived asks the node once a second (`lockstep health`). One that has asked, and asks no more, moves no address: the address is
//! on no server, or on both. A keepalived that is suspended may not end by a signal that asks for its end, so it is killed. It leaves
//! its address behind then, and the next keepalived removes that.
//!
//! Invariants:
//! - A keepalived that an administrator has stopped is left alone: systemd knows that.
//! - One restart for each silence, if it succeeds. A restart takes the address off for a moment, and one that has not helped does not help the next
//!   time.
//! - A node that does not answer says nothing about keepalived.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_driver::report::DatastoreStatus;
use lockstepfs::control::ControlClient;

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::inspect::status::{self, cluster_text};
use crate::cli::integrate::ganesha_follow::{SHORT_LIMIT, SYSTEMCTL, finish, log};
use crate::cli::outcome::chain;
use crate::cli::terminal::say;

/// The unit of Debian's package keepalived.
const UNIT: &str = "keepalived.service";
/// The longest wait for the start of keepalived.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The longest wait for the answer of the node.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Restart a keepalived that hangs
///
/// Runs until it is ended: as a service of each server with a cluster address (`lockstep keepalived-config`). A keepalived that has
/// asked the node, and has not asked for 20 s, is killed and started anew, if systemd says that it is to run. The outcome goes to the
/// system's log, with the tag `lockstep`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeepalivedWatchArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Program that is run with `restart`, instead of `systemctl kill` and `systemctl restart` of keepalived
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep keepalived-watch data

Exit codes: 2 it could not begin: see the reason.";

pub(crate) fn run(args: &KeepalivedWatchArgs) -> Result<ExitCode> {
    let socket = args.node.socket()?;
    let mut watch = Watch::default();
    loop {
        // A node that does not answer, or does not run, is no matter of this command.
        if let Ok(store) = ask(&socket, &args.name)
            && watch.is_due(&store)
        {
            let done = restart(args.program.as_deref());
            let name = &args.name;
            let text = match done {
                Ok(done) => format!("{name}: keepalived has not asked for long: {done}"),
                Err(error) => {
                    watch.has_restarted = false;
                    format!("{name}: keepalived hangs: error: {}", chain(&error))
                }
            };
            log(&text);
            say(&format!("{text}\n"))?;
        }
        sleep(LOOK_INTERVAL);
    }
}

fn ask(socket: &Path, name: &str) -> Result<DatastoreStatus> {
    let mut client = ControlClient::connect_within(socket, ANSWER_LIMIT)?;
    Ok(status::of_datastore(&mut client, name)?.1)
}

/// Whether this silence of keepalived has had its restart.
#[derive(Debug, Default)]
struct Watch {
    has_restarted: bool,
}

impl Watch {
    /// Whether keepalived is to be restarted now.
    fn is_due(&mut self, store: &DatastoreStatus) -> bool {
        let hangs = cluster_text::keepalived_hangs(store);
        let is_due = hangs && !self.has_restarted;
        self.has_restarted = hangs;
        is_due
    }
}

/// Restarts keepalived. Returns what was done.
fn restart(program: Option<&Path>) -> Result<&'static str> {
    const DONE: &str = "it has started anew";
    if let Some(program) = program {
        finish(Command::new(program).arg("restart"), START_LIMIT)?;
        return Ok(DONE);
    }
    let systemctl =
        |verb: &[&str], limit| finish(Command::new(SYSTEMCTL).args(verb).arg(UNIT), limit);
    if systemctl(&["is-active", "--quiet"], SHORT_LIMIT).is_err() {
        return Ok("it is not to run, and is left alone");
    }
    systemctl(&["kill", "--signal=SIGKILL"], SHORT_LIMIT).context("keepalived cannot be killed")?;
    // A unit that has failed too often would not start again for a while.
    let _ = systemctl(&["reset-failed"], SHORT_LIMIT);
    systemctl(&["restart"], START_LIMIT).context("keepalived does not start")?;
    Ok(DONE)
}

#[cfg(test)]
mod tests {
    use lockstep_driver::report::ClusterStatus;

    use super::*;
    use crate::cli::inspect::status::tests::store;

    #[test]
    fn each_silence_has_one_restart() {
        let mut watch = Watch::default();
        let mut asked = |asked_ms| {
            let mut store = store(true, true);
            store.sync.cluster = Some(ClusterStatus {
                address: "10.0.0.10".to_owned(),
                here: true,
                moved_ms: 3_600_000,
                asked_ms,
                nfs_silent_ms: None,
            });
            watch.is_due(&store)
        };
        assert!(!asked(900) && !asked(19_999));
        assert!(asked(20_000));
        assert!(!asked(21_000) && !asked(3_600_000), "it did not help");
        assert!(!asked(10), "it asks again");
        assert!(asked(25_000));
        assert!(!watch.is_due(&store(true, true)), "nothing asks this node");
    }
}
