//! `lockstep invalidate`: the child process of a held mount, which has the kernel forget pages.
//!
//! Only a node starts it. It ends when the node has closed its standard input, or is gone.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_mount::run_invalidator;
use lockstepfs::signals::leave_to_the_node;

/// Have the kernel forget pages of a mount, for the node that has started this process
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct InvalidateArgs {}

pub(crate) fn run(_: &InvalidateArgs) -> Result<ExitCode> {
    leave_to_the_node().context("cannot handle signals")?;
    run_invalidator(std::io::stdin())?;
    Ok(ExitCode::SUCCESS)
}
