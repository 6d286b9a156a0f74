//! `lockstep witness-forget`: removes the record of a datastore from a running witness.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_types::DatastoreUuid;

use crate::cli::arguments::WitnessConfigArgs;
use crate::cli::outcome::NO;
use crate::cli::terminal::{say, warn};

/// Remove the record of a datastore from a witness
///
/// Run it on the server of the witness when a datastore was given up, or when one of its nodes got a new
/// identity: the record belongs to the two nodes that made it. Both nodes must run and be connected then:
/// only together they tell the witness how things stand. Never run it while a node is away: until both
/// nodes have met again, the witness cannot help the other one.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WitnessForgetArgs {
    /// UUID of the datastore, as `lockstep witness-status` shows it
    uuid: DatastoreUuid,

    #[command(flatten)]
    config: WitnessConfigArgs,
}

const EXAMPLES: &str = "\
Examples:
  lockstep witness-forget 6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001

Exit codes: 0 removed, 1 there was no such record, 2 could not be removed.";

pub(crate) fn run(args: &WitnessForgetArgs) -> Result<ExitCode> {
    let (_, operator) = args.config.operator()?;
    if operator.forget(args.uuid)? {
        say(&format!("removed the record of datastore {}\n", args.uuid))?;
        return Ok(ExitCode::SUCCESS);
    }
    warn(&format!(
        "the witness has no record of datastore {}: nothing was changed",
        args.uuid
    ));
    Ok(ExitCode::from(NO))
}
