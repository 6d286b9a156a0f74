//! `lockstep write-back`: the child process of a node that has the kernel write dirty pages back.
//!
//! Only a node starts it, before it gives its role away.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_mount::write_back;

/// Have the kernel write back the dirty pages of a mount, for the node that has started this process
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct WriteBackArgs {
    /// The directory at which the datastore is mounted
    mount: PathBuf,
}

pub(crate) fn run(args: &WriteBackArgs) -> Result<ExitCode> {
    write_back(&args.mount)
        .with_context(|| format!("cannot write back the pages of {}", args.mount.display()))?;
    Ok(ExitCode::SUCCESS)
}
