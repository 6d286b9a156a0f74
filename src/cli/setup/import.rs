//! `lockstep import`: a seed becomes the first copy of a secondary, without a node.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lockstep_driver::{ImportRequest, Imported, import_on_this_machine};
use lockstep_fs::seed::{ImportPhase, ImportProgress, SeedSnapshot};
use lockstep_fs::store::AdoptWay;
use lockstepfs::config::DatastoreConfig;
use serde_json::{Value, json};

use crate::cli::arguments::{ConfigArgs, absolute, find_datastore};
use crate::cli::terminal::{LiveLines, bytes, count, duration, say, say_json};

/// Make the new store of a secondary of a seed, offline
///
/// A seed is what `lockstep export --seed` has written on the other server. Run this command as root on the server whose store is
/// new or empty, while its node is stopped. Everything in the seed is checked. Then start the node: the primary resyncs the copy,
/// and only what differs crosses the network.
///
/// Until that resync has ended, the copy lacks each change since the snapshot of the seed. It never takes over by itself. With
/// `lockstep promote --force-data-loss` it serves the moment of the seed, which `lockstep status` shows.
///
/// If the command is stopped, or the machine, run it again: it goes on. A node does not start meanwhile. Without --move, the seed
/// is only read, and its disk may be read-only. With --move, the seed is gone afterwards.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImportArgs {
    /// Name of the datastore
    name: String,

    /// The directory of the seed
    #[arg(long, value_name = "DIR", required = true)]
    seed: PathBuf,

    #[command(flatten)]
    config: ConfigArgs,

    #[command(flatten)]
    way: SeedWayArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// How the files get into the store.
#[derive(Debug, Args)]
struct SeedWayArgs {
    /// Move the files into the store, which must be on the same file system
    #[arg(long = "move", conflicts_with_all = ["reflink", "copy"])]
    is_move: bool,

    /// Share the blocks of the files, which takes no room [default, where the file system can: XFS, Btrfs]
    #[arg(long, conflicts_with = "copy")]
    reflink: bool,

    /// Copy the files [default elsewhere]
    #[arg(long)]
    copy: bool,
}

impl SeedWayArgs {
    const fn way(&self) -> Option<AdoptWay> {
        match (self.is_move, self.reflink, self.copy) {
            (true, _, _) => Some(AdoptWay::Move),
            (_, true, _) => Some(AdoptWay::Reflink),
            (_, _, true) => Some(AdoptWay::Copy),
            _ => None,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  lockstep import data --seed /mnt/disk/seed
  lockstep import data --seed /srv/disk/seed --move

Exit codes: 0 imported, 2 could not be imported.";

pub(crate) fn run(args: &ImportArgs) -> Result<ExitCode> {
    let node = args.config.load()?;
    let config = find_datastore(&node, &args.name)?;
    let seed = absolute(&args.seed)?;
    let request = ImportRequest {
        seed: seed.clone(),
        way: args.way.way(),
    };
    let (mut lines, began) = (LiveLines::new(), Instant::now());
    let mut watch = |progress: &ImportProgress| {
        if lines.are_visible() {
            let since = duration(began.elapsed());
            lines.show(&[format!("{}, {since}", progress_line(progress))]);
        }
        ControlFlow::Continue(())
    };
    let imported = import_on_this_machine(config, &request, &mut watch);
    drop(lines);
    let imported = imported?;
    if args.json {
        say_json(&as_json(config, &seed, &imported))?;
    } else {
        say(&text(config, &imported))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(config: &DatastoreConfig, imported: &Imported) -> String {
    let summary = &imported.summary;
    let took = match summary.way {
        AdoptWay::Move => "moved",
        AdoptWay::Reflink => "shared the blocks of",
        AdoptWay::Copy => "copied",
    };
    let of = |snapshot: &SeedSnapshot| format!(" of {}, {}", snapshot.name, snapshot.time.utc());
    let moment = imported.snapshot.as_ref().map_or_else(String::new, of);
    format!(
        "{}: {took} {} files, {} of data; the store is a copy of the seed{moment}. Start the node: the primary sends what differs\n",
        config.name,
        count(summary.totals.files),
        bytes(summary.totals.bytes),
    )
}

fn as_json(config: &DatastoreConfig, seed: &Path, imported: &Imported) -> Value {
    let summary = &imported.summary;
    let snapshot = imported.snapshot.as_ref();
    json!({
        "datastore": config.name,
        "store": config.store,
        "seed": seed.display().to_string(),
        "way": summary.way.word(),
        "inodes": summary.totals.inodes,
        "files": summary.totals.files,
        "bytes": summary.totals.bytes,
        "went_on": summary.went_on,
        "snapshot": snapshot.map(|snapshot| &snapshot.name),
        "time": snapshot.map(|snapshot| snapshot.time.utc()),
        "osn": snapshot.map(|snapshot| snapshot.osn.to_string()),
    })
}

fn progress_line(progress: &ImportProgress) -> String {
    let totals = &progress.totals;
    let contents = || {
        format!(
            "{} of {} files, {} of {}",
            count(progress.files),
            count(totals.contents),
            bytes(progress.bytes),
            bytes(totals.bytes)
        )
    };
    match progress.phase {
        ImportPhase::Names => format!(
            "reading the names: {} of {}",
            count(progress.files),
            count(totals.inodes)
        ),
        ImportPhase::Checking => format!("checking: {}", contents()),
        ImportPhase::Taking => format!("taking: {}", contents()),
        ImportPhase::Finishing => "writing to the disk".to_owned(),
        ImportPhase::Emptying => "removing the files from the seed".to_owned(),
    }
}
