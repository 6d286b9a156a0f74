//! `lockstep why`: why a datastore is in its state, the event that it waits for, and the effect of a failure now.
//!
//! `explain` is a pure function of the status of this node, which knows the other node only by its connection and its last
//! word. `situation` and `protection` name the cases, `outlook` has the text of each, and `witnessed` what a witness changes.

mod outlook;
mod protection;
mod situation;
mod witnessed;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::DatastoreStatus;
use lockstepfs::config::Choice;
use lockstepfs::control::ControlClient;

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::inspect::status::{self, cluster_text, disk_text, resync_text, witness_text};
use crate::cli::terminal::{duration, say};
use outlook::{FitCopies, Outlook};
use protection::WitnessProtection;
use situation::Situation;
use witnessed::with_witness;

/// Explain the state of a datastore, and the effect of a failure now
///
/// Asks the running node, and says why the datastore is in its state, which event it waits for, and the effect if this
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
    let mut client = ControlClient::connect(&args.node.socket()?)?;
    let (node, store) = status::of_datastore(&mut client, &args.name)?;
    say(&explain(&node, &store))?;
    Ok(ExitCode::SUCCESS)
}

/// Explains the status of a datastore on the node `node`.
fn explain(node: &str, store: &DatastoreStatus) -> String {
    let situation = Situation::of(store);
    let policy = store.settings.on_peer_loss;
    let fit = FitCopies::of(store);
    let base = Outlook::without_witness(situation, policy, fit);
    let outlook = with_witness(base, situation, WitnessProtection::of(store), policy, fit);
    let peer = store.peer.as_ref();
    let outlook = if peer.is_some_and(|peer| peer.obstacle && !peer.connected) {
        outlook.behind_an_obstacle()
    } else {
        outlook
    };
    let name = &store.settings.name;
    let since = duration(Duration::from_millis(store.sync.since_ms));
    let (role, generation) = (store.settings.role.word(), store.work.generation);
    let mut text = format!(
        "{name} on node {node}: {role} of generation {generation}, {}, for {since}\n",
        store.sync.state
    );
    let reason = store.sync.reason.as_deref();
    let failure = store.poisoned.as_ref().map(|poison| poison.reason.as_str());
    let witness = store
        .witness
        .as_ref()
        .and_then(|_| witness_text::row(store));
    let filled = |text| Some(fill_in(text, store));
    let rows = [
        ("why", filled(outlook.why)),
        ("reason", failure.or(reason).map(str::to_owned)),
        ("disk of this node", disk_text::own(store)),
        ("disk of the other node", disk_text::of_peer(store)),
        ("next step for the disk", disk_text::step(store)),
        ("cluster address", cluster_text::row(store)),
        (
            "next step for the address",
            cluster_text::step(store).map(str::to_owned),
        ),
        ("witness", witness),
        ("resync", store.resync.as_ref().map(resync_text::row)),
        ("waits for", filled(outlook.waits_for)),
        ("slow operation", status::slow_text(store)),
        ("standby", status::standby_text(store)),
        ("if this node fails now", filled(outlook.this_fails)),
        ("if the other node fails now", filled(outlook.other_fails)),
        ("if the link fails now", filled(outlook.link_fails)),
        ("if the witness fails now", filled(outlook.witness_fails)),
    ];
    for (label, row) in rows {
        if let Some(row) = row {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {label:<27}  {row}");
        }
    }
    text
}

/// A text with the times of a failover and the name of the datastore in their places.
fn fill_in(text: &str, store: &DatastoreStatus) -> String {
    let mut filled = text.to_owned();
    if let Some(times) = store.times.and_then(|times| times.failover) {
        for (place, millis) in [
            ("TAKEOVER", times.takeover_ms),
            ("ALONE", times.alone_ms),
            ("LEASE", times.lease_ms),
        ] {
            filled = filled.replace(place, &duration(Duration::from_millis(millis)));
        }
    }
    filled.replace("NAME", &store.settings.name)
}

#[cfg(test)]
mod tests;
