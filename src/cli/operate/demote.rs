//! `lockstep demote`: makes this primary the secondary, at the cost of the changes that only this node has.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstepfs::control::RoleCommand;

use crate::cli::operate::role_change::RoleChangeArgs;

/// Let the other node keep the role: this primary becomes the secondary
///
/// Run this command on a primary that serves alone, or that waits for its peer (`undecided` in `lockstep
/// status`). It is for two nodes that have both served alone, and therefore refuse to connect. The next resync drops
/// the changes that only this node has, and keeps the copy from before as the snapshot lost-GENERATION if the disk has
/// room: see `lockstep status`, and `lockstep export --at`.
///
/// While the nodes are in sync, run `lockstep failover` instead.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoteArgs {
    #[command(flatten)]
    change: RoleChangeArgs,
}

const EXAMPLES: &str = "\
Examples:
  lockstep demote data
  lockstep demote data --json

Exit codes: 0 this node is the secondary; 2 could not: see the reason.";

pub(crate) fn run(args: &DemoteArgs) -> Result<ExitCode> {
    args.change.run(RoleCommand::Demote, |_| REST.to_owned())
}

const REST: &str = "the next resync drops the changes that only this node has, and keeps the copy from before as a snapshot: \
                    see `lockstep status`";
