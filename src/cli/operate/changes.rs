//! `lockstep changes`: lists the changes of a datastore since a reader has last asked, for incremental copies.

pub(super) mod listing;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_driver::report::{
    ChangeReaderStatus, ChangesHead, ChangesPart, ChangesQuestion, ReaderCommand,
};
use lockstepfs::control::ControlClient;

use self::listing::{Form, Listing, Only};
use crate::cli::arguments::RunningNodeArgs;
use crate::cli::inspect::status::readers_text::describe;
use crate::cli::outcome::NO;
use crate::cli::terminal::{count, say, say_json, warn};

/// Tell what has changed in a datastore since a reader has last asked
///
/// For incremental backups: each backup asks under a name of its own, its reader. The first question registers the reader on
/// this node, which must be the primary. From then on the node marks each change for it, and the next question lists the files,
/// directories and names that have changed. Names are relative to the mount directory.
///
/// An answer ends with a point. Confirm the point once everything is copied, with --confirm or as --since of the next question:
/// then the next answer begins there. Without that, the next answer has these changes again. With --since the node also
/// checks that the copy is that of the point: after a failover, or on an older copy of the store, everything may have changed.
///
/// The answer "everything may have changed" lists nothing and has exit code 1: copy all files. It comes for a reader that the
/// node does not know, after a loss of power of this machine, for a point of another node, and when too many names
/// have changed. A change that is made after the question is in the next answer. An entry may be listed that has not changed;
/// a change is never left out.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools)] // each is an option of its own
pub(crate) struct ChangesArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Name of the reader: letters, digits, `-`, `_` and `.`
    #[arg(long, required_unless_present_any = ["readers", "remove"])]
    reader: Option<String>,

    /// The point up to which the reader's copy has everything [default: the one confirmed last]
    #[arg(long, value_name = "POINT", requires = "reader")]
    since: Option<String>,

    /// Say that the reader's copy has everything up to this point, and ask nothing
    #[arg(
        long,
        value_name = "POINT",
        requires = "reader",
        conflicts_with = "since"
    )]
    confirm: Option<String>,

    /// Write the point of the answer to this file, once all of the answer is printed
    #[arg(long, value_name = "FILE", requires = "reader")]
    point_file: Option<PathBuf>,

    /// Print the paths only, each with a zero byte behind it, as for `rsync --from0 --files-from=-`
    #[arg(short = '0', long, requires = "reader", conflicts_with_all = ["json", "ranges"])]
    null: bool,

    /// Also print the bytes of files that have changed, in parts of 64 KiB
    #[arg(long, requires = "reader")]
    ranges: bool,

    /// Print only the entries that are there, or only those that are gone
    #[arg(long, value_name = "WHICH", requires = "reader")]
    only: Option<Only>,

    /// List the readers of this node
    #[arg(long, conflicts_with_all = ["reader", "remove"])]
    readers: bool,

    /// Remove a reader: its marks take no room any more
    #[arg(long, value_name = "READER", conflicts_with = "reader")]
    remove: Option<String>,

    /// Print as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep changes data --reader nightly                      ask, and read the answer
  lockstep changes data --reader nightly --confirm POINT      everything is copied
  lockstep changes data --reader nightly --since POINT -0     both at once, for a script
  lockstep changes data --reader images --ranges --json
  lockstep changes data --readers
  lockstep changes data --remove nightly

A datastore has at most 4 readers on each node. A reader that was not heard of for 30 days is removed.
docs/operations/backup.md has a script.

Exit codes: 0 the entries are listed, or the command is done; 1 everything may have changed; 2 could not ask.";

pub(crate) fn run(args: &ChangesArgs) -> Result<ExitCode> {
    let mut client = ControlClient::connect(&args.node.socket()?)?;
    match (&args.reader, &args.remove) {
        (Some(reader), _) => match &args.confirm {
            Some(point) => confirm(args, &mut client, reader, point),
            None => ask(args, &mut client, reader),
        },
        (None, Some(reader)) => remove(args, &mut client, reader),
        (None, None) => list(args, &mut client),
    }
}

fn ask(args: &ChangesArgs, client: &mut ControlClient, reader: &str) -> Result<ExitCode> {
    let question = ChangesQuestion {
        reader: reader.to_owned(),
        since: args.since.clone(),
        ranges: args.ranges,
    };
    let form = match (args.json, args.null) {
        (true, _) => Form::Json,
        (false, true) => Form::Null,
        (false, false) => Form::Text,
    };
    let mut listing = Listing::new(form, args.only);
    let mut head = ChangesHead::default();
    client.changes(&args.name, &question, &mut |part| match part {
        ChangesPart::Head(begin) => {
            head = begin;
            listing.begin(&head)
        }
        ChangesPart::Entries(entries) => listing.add(&entries),
    })?;
    let listed = listing.end()?;
    if let Some(path) = &args.point_file {
        write_point(path, &head.point)?;
    }
    explain(args, reader, &head, listed);
    Ok(if head.everything.is_some() {
        ExitCode::from(NO)
    } else {
        ExitCode::SUCCESS
    })
}

/// Explains the answer, and names the next step, on standard error.
fn explain(args: &ChangesArgs, reader: &str, head: &ChangesHead, listed: u64) {
    let point = &head.point;
    match (&head.reason, &head.since) {
        (Some(reason), _) => {
            warn(&format!(
                "everything may have changed: {reason}; copy all files"
            ));
        }
        (None, since) => {
            let since = since.as_deref().unwrap_or_default();
            warn(&format!("{} entries since {since}", count(listed)));
        }
    }
    if args.point_file.is_none() {
        let name = &args.name;
        warn(&format!(
            "point {point}\nonce everything is copied: lockstep changes {name} --reader {reader} --confirm {point}"
        ));
    }
}

/// Replaces the file as a whole: a command that is interrupted leaves the point of before.
fn write_point(path: &Path, point: &str) -> Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let written = std::fs::write(&draft, format!("{point}\n"));
    let replaced = written.and_then(|()| std::fs::rename(&draft, path));
    replaced.with_context(|| {
        format!(
            "cannot write the point to {}\n  cure: ask again: nothing is lost",
            path.display()
        )
    })
}

fn confirm(
    args: &ChangesArgs,
    client: &mut ControlClient,
    reader: &str,
    point: &str,
) -> Result<ExitCode> {
    if args.null || args.ranges || args.only.is_some() || args.point_file.is_some() {
        bail!("--confirm asks nothing\n  cure: leave out -0, --ranges, --only and --point-file");
    }
    let command = ReaderCommand::Confirm {
        reader: reader.to_owned(),
        point: point.to_owned(),
    };
    let readers = client.change_readers(&args.name, &command)?;
    let done = format!("the next answer begins at {}\n", point.trim());
    finish(args, &readers, &done)
}

fn remove(args: &ChangesArgs, client: &mut ControlClient, reader: &str) -> Result<ExitCode> {
    let command = ReaderCommand::Remove {
        reader: reader.to_owned(),
    };
    let readers = client.change_readers(&args.name, &command)?;
    finish(args, &readers, &format!("removed {reader}\n"))
}

fn list(args: &ChangesArgs, client: &mut ControlClient) -> Result<ExitCode> {
    let readers = client.change_readers(&args.name, &ReaderCommand::List)?;
    let lines: String = readers.iter().map(line).collect();
    let text = if lines.is_empty() {
        "no change readers on this node\n".to_owned()
    } else {
        lines
    };
    finish(args, &readers, &text)
}

fn finish(args: &ChangesArgs, readers: &[ChangeReaderStatus], text: &str) -> Result<ExitCode> {
    if args.json {
        say_json(&serde_json::json!({ "readers": readers }))?;
    } else {
        say(text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(reader: &ChangeReaderStatus) -> String {
    format!("{}: {}\n", reader.name, describe(reader))
}
