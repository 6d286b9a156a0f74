//! `lockstep clear-poison`: a store whose disk had failed is taken back into use.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::{ClearError, Cleared, Repair, clear_poison};
use lockstepfs::config::{Choice, DatastoreConfig, Role};

use super::{ConfigArgs, NO, say, say_json, warn};

/// Take a store back into use after its disk had failed and was repaired, offline
///
/// A node whose disk fails a write, a read or a flush notes that in its store and promises nothing
/// more on it, also when it is started again, until you run this. Repair the disk or move the store to
/// another one first, and stop the node.
///
/// What is in memory of the store but not on its disk is forgotten, the store is opened and put on
/// stable storage, and its copy counts as out of sync: once the node is started, everything is compared
/// with the other node's.
///
/// On the secondary nothing can be lost by that. On the primary what lies on its disk counts from then
/// on, and the secondary is made equal to it: what was acknowledged and has not reached the disk is
/// lost, even if the secondary has it. That needs --accept-loss.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClearPoisonArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    config: ConfigArgs,

    /// On the primary: let what its disk holds count, whatever the secondary has
    #[arg(long)]
    accept_loss: bool,

    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep clear-poison data
  lockstep clear-poison data --accept-loss      on the primary

Exit codes: 0 the store can be used again, 1 it is not poisoned, 2 could not be done, and the store
is as poisoned as before.";

pub(crate) fn run(args: &ClearPoisonArgs) -> Result<ExitCode> {
    let node = args.config.load()?;
    let config = super::named(&node, &args.name)?;
    let repair = Repair::on_this_machine(config)?;
    match clear_poison(config, &repair, args.accept_loss) {
        Ok(cleared) if args.json => say_json(&cleared)?,
        Ok(cleared) => say(&text(&cleared, config))?,
        Err(error @ ClearError::NotPoisoned { .. }) => {
            warn(&error.to_string());
            return Ok(ExitCode::from(NO));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn text(cleared: &Cleared, config: &DatastoreConfig) -> String {
    let mut text = format!(
        "{}: the store in {} can be used again\n",
        cleared.datastore,
        config.store.display()
    );
    for line in done(cleared).into_iter().chain(next(cleared, config)) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {line}");
    }
    text
}

/// What was done.
fn done(cleared: &Cleared) -> Vec<String> {
    let cache = if cleared.cache_dropped {
        "what memory held of its files was dropped: reads show what is on the disk"
    } else {
        "the machine was restarted since then: reads show what is on the disk"
    };
    vec![
        format!("its disk had failed {}", cleared.failure),
        cache.to_owned(),
        "the store was opened as after a loss of power, and all of it put on stable storage"
            .to_owned(),
        "this copy counts as out of sync".to_owned(),
    ]
}

/// What follows.
fn next(cleared: &Cleared, config: &DatastoreConfig) -> Vec<String> {
    let follows = match (cleared.role, &config.peer) {
        (Role::Secondary, _) => "once it runs, everything is compared with the primary's copy",
        (Role::Primary, Some(_)) => {
            "once it runs, what is on this disk counts, and the secondary is made equal to it"
        }
        (Role::Primary, None) => "once it runs, what is on this disk is what there is",
    };
    vec![
        format!("→ start this node again ({})", cleared.role.word()),
        format!("→ {follows}"),
    ]
}
