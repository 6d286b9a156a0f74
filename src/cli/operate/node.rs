//! `lockstep node`: one node, in the foreground or in the background.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use lockstepfs::node::Until;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::background;
use crate::cli::arguments::{ConfigArgs, absolute};
use crate::cli::log;

/// Run a node, in the foreground, until SIGTERM, SIGINT or SIGHUP
///
/// Checks the whole configuration before anything starts, logs to standard error, and unmounts
/// cleanly when it is asked to stop; a closed terminal stops it, too, except under `nohup`. A killed node
/// starts again the same way. If a datastore cannot be started (its mount directory is missing, its disk is
/// not mounted), `lockstep status` shows the reason and the node tries again; the other datastores are served
/// meanwhile.
///
/// Reports readiness and status to systemd (Type=notify), and feeds its watchdog.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    config: ConfigArgs,

    /// Log level: error, warn, info, debug, trace, or a filter such as `lockstep_repl=debug`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,

    /// Run in the background: return when all datastores are mounted and served, or print why not
    #[arg(long, requires = "log_file")]
    background: bool,

    /// Append the log of a node in the background to this file
    #[arg(long, value_name = "FILE", requires = "background")]
    log_file: Option<PathBuf>,

    /// Shut down cleanly after an unmount (`mount -t fuse.lockstep` starts such a node)
    #[arg(long)]
    until_unmounted: bool,

    /// Leave the session of the terminal
    #[arg(long, hide = true)]
    detached: bool,

    /// Processors to run on, such as `0,2`
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide = true)]
    cpus: Vec<usize>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep node
  lockstep node --config /etc/lockstep/node.toml --log debug
  lockstep node --background --log-file /var/log/lockstep.log

Exit codes: 0 stopped as asked, or ready in the background; 2 could not start or had to stop.";

pub(crate) fn run(args: &NodeArgs) -> Result<ExitCode> {
    let config = args.config.load()?;
    if let (true, Some(log)) = (args.background, &args.log_file) {
        return background::start(&args.background_arguments()?, log);
    }
    if args.detached {
        rustix::process::setsid().context("cannot leave the session of the terminal")?;
    }
    pin(&args.cpus)?;
    log::start(&args.log)?;
    let until = if args.until_unmounted {
        Until::Unmounted
    } else {
        Until::Stopped
    };
    lockstepfs::node::run(&config, until)?;
    Ok(ExitCode::SUCCESS)
}

impl NodeArgs {
    /// Returns the arguments of the same node in the background.
    fn background_arguments(&self) -> Result<Vec<String>> {
        let config = absolute(&self.config.config)?;
        let config = config
            .to_str()
            .context("the path of the configuration is not UTF-8")?;
        let mut arguments = vec!["--config".to_owned(), config.to_owned()];
        arguments.extend(["--log".to_owned(), self.log.clone()]);
        if self.until_unmounted {
            arguments.push("--until-unmounted".to_owned());
        }
        if !self.cpus.is_empty() {
            let cpus: Vec<_> = self.cpus.iter().map(ToString::to_string).collect();
            arguments.extend(["--cpus".to_owned(), cpus.join(",")]);
        }
        Ok(arguments)
    }
}

/// Binds this thread, and all threads that it starts, to these processors.
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
