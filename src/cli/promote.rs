//! `lockstep promote`: makes this node the primary when the other node is dead or cut off.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::RoleReport;
use lockstepfs::control::RoleChange;

use super::role_change::RoleChangeArgs;

/// Let this node serve, when the primary is dead
///
/// Run this command on the node that is to serve, only when the primary is dead or cut off from all its programs.
/// You vouch that the other node does not serve. If it does serve, both nodes serve different data, and the
/// changes of one of them are lost later. So first switch that server off, or stop its node.
///
/// With a witness this is rarely needed: the node takes over by itself once the witness answers. So bring a witness that is
/// away back rather than promote. With a witness the node is promoted with --force-data-loss only. A promotion with --force-data-loss tells the witness that only this node serves, so that the other
/// node cannot take over. If the witness gives no answer, the command says so: then keep the other node off until
/// `lockstep status` says that the witness answers.
///
/// The same command makes a primary serve that waits for its peer (`undecided` in `lockstep status`) since its
/// start.
///
/// The node refuses while it is connected with a primary: run `lockstep failover` there. It also refuses a copy
/// that may lack acknowledged operations. When the old primary comes back, it becomes the secondary by itself
/// and is resynced.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PromoteArgs {
    #[command(flatten)]
    change: RoleChangeArgs,

    /// Serve also from a copy that may lack acknowledged operations: they are lost
    #[arg(long)]
    force_data_loss: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep promote data
  lockstep promote data --force-data-loss     the only copy that is left is not complete

Exit codes: 0 this node serves; 2 could not: see the reason.";

pub(crate) fn run(args: &PromoteArgs) -> Result<ExitCode> {
    let accepts_loss = args.force_data_loss;
    args.change.run(RoleChange::Promote { accepts_loss }, rest)
}

fn rest(report: &RoleReport) -> String {
    if report.witness_unaware {
        "it serves; the witness does NOT know that: keep the other node from serving until `lockstep status` says that the \
         witness answers"
            .to_owned()
    } else {
        "it serves; keep the other node from serving".to_owned()
    }
}
