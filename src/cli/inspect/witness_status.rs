//! `lockstep witness-status`: shows the records of a running witness.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_link::Fingerprint;
use lockstep_witness::{WitnessEntry, WitnessListing};
use lockstepfs::config::WitnessServerConfig;

use crate::cli::arguments::WitnessConfigArgs;
use crate::cli::terminal::{count, say, say_json};

/// Show the records of a witness: generation, primary and nodes in sync of each datastore
///
/// Run it on the server of the witness: it asks the running witness with the witness's own identity.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WitnessStatusArgs {
    #[command(flatten)]
    config: WitnessConfigArgs,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep witness-status
  lockstep witness-status --config /etc/lockstep/witness.toml --json

Exit codes: 0 the witness runs, 1 it cannot record claims, 2 could not ask.";

pub(crate) fn run(args: &WitnessStatusArgs) -> Result<ExitCode> {
    let (config, operator) = args.config.operator()?;
    let listing = operator.list()?;
    if args.json {
        say_json(&summary(&config, &listing))?;
    } else {
        say(&text(&config, &listing))?;
    }
    Ok(match listing.trouble {
        Some(_) => ExitCode::from(1),
        None => ExitCode::SUCCESS,
    })
}

fn text(config: &WitnessServerConfig, listing: &WitnessListing) -> String {
    let mut text = format!("witness on {}, store {}\n", config.listen, listing.store);
    if let Some(trouble) = &listing.trouble {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\nDOES NOT PROTECT: {trouble}");
    }
    if listing.datastores.is_empty() {
        text.push_str("\nno datastore yet\n");
    }
    for (uuid, entry) in &listing.datastores {
        let in_sync: Vec<_> = named(config, entry.in_sync());
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n{uuid}\n  nodes       {}\n  primary     {}\n  in sync     {}\n  generation  {}, change {}\n",
            named(config, entry.pair.both()).join(", "),
            name(config, entry.primary()),
            in_sync.join(", "),
            count(entry.record.generation.get()),
            count(entry.record.change),
        );
    }
    text
}

fn named(
    config: &WitnessServerConfig,
    fingerprints: impl IntoIterator<Item = Fingerprint>,
) -> Vec<String> {
    let fingerprints = fingerprints.into_iter();
    fingerprints.map(|node| name(config, node)).collect()
}

/// The name of a node, or its fingerprint if the configuration does not know it any more.
fn name(config: &WitnessServerConfig, node: Fingerprint) -> String {
    let known = config.node_name(node).map(str::to_owned);
    known.unwrap_or_else(|| node.to_string())
}

fn summary(config: &WitnessServerConfig, listing: &WitnessListing) -> serde_json::Value {
    let node = |node: Fingerprint| {
        serde_json::json!({
            "name": config.node_name(node),
            "fingerprint": node.to_string(),
        })
    };
    let datastore = |(uuid, entry): &(_, WitnessEntry)| {
        let uuid: &lockstep_types::DatastoreUuid = uuid;
        serde_json::json!({
            "uuid": uuid.to_string(),
            "generation": entry.record.generation,
            "change": entry.record.change,
            "primary": node(entry.primary()),
            "in_sync": entry.in_sync().into_iter().map(node).collect::<Vec<_>>(),
            "nodes": entry.pair.both().map(node),
        })
    };
    serde_json::json!({
        "listen": config.listen.to_string(),
        "store": listing.store.to_string(),
        "trouble": listing.trouble,
        "datastores": listing.datastores.iter().map(datastore).collect::<Vec<_>>(),
    })
}
