//! `lockstep failover`: gives the role of the primary to the other node, without an error for any program.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::{AddressDeparture, RoleReport};
use lockstepfs::control::RoleCommand;

use crate::cli::operate::role_change::RoleChangeArgs;
use crate::cli::terminal::duration;

/// Let the other node serve, while both run
///
/// Run this command on the primary, while the nodes are in sync: to restart a server, for example. Requests of
/// programs wait for some milliseconds, those under way end with their answers, and then the other node serves. No
/// resync follows. This node becomes the secondary: a program that goes on here gets EROFS (`standby` in the
/// configuration). So stop the programs before, and start them on the other server. A file that is removed and still open
/// on this server is freed: its descriptors end with ESTALE, also after the way back.
///
/// Before, the command compares both nodes by the sums of their files, for 3 s at most, while programs go on. If the copies differ, the
/// role stays, and the command names the first difference. A comparison that is not over by then, or that the other node does not
/// answer, holds nothing up: the command says that nothing is proved.
///
/// If keepalived has a cluster address on this server (`lockstep keepalived-config`), the address leaves first: the command
/// waits for that, for 5 s at most.
///
/// If the primary is dead, run `lockstep promote` on the other node instead.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FailoverArgs {
    #[command(flatten)]
    change: RoleChangeArgs,

    /// Go on although the copies of both nodes differ: programs find the other node's data then
    #[arg(long)]
    despite_differences: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep failover data
  lockstep failover data --json --control /run/lockstep/a.sock

Exit codes: 0 the other node serves; 2 could not: see the reason.";

pub(crate) fn run(args: &FailoverArgs) -> Result<ExitCode> {
    let accepts_differences = args.despite_differences;
    let change = RoleCommand::HandOver {
        accepts_differences,
    };
    args.change.run(change, rest)
}

fn rest(report: &RoleReport) -> String {
    let pause = duration(Duration::from_millis(report.pause_ms));
    let address = departure(report);
    let unproved = unproved(report);
    format!("the other node serves; requests waited {pause}{address}{unproved}")
}

/// Why the copies were not proved to be the same, for people; empty if they were.
pub(in crate::cli) fn unproved(report: &RoleReport) -> String {
    report.unproved.as_ref().map_or_else(String::new, |why| {
        format!("; THE COPIES WERE NOT PROVED TO BE THE SAME: {why}")
    })
}

/// How the cluster address left, for people; empty if no cluster address was on this server.
pub(in crate::cli) fn departure(report: &RoleReport) -> String {
    let Some(AddressDeparture { left, waited_ms }) = report.address else {
        return String::new();
    };
    let waited = duration(Duration::from_millis(waited_ms));
    if left {
        format!("; the cluster address had left before, within {waited}")
    } else {
        format!(
            "; THE CLUSTER ADDRESS HAD NOT LEFT after {waited}: see the log of keepalived on this server"
        )
    }
}
