//! `lockstep guard`: the process that has the kernel drop its caches of a mount when the lease of the node is over.
//!
//! Only a node starts it. It ends when the mount is gone, or no process keeps the mount any more.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Args;
use lockstepfs::fuse::run_guard;
use lockstepfs::signals::stop_signals;

/// Have the kernel drop its caches of a mount at the end of a lease, for the node that has started this process
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct GuardArgs {
    /// The directory at which the datastore is mounted, for the list of processes
    _mount: PathBuf,
}

pub(crate) fn run(_: &GuardArgs) -> Result<ExitCode> {
    // A signal to the whole unit is for the node, which needs this process until it has unmounted.
    for signal in stop_signals() {
        let ignored = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored).context("cannot handle signals")?;
    }
    run_guard(std::io::stdin())?;
    Ok(ExitCode::SUCCESS)
}
