//! `lockstep hold`: the process that keeps a node's mounts while the node is away.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_mount::hold::{DescriptorHolder, HoldError, HoldUntil, socket_path};
use lockstepfs::private_directory;
use lockstepfs::signals::ShutdownRequests;

use crate::cli::arguments::ConfigArgs;
use crate::cli::log;

/// Keep the mounts of a node while the node is away, so that programs see a pause and no error
///
/// Start it before the node, with the same configuration. When the node is killed or has crashed, programs that use a
/// mount wait. When the node runs again, it resumes the mounts, and the programs go on. Needs Linux 6.9. Without a
/// holder, and without systemd's descriptor store, the mounts end with the node.
///
/// The holder keeps nothing but open descriptors. If it is stopped while the node is away, the mounts end.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    config: ConfigArgs,

    /// End when all mounts of the node are unmounted
    #[arg(long)]
    until_unmounted: bool,

    /// Tell the running holder to end
    #[arg(long, conflicts_with = "until_unmounted")]
    end: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep hold
  lockstep hold --config /etc/lockstep/node.toml --until-unmounted
  lockstep hold --end

Exit codes: 0 ended as asked; 2 could not start, or no holder is running.";

pub(crate) fn run(args: &HoldArgs) -> Result<ExitCode> {
    let socket = socket_path(&args.config.load()?.control);
    if args.end {
        DescriptorHolder::end(&socket)?;
        return Ok(ExitCode::SUCCESS);
    }
    log::start("info")?;
    let requests = ShutdownRequests::new().context("cannot handle signals")?;
    let until = if args.until_unmounted {
        HoldUntil::Unmounted
    } else {
        HoldUntil::Stopped
    };
    make_directory(&socket)?;
    let holder = DescriptorHolder::open(&socket, until)?;
    tracing::info!(socket = %socket.display(), "holding");
    holder.run(requests.as_fd())?;
    tracing::info!("ended");
    Ok(ExitCode::SUCCESS)
}

/// Makes the directory of a socket, as the node makes it: the holder is started first.
fn make_directory(socket: &Path) -> Result<(), HoldError> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    private_directory::make(directory)
        .and_then(|()| private_directory::check(directory))
        .map_err(|source| HoldError::Listen {
            socket: socket.to_owned(),
            source,
        })
}
