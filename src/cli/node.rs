//! `lockstep node`: one node, in the foreground or in the background.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use lockstepfs::node::Until;
use rustix::thread::{CpuSet, sched_setaffinity};
use tracing_subscriber::EnvFilter;

use super::{ConfigArgs, absolute, background, log};

/// Run a node, in the foreground, until SIGTERM, SIGINT or SIGHUP
///
/// Checks the whole configuration before anything starts, logs to standard error, and unmounts
/// cleanly when it is asked to stop; a terminal that is closed asks, too, except under `nohup`. A node
/// that was killed starts again the same way. A datastore that cannot be started (its mount directory is
/// missing, its disk is not mounted) is shown by `lockstep status` with the reason and tried again; the
/// others are served meanwhile.
///
/// Tells systemd when it is ready and how it is (Type=notify), and feeds its watchdog.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    config: ConfigArgs,

    /// What to log: error, warn, info, debug, trace, or a filter such as `lockstep_repl=debug`
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,

    /// Run in the background: return when all is mounted and served, or with the reason why not
    #[arg(long, requires = "log_file")]
    background: bool,

    /// Append the log of a node in the background to this file
    #[arg(long, value_name = "FILE", requires = "background")]
    log_file: Option<PathBuf>,

    /// Stop in order when the mount is taken away (what `mount -t fuse.lockstep` starts)
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
        return background::start(&args.again()?, log);
    }
    if args.detached {
        rustix::process::setsid().context("cannot leave the session of the terminal")?;
    }
    pin(&args.cpus)?;
    let filter = EnvFilter::try_new(&args.log).with_context(|| {
        format!(
            "--log {:?} is no filter; write a level such as debug",
            args.log
        )
    })?;
    log::start(filter);
    let until = if args.until_unmounted {
        Until::Unmounted
    } else {
        Until::Stopped
    };
    lockstepfs::node::run(&config, until)?;
    Ok(ExitCode::SUCCESS)
}

impl NodeArgs {
    /// The arguments of the same node in the background.
    fn again(&self) -> Result<Vec<String>> {
        let config = absolute(&self.config.config)?;
        let config = config
            .to_str()
            .context("the path of the configuration is not UTF-8")?;
        let mut again = vec!["--config".to_owned(), config.to_owned()];
        again.extend(["--log".to_owned(), self.log.clone()]);
        if self.until_unmounted {
            again.push("--until-unmounted".to_owned());
        }
        if !self.cpus.is_empty() {
            let cpus: Vec<_> = self.cpus.iter().map(ToString::to_string).collect();
            again.extend(["--cpus".to_owned(), cpus.join(",")]);
        }
        Ok(again)
    }
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
