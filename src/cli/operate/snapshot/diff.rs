//! `lockstep snapshot diff`: the difference between two snapshots, or between a snapshot and the present.

mod listing;

use std::num::NonZeroU64;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::{DiffBegin, DiffHead, DiffMoment, DiffPart, DiffQuestion};
use lockstepfs::control::ControlClient;

use self::listing::DiffListing;
use crate::cli::arguments::RunningNodeArgs;
use crate::cli::operate::changes::listing::{Form, Only};
use crate::cli::terminal::{count, warn};

/// Tell what differs between two snapshots, or between a snapshot and the present
///
/// Lists the files, directories and names that were created, deleted, renamed, linked or changed, in a time that depends on the
/// number of changes and not on that of all files. A file that was changed and changed back is not listed. Paths are relative to
/// the mount directory: those of the newer moment, and those of the older one where a name is gone. Entries come in the order of
/// inode numbers; take all of them together.
///
/// Asks the node of this machine, in any role: both nodes have the snapshots of the datastore. The answer comes in pages.
/// Two snapshots never change, so a page of theirs is the same whenever it is read, also on the other node; without TO each page
/// is as of the moment at which it is read, and a file that is renamed meanwhile may be missing or come twice. Make a second
/// snapshot where that matters.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools)] // each is an option of its own
pub(super) struct DiffArgs {
    /// Name of the datastore
    datastore: String,

    /// Name of the older snapshot, such as `lost-3`
    #[arg(required_unless_present = "cursor")]
    from: Option<String>,

    /// Name of the newer snapshot [default: the present state]
    to: Option<String>,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Go on at the cursor that an earlier answer has printed, with the same snapshots
    #[arg(long, value_name = "CURSOR", conflicts_with_all = ["from", "to"])]
    cursor: Option<String>,

    /// End after about so many entries, and print a cursor for the rest
    #[arg(long, value_name = "ENTRIES")]
    limit: Option<NonZeroU64>,

    /// Also compare contents, and print the bytes that differ, in blocks of 4 KiB
    #[arg(long)]
    ranges: bool,

    /// Print the paths only, each with a zero byte behind it; of a renamed entry both, the older one first
    #[arg(short = '0', long, conflicts_with_all = ["json", "ranges"])]
    null: bool,

    /// Print only the entries that are there at the newer moment, or only those with a name that is gone; with -0 only these names
    #[arg(long, value_name = "WHICH")]
    only: Option<Only>,

    /// Also if this machine has lost its power before a snapshot was settled: its files may show bytes of an earlier moment
    #[arg(long)]
    accept_torn: bool,

    /// Print JSON objects, one on each line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep snapshot diff data monday tuesday
  lockstep snapshot diff data monday --ranges            what has changed since then, with the bytes
  lockstep snapshot diff data lost-3                     from the lost copy of a deposed node to the present
  lockstep snapshot diff data monday tuesday -0 --only present
  lockstep snapshot diff data monday tuesday --json --limit 100000
  lockstep snapshot diff data --cursor CURSOR --json --limit 100000

A cursor is good until one of its two snapshots is deleted. An answer that ends early prints one, too.

Exit codes: 0 listed; 2 could not be listed, or not to its end.";

pub(super) fn run(args: &DiffArgs) -> Result<ExitCode> {
    let mut client = ControlClient::connect(&args.node.socket()?)?;
    let form = match (args.json, args.null) {
        (true, _) => Form::Json,
        (false, true) => Form::Null,
        (false, false) => Form::Text,
    };
    let mut listing = DiffListing::new(form, args.only);
    let question = question(args);
    let told = client.snapshot_diff(&args.datastore, &question, &mut |part| match part {
        DiffPart::Head(head) => {
            explain(args, &head);
            listing.begin(&head)
        }
        DiffPart::Page { items, cursor } => listing.page(&items, cursor),
    });
    if let Some(cursor) = listing.cursor() {
        warn(&format!("go on with: {}", rest(args, cursor)));
    }
    told?;
    if !args.json {
        warn(&format!("{} entries", count(listing.listed())));
    }
    Ok(ExitCode::SUCCESS)
}

fn question(args: &DiffArgs) -> DiffQuestion {
    let begin = match &args.cursor {
        Some(cursor) => DiffBegin::Cursor(cursor.clone()),
        None => DiffBegin::Moments {
            from: args.from.clone().unwrap_or_default(),
            to: args.to.clone(),
        },
    };
    DiffQuestion {
        begin,
        ranges: args.ranges,
        entries_max: args.limit.map(NonZeroU64::get),
        accepts_torn: args.accept_torn,
    }
}

/// Names both moments on standard error.
fn explain(args: &DiffArgs, head: &DiffHead) {
    if args.json {
        return;
    }
    let moment = |moment: &DiffMoment| {
        let DiffMoment { name, osn, time } = moment;
        format!("{name} ({time}, operation {osn})")
    };
    let to = head
        .to
        .as_ref()
        .map_or_else(|| "the present".to_owned(), moment);
    warn(&format!("from {} to {to}", moment(&head.from)));
}

/// The command that lists the rest.
fn rest(args: &DiffArgs, cursor: &str) -> String {
    let ranges = if args.ranges { " --ranges" } else { "" };
    let torn = if args.accept_torn {
        " --accept-torn"
    } else {
        ""
    };
    let name = &args.datastore;
    format!("lockstep snapshot diff {name}{ranges}{torn} --cursor {cursor}")
}
