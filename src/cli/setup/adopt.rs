//! `lockstep adopt`: an existing directory becomes the content of a new datastore, without a node.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_driver::{AdoptRequest, adopt_on_this_machine};
use lockstep_fs::adopt::{AdoptSummary, AdoptWatcher, AdoptionProgress, NotAdopted, Phase};
use lockstep_fs::store::AdoptWay;
use lockstepfs::config::{DatastoreConfig, NodeConfig};
use serde_json::{Value, json};

use crate::cli::arguments::{ConfigArgs, absolute, find_datastore};
use crate::cli::outcome::NO;
use crate::cli::terminal::{LiveLines, bytes, count, duration, say, say_json, warn};

/// Make an existing directory the content of a new datastore, offline
///
/// Run it after `lockstep init`, on the node that begins as the primary, before any node runs. It keeps modes,
/// owners, all times, flags, extended attributes, access control lists, hard links, holes and special files, so
/// run it as root. The other node's store stays empty: the primary fills it once both nodes run.
///
/// First everything is listed and checked. If the datastore cannot hold something in DIR, that is printed, and
/// nothing is changed. After that the files are taken. If the command is stopped, or the machine, run it again: it
/// goes on. A node does not start meanwhile.
///
/// Without --move, DIR is only read. With --move, DIR has its directories and no files afterwards. Stop the programs
/// that use DIR: a file that changes meanwhile is copied again, and reported if it goes on to change.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AdoptArgs {
    /// The directory
    dir: PathBuf,

    /// Name of the datastore [default: the only one of the configuration]
    #[arg(long, value_name = "NAME")]
    datastore: Option<String>,

    #[command(flatten)]
    config: ConfigArgs,

    #[command(flatten)]
    way: WayArgs,

    /// Leave out file systems that are mounted below DIR, with an empty directory in their place. Without this
    /// option they are refused
    #[arg(long, short = 'x')]
    one_file_system: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// How the files get into the store.
#[derive(Debug, Args)]
struct WayArgs {
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

impl WayArgs {
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
  lockstep adopt /srv/old-data
  lockstep adopt /srv/old-data --move
  lockstep adopt /srv/old-data --datastore data --json

Exit codes: 0 adopted, 1 adopted without the reported names (they were changed meanwhile), 2 could not be
adopted.";

/// Most names that are printed.
const PRINTED_MAX: usize = 50;
/// Most names in the result as JSON.
const LISTED_MAX: usize = 1000;

pub(crate) fn run(args: &AdoptArgs) -> Result<ExitCode> {
    let node = args.config.load()?;
    let config = datastore_of(&node, args.datastore.as_deref())?;
    let source = absolute(&args.dir)?;
    let request = AdoptRequest {
        source: source.clone(),
        way: args.way.way(),
        one_file_system: args.one_file_system,
    };
    let mut screen = Screen::new();
    let adopted = adopt_on_this_machine(config, request, &mut screen);
    let reported = screen.end();
    let summary = adopted?;
    if args.json {
        say_json(&as_json(config, &source, &summary, &reported))?;
    } else {
        say(&text(config, &source, &summary))?;
    }
    Ok(if summary.reports == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    })
}

/// Returns the datastore of that name, or the only one.
fn datastore_of<'a>(node: &'a NodeConfig, name: Option<&str>) -> Result<&'a DatastoreConfig> {
    match (name, &node.datastores[..]) {
        (Some(name), _) => find_datastore(node, name),
        (None, [only]) => Ok(only),
        (None, several) => {
            let names = several.iter().map(|it| it.name.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            None.context(format!(
                "the configuration has several datastores, or none\n  cure: --datastore with one of: {names}"
            ))
        }
    }
}

fn text(config: &DatastoreConfig, source: &std::path::Path, summary: &AdoptSummary) -> String {
    let took = match summary.way {
        AdoptWay::Move => "moved",
        AdoptWay::Reflink => "shared the blocks of",
        AdoptWay::Copy => "copied",
    };
    let left_out = match summary.left_out {
        0 => String::new(),
        some => format!(
            "; left out {} file systems that are mounted below",
            count(some)
        ),
    };
    format!(
        "{}: {took} {} files, {} of data; adopted {} names of {}{left_out}\n",
        config.name,
        count(summary.files),
        bytes(summary.bytes),
        count(summary.names),
        source.display(),
    )
}

fn as_json(
    config: &DatastoreConfig,
    source: &std::path::Path,
    summary: &AdoptSummary,
    reported: &[NotAdopted],
) -> Value {
    json!({
        "datastore": config.name,
        "store": config.store,
        "directory": source.display().to_string(),
        "way": summary.way.word(),
        "names": summary.names,
        "directories": summary.directories,
        "files": summary.files,
        "bytes": summary.bytes,
        "file_systems_left_out": summary.left_out,
        "went_on": summary.went_on,
        "not_adopted_total": summary.reports,
        "not_adopted": reported,
    })
}

/// The progress on the terminal, and the reports.
struct Screen {
    lines: LiveLines,
    began: Instant,
    printed: usize,
    reported: Vec<NotAdopted>,
}

impl Screen {
    fn new() -> Self {
        Self {
            lines: LiveLines::new(),
            began: Instant::now(),
            printed: 0,
            reported: Vec::new(),
        }
    }

    /// Removes the lines. Returns the first reports.
    fn end(self) -> Vec<NotAdopted> {
        drop(self.lines);
        let more = self.printed.saturating_sub(PRINTED_MAX);
        if more > 0 {
            let more = u64::try_from(more).unwrap_or(u64::MAX);
            warn(&format!("and {} more", count(more)));
        }
        self.reported
    }
}

impl AdoptWatcher for Screen {
    fn progress(&mut self, progress: &AdoptionProgress) -> ControlFlow<()> {
        if self.lines.are_visible() {
            let line = progress_line(progress);
            let since = duration(self.began.elapsed());
            self.lines.show(&[format!("{line}, {since}")]);
        }
        ControlFlow::Continue(())
    }

    fn report(&mut self, not_adopted: &NotAdopted) {
        self.printed += 1;
        if self.printed <= PRINTED_MAX {
            warn(&format!("{}: {}", not_adopted.name, not_adopted.why));
        }
        if self.reported.len() < LISTED_MAX {
            self.reported.push(not_adopted.clone());
        }
    }
}

fn progress_line(progress: &AdoptionProgress) -> String {
    let (files, data) = (count(progress.files), bytes(progress.bytes));
    match progress.phase {
        Phase::Listing => format!("listing: {files} files, {data}"),
        Phase::Taking => format!(
            "taking: {files} of {} files, {data} of {}",
            count(progress.files_total),
            bytes(progress.bytes_total)
        ),
        Phase::Emptying => format!(
            "removing from the directory: {files} of {} files",
            count(progress.files_total)
        ),
        Phase::Finishing => format!("writing to the disk: {files} files, {data}"),
    }
}
