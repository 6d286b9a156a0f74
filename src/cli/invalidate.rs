//! `lockstep invalidate`: the child process of a held mount, which has the kernel forget pages.
//!
//! Only a node starts it. It ends when the node has closed its standard input, or is gone.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Args;
use lockstepfs::fuse::run_invalidator;
use lockstepfs::signals::stop_signals;

/// Have the kernel forget pages of a mount, for the node that has started this process
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct InvalidateArgs {}

pub(crate) fn run(_: &InvalidateArgs) -> Result<ExitCode> {
    // A signal to the whole unit or terminal is for the node, which needs this process until it has unmounted.
    for signal in stop_signals() {
        let ignored = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored).context("cannot handle signals")?;
    }
    run_invalidator(std::io::stdin())?;
    Ok(ExitCode::SUCCESS)
}
