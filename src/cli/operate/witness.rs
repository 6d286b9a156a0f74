//! `lockstep witness`: one witness, in the foreground.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::cli::arguments::WitnessConfigArgs;
use crate::cli::log;

/// Run a witness, in the foreground, until SIGTERM, SIGINT or SIGHUP
///
/// A witness is the third party that breaks ties: it keeps one small record for each datastore, and tells
/// the nodes which of them serves. It belongs on a third server, which fails with neither node. A node asks
/// the witness in the section [datastore.witness] of its configuration.
///
/// Checks configuration and records before anything starts, and logs to standard error. `lockstep init
/// --witness` makes the configuration and the empty store; a witness never makes a store by itself.
/// Reports readiness to systemd (Type=notify).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WitnessArgs {
    #[command(flatten)]
    config: WitnessConfigArgs,

    /// Log level: error, warn, info, debug, trace, or a filter such as `lockstep_witness=debug`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

const EXAMPLES: &str = "\
Examples:
  lockstep witness
  lockstep witness --config /etc/lockstep/witness.toml --log debug

Exit codes: 0 stopped as asked, 2 could not start or had to stop.";

pub(crate) fn run(args: &WitnessArgs) -> Result<ExitCode> {
    let config = args.config.load()?;
    log::start(&args.log)?;
    lockstepfs::witness::run(&config)?;
    Ok(ExitCode::SUCCESS)
}
