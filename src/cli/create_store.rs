//! `lockstep create-store`: the empty store of a datastore, which a node never makes by itself.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::make_store_on_this_machine;
use lockstepfs::config::Role;

use super::{ConfigArgs, NO, say, warn};

/// Make the empty store of a datastore, as `lockstep init` does for its first
///
/// A node whose store is missing does not start: most likely the disk that holds the store is not mounted.
/// Run this for a datastore that you have added to the configuration, and on a secondary whose disk was
/// replaced: it is then filled from the primary. Never on a primary that has been in use: programs
/// would find an empty directory. What an interrupted creation has left is begun anew; a store that exists
/// is never changed.
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

Exit codes: 0 made, 1 there is one already, 2 could not be made.";

pub(crate) fn run(args: &CreateStoreArgs) -> Result<ExitCode> {
    let node = args.config.load()?;
    let config = super::named(&node, &args.name)?;
    let store = config.store.display();
    if !make_store_on_this_machine(config)? {
        warn(&format!(
            "there is a store in {store} already: nothing was changed"
        ));
        return Ok(ExitCode::from(NO));
    }
    let then = match config.role {
        Role::Primary => "programs find an empty directory once the node runs",
        Role::Secondary => "it is filled from the primary once the node runs",
    };
    say(&format!(
        "{}: made an empty store in {store}; {then}\n",
        config.name
    ))?;
    Ok(ExitCode::SUCCESS)
}
