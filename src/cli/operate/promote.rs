//! `lockstep promote`: makes this node the primary when the other node is dead or cut off.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::RoleReport;
use lockstepfs::control::RoleCommand;

use crate::cli::operate::role_change::RoleChangeArgs;

/// Let this node serve without the other node, when that one is dead
///
/// Run this command on the node that is to serve, only when the other node is dead or cut off from all its programs.
/// You vouch that the other node does not serve. If it does serve, both nodes serve different data, and the
/// changes of one of them are lost later. So first switch that server off, or stop its node.
///
/// The command makes a secondary the primary. It also makes a primary serve that waits for its peer since its start
/// (`undecided` in `lockstep status`). When the other node comes back, it becomes the secondary by itself and is made
/// equal to this node.
///
/// Without --force-data-loss this copy must have every change that was acknowledged up to the loss of the connection.
/// The node refuses if its copy may lack one (`out of sync`, or its machine has lost power), and if the datastore has
/// a witness, which decides in place of you. Changes that the other node has acknowledged alone since are lost: the
/// command, and `lockstep status` before it, say when this copy was last in sync.
///
/// The node always refuses while it is connected with a primary: run `lockstep failover` there.
///
/// Use --force-data-loss only if the other node is lost for good, or the witness is lost and cannot be brought back.
/// It lets this node serve its copy as it is: acknowledged changes that this copy lacks are lost, also if the other
/// node has them. A copy that a resync has changed in part first goes back to its state from before the resync (see
/// `fallback` in `lockstep status`); that may take as long as the resync has taken so far. It also overrides the witness, for a primary, too, that waits for the answer of a lost witness. The
/// witness is told that only this node serves, so that the other node cannot take over. If the witness gives no
/// answer, the command says so: then keep the other node off until `lockstep status` says that the witness answers.
/// With a witness that answers, the other node takes over by itself, and nothing is to be forced.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PromoteArgs {
    #[command(flatten)]
    change: RoleChangeArgs,

    /// Serve also from a copy that may lack acknowledged changes, which are lost then, and also past the witness
    #[arg(long)]
    force_data_loss: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep promote data
  lockstep promote data --force-data-loss     the copy here is all that is left, or the witness is lost

Exit codes: 0 this node serves; 2 could not: see the reason.";

pub(crate) fn run(args: &PromoteArgs) -> Result<ExitCode> {
    let accepts_loss = args.force_data_loss;
    args.change.run(RoleCommand::Promote { accepts_loss }, rest)
}

fn rest(report: &RoleReport) -> String {
    let copy = report.as_of.as_ref();
    let copy = copy.map_or_else(String::new, |moment| {
        format!("its copy was last in sync at {moment}, and lacks what the other node has acknowledged alone since; ")
    });
    format!("{copy}{}", duty(report))
}

/// The next step of the operator.
const fn duty(report: &RoleReport) -> &'static str {
    if report.witness_unaware {
        "it serves; the witness does NOT know that: keep the other node from serving until `lockstep status` says that the \
         witness answers"
    } else {
        "it serves; keep the other node from serving"
    }
}
