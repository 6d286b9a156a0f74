//! `lockstep write-verifier`: the number that an NFS server on this server must answer as its write verifier.
//!
//! Invariant: only a node that serves tells its number. Another node may get another number before it serves.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lockstepfs::control::ControlClient;

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::inspect::health;
use crate::cli::inspect::status;
use crate::cli::outcome::NO;
use crate::cli::terminal::{say, warn};

/// The longest wait for the answer of the node.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Print the write verifier for an NFS server that exports the datastore
///
/// An NFS client keeps what it has written and not saved, until the server says that it is saved. When the write verifier in the
/// answers changes, the client sends that data again. This number changes when unsaved data may have been lost, and only
/// then. It stays the same over failovers, crashes of a node, and restarts of the NFS server.
///
/// NFS-Ganesha takes the number with the option -E, if it serves version 3 of NFS only. docs/hypervisors.md says how.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WriteVerifierArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    node: RunningNodeArgs,
}

const EXAMPLES: &str = "\
Examples:
  lockstep write-verifier data
  number=$(lockstep write-verifier data) && ganesha.nfsd -E $number

Exit codes: 0 printed; 1 this node does not serve the datastore, so there is no number yet; 2 it could not be asked.";

pub(crate) fn run(args: &WriteVerifierArgs) -> Result<ExitCode> {
    let mut client = ControlClient::connect_within(&args.node.socket()?, ANSWER_LIMIT)?;
    let (node, store) = status::of_datastore(&mut client, &args.name)?;
    let (serves, why) = health::judge(&store);
    if let Some(number) = store.sync.copy.write_verifier.filter(|_| serves) {
        say(&format!("{number}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    warn(&format!(
        "{}: node {} does not serve: {why}\n  cure: start the NFS server on the node that serves",
        args.name, node
    ));
    Ok(ExitCode::from(NO))
}
