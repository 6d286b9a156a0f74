//! `lockstep why`: why a datastore is in its state, what it waits for, and what a failure would do now.
//!
//! `explain` is a pure function of the status of this node, which knows the other node only by its connection and its last
//! word. `situation` names the cases, and `outlook` has the text of each.

mod outlook;
mod situation;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_driver::report::DatastoreStatus;
use lockstepfs::config::Choice;
use lockstepfs::control::ControlClient;

use super::arguments::RunningNodeArgs;
use super::status::keep_only;
use super::terminal::{duration, say};
use outlook::Outlook;
use situation::Situation;

/// Explain the state of a datastore, and what a failure would do now
///
/// Asks the running node, and says why the datastore is in its state, what it waits for, and what would happen if this
/// node, the other node, the link between them or the witness failed at this moment. Nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WhyArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    node: RunningNodeArgs,
}

const EXAMPLES: &str = "\
Examples:
  lockstep why data
  lockstep why data --control /run/lockstep/a.sock

Exit codes: 0 explained; 2 could not ask.";

pub(crate) fn run(args: &WhyArgs) -> Result<ExitCode> {
    let mut status = ControlClient::connect(&args.node.socket()?)?.status()?;
    keep_only(&mut status, &args.name)?;
    let store = status.datastores.pop();
    let store = store.with_context(|| format!("there is no datastore {:?}", args.name))?;
    say(&explain(&status.node, &store))?;
    Ok(ExitCode::SUCCESS)
}

/// Explains the status of a datastore on the node `node`.
fn explain(node: &str, store: &DatastoreStatus) -> String {
    let situation = Situation::of(store);
    let outlook = Outlook::of(situation, store.settings.on_peer_loss);
    let name = &store.settings.name;
    let since = duration(Duration::from_millis(store.sync.since_ms));
    let (role, generation) = (store.settings.role.word(), store.work.generation);
    let mut text = format!(
        "{name} on node {node}: {role} of generation {generation}, {}, for {since}\n",
        store.sync.state
    );
    let reason = store.sync.reason.as_deref();
    let failure = store.poisoned.as_ref().map(|poison| poison.reason.as_str());
    let rows = [
        ("why", Some(outlook.why)),
        ("reason", failure.or(reason)),
        ("waits for", Some(outlook.waits_for)),
        ("if this node fails now", Some(outlook.this_fails)),
        ("if the other node fails now", Some(outlook.other_fails)),
        ("if the link fails now", Some(outlook.link_fails)),
        ("if the witness fails now", Some(outlook.witness_fails)),
    ];
    for (label, row) in rows {
        if let Some(row) = row {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {label:<27}  {}", row.replace("NAME", name));
        }
    }
    text
}

#[cfg(test)]
mod tests;
