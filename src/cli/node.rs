//! `lockstep node`: one node in the foreground.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};
use tracing_subscriber::EnvFilter;

use super::ConfigArgs;

/// Run a node in the foreground until SIGTERM or SIGINT
///
/// Checks the whole configuration before anything starts, logs to standard error, and unmounts
/// cleanly when it is asked to stop. A node that was killed starts again the same way.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    config: ConfigArgs,

    /// What to log: error, warn, info, debug, trace, or a filter such as `lockstep_repl=debug`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,

    /// Processors to run on, such as `0,2`
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide = true)]
    cpus: Vec<usize>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep node
  lockstep node --config /etc/lockstep/node.toml --log debug

Exit codes: 0 stopped as asked, 2 could not start or had to stop.";

pub(crate) fn run(args: &NodeArgs) -> Result<ExitCode> {
    let config = args.config.load()?;
    pin(&args.cpus)?;
    let filter = EnvFilter::try_new(&args.log).with_context(|| {
        format!(
            "--log {:?} is no filter; write a level such as debug",
            args.log
        )
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A log that cannot be written (its disk is full, say) stops nothing.
        .log_internal_errors(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    lockstepfs::node::run(&config)?;
    Ok(ExitCode::SUCCESS)
}

/// Keeps this thread, and so all that it starts, on these processors.
fn pin(cpus: &[usize]) -> Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus {
        anyhow::ensure!(
            cpu < CpuSet::MAX_CPU,
            "there is no processor {cpu}; see `lscpu`"
        );
        set.set(cpu);
    }
    sched_setaffinity(None, &set)
        .with_context(|| format!("cannot run on the processors {cpus:?}; see `lscpu`"))
}
