//! `lockstep guard`: the process that has the kernel drop its caches of a mount when the lease of the node is over.
//!
//! Only a node starts it. It ends when the mount is gone, or no process keeps the mount any more.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_mount::run_guard;
use lockstepfs::signals::leave_to_the_node;

/// Have the kernel drop its caches of a mount at the end of a lease, for the node that has started this process
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct GuardArgs {
    /// The directory at which the datastore is mounted, for the list of processes
    _mount: PathBuf,
}

pub(crate) fn run(_: &GuardArgs) -> Result<ExitCode> {
    leave_to_the_node().context("cannot handle signals")?;
    run_guard(std::io::stdin())?;
    Ok(ExitCode::SUCCESS)
}
