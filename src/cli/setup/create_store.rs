//! `lockstep create-store`: makes the empty store of a datastore. A node never makes a store by itself.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::make_store_on_this_machine;
use lockstepfs::config::Role;

use crate::cli::arguments::{ConfigArgs, find_datastore};
use crate::cli::outcome::NO;
use crate::cli::terminal::{say, warn};

/// Make the empty store of a datastore, as `lockstep init` does for the first datastore
///
/// A node whose store is missing does not start: most likely the disk that holds the store is not mounted.
/// Run this command for a datastore that you have added to the configuration, and on a node whose disk was
/// replaced. A new store begins in the `role` of the configuration: as the secondary it is filled from the
/// primary. If the other node has the data, set `role = "secondary"` before, even if this node was the primary: a
/// new store that begins as the primary shows programs an empty directory. An interrupted creation is started again from the beginning; an
/// existing store is never changed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CreateStoreArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    config: ConfigArgs,
}

const EXAMPLES: &str = "\
Examples:
  lockstep create-store data

Exit codes: 0 made, 1 the store exists already, 2 could not be made.";

pub(crate) fn run(args: &CreateStoreArgs) -> Result<ExitCode> {
    let node = args.config.load()?;
    let config = find_datastore(&node, &args.name)?;
    let store = config.store.display();
    if !make_store_on_this_machine(config)? {
        warn(&format!(
            "there is a store in {store} already: nothing was changed"
        ));
        return Ok(ExitCode::from(NO));
    }
    let effect = match config.role {
        Role::Primary => "programs find an empty directory once the node runs",
        Role::Secondary => "the primary fills it once the node runs",
    };
    say(&format!(
        "{}: made an empty store in {store}; {effect}\n",
        config.name
    ))?;
    Ok(ExitCode::SUCCESS)
}
