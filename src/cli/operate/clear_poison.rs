//! `lockstep clear-poison`: takes a store back into use after its disk has failed.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::{ClearError, Cleared, Repair, clear_poison};
use lockstepfs::config::{Choice, DatastoreConfig, Role};

use crate::cli::arguments::{ConfigArgs, find_datastore};
use crate::cli::outcome::NO;
use crate::cli::terminal::{say, say_json, warn};

/// Take a store back into use after its disk has failed and was repaired, offline
///
/// A node whose disk fails a write, a read or a flush marks its store as poisoned. It acknowledges no change
/// on that store any more, even after a restart, until you run this command. First repair the disk or move
/// the store to another one, and stop the node.
///
/// The command drops the kernel's cached pages of the store, opens the store, puts it on stable storage and
/// marks its copy as out of sync: when the node is started, both copies are compared in full.
///
/// On the secondary this loses nothing. Neither does it on a primary whose secondary has every change: once the
/// node runs, the secondary becomes the primary. On any other primary the content of its disk is valid from then
/// on, and the secondary is made equal to it: an acknowledged change that has not reached the disk is lost, even
/// if the secondary has it. That needs --accept-loss.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClearPoisonArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    config: ConfigArgs,

    /// On a primary whose content counts: accept that changes are lost which have not reached its disk
    #[arg(long)]
    accept_loss: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep clear-poison data
  lockstep clear-poison data --accept-loss      on a primary, if the command says that a loss is possible

Exit codes: 0 the store can be used again, 1 it is not poisoned, 2 could not be done, and the store
remains poisoned.";

pub(crate) fn run(args: &ClearPoisonArgs) -> Result<ExitCode> {
    let node = args.config.load()?;
    let config = find_datastore(&node, &args.name)?;
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
    for line in completed_steps(cleared)
        .into_iter()
        .chain(next_steps(cleared, config))
    {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {line}");
    }
    text
}

/// The steps that the command has taken.
fn completed_steps(cleared: &Cleared) -> Vec<String> {
    let cache = if cleared.cache_dropped {
        "the cached pages of its files were dropped: reads show the content of the disk"
    } else {
        "the machine has restarted since then: reads show the content of the disk"
    };
    vec![
        format!("its disk failed {}", cleared.failure),
        cache.to_owned(),
        "the store was opened as after a loss of power, and put on stable storage".to_owned(),
        "this copy is marked as out of sync".to_owned(),
    ]
}

/// The steps that are left to the operator, and their effect.
fn next_steps(cleared: &Cleared, config: &DatastoreConfig) -> Vec<String> {
    let effect = match (cleared.role, &config.peer) {
        (Role::Secondary, _) => "once it runs, this copy is compared in full with the primary's",
        (Role::Primary, Some(_)) if !cleared.content_counts => {
            "once it runs, the other node becomes the primary, which has every change, and this copy is compared in full with \
             its copy"
        }
        (Role::Primary, Some(_)) => {
            "once it runs, the secondary is made equal to the content of this disk"
        }
        (Role::Primary, None) => "once it runs, it serves the content of this disk",
    };
    vec![
        format!("→ start this node again ({})", cleared.role.word()),
        format!("→ {effect}"),
    ]
}
