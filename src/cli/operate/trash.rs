//! `lockstep trash`: lists what programs have deleted, gives it back, and empties the trash.

mod moment;

use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use lockstep_driver::report::{
    RestoreQuestion, TrashAnswer, TrashCommand, TrashEntry, TrashRestored,
};
use lockstepfs::control::ControlClient;

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::terminal::{self, path_bytes, printable, say, say_json, warn};

/// List, give back and free what programs have deleted
///
/// While the datastore has `trash` in its configuration, a file that loses its last name, and a directory that is removed, are kept for a
/// time: with their content, attributes and inode numbers, on both servers. A file that is replaced by a rename is kept as well.
///
/// Ask the primary; `list` answers on both nodes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TrashArgs {
    #[command(subcommand)]
    action: TrashAction,
}

#[derive(Debug, Subcommand)]
enum TrashAction {
    /// List what is in the trash, the newest last
    List(TrashListArgs),
    /// Give a file its name back, or a directory with the files that were deleted from it
    Restore(RestoreArgs),
    /// Free what is in the trash, on both nodes
    Empty(EmptyArgs),
}

#[derive(Debug, Args)]
struct TrashListArgs {
    /// Name of the datastore
    datastore: String,

    /// Only this path, and the paths below it
    path: Option<PathBuf>,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print only paths, each with a zero byte behind it, for programs
    #[arg(short = '0', long = "print0", conflicts_with = "json")]
    zero: bool,
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// Name of the datastore
    datastore: String,

    /// The path at which it was deleted: from the mount directory, or the whole path
    #[arg(required_unless_present = "inode")]
    path: Option<PathBuf>,

    /// The inode number in the list, in place of a path
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["path", "at"])]
    inode: Option<u64>,

    /// The newest one that was deleted at this moment or before, in place of the newest one
    #[arg(long, value_name = "TIME", value_parser = moment::read, allow_hyphen_values = true)]
    at: Option<i64>,

    /// Of a directory, only what was deleted at this moment or later
    #[arg(long, value_name = "TIME", value_parser = moment::read)]
    since: Option<i64>,

    /// Another path for it, in a directory that exists
    #[arg(long, value_name = "PATH")]
    to: Option<PathBuf>,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct EmptyArgs {
    /// Name of the datastore
    datastore: String,

    /// Only what was deleted before this moment
    #[arg(long, value_name = "TIME", value_parser = moment::read)]
    before: Option<i64>,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep trash list data                                     all that was deleted
  lockstep trash list data sites/shop                          the same below a directory
  lockstep trash restore data sites/shop                       a directory, with what was deleted from it
  lockstep trash restore data notes.txt --at 2h                as it was deleted two hours ago or before
  lockstep trash restore data notes.txt --to notes-old.txt     under another name
  lockstep trash empty data --before 1d                        free what was deleted more than a day ago

TIME is a time in UTC such as 2026-11-30T12:00:00Z, a day such as 2026-11-30, or a time ago such as 90m, 2h or 7d.

A directory comes back with the newest file of each name that was deleted from it before. --since leaves out what was deleted long
before. If a directory is still there, `restore` gives back what was deleted from it.

Exit codes: 0 done; 1 something below the directory stays in the trash, since another file has its name; 2 could not be done.";

pub(crate) fn run(args: &TrashArgs) -> Result<ExitCode> {
    match &args.action {
        TrashAction::List(list) => run_list(list),
        TrashAction::Restore(restore) => run_restore(restore),
        TrashAction::Empty(empty) => run_empty(empty),
    }
}

fn run_list(args: &TrashListArgs) -> Result<ExitCode> {
    let mut client = ControlClient::connect(&args.node.socket()?)?;
    let below = match &args.path {
        Some(path) => Some(in_datastore(&mut client, &args.datastore, path)?),
        None => None,
    };
    let mut entries = all_entries(&mut client, &args.datastore)?;
    if let Some(below) = &below {
        entries.retain(|entry| is_at_or_below(&bytes_of(entry), below));
    }
    entries.sort_by_key(|entry| (entry.deleted_secs, order_of(entry)));
    if args.json {
        say_json(&serde_json::json!({ "entries": entries }))?;
    } else if args.zero {
        let mut out = std::io::stdout().lock();
        for entry in &entries {
            out.write_all(&bytes_of(entry))?;
            out.write_all(&[0])?;
        }
        out.flush()?;
    } else {
        say(&table(&entries))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The whole list of a node.
fn all_entries(client: &mut ControlClient, datastore: &str) -> Result<Vec<TrashEntry>> {
    let (mut entries, mut next) = (Vec::new(), Some(0));
    while let Some(from) = next {
        let answer = client.trash(datastore, &TrashCommand::List { from })?;
        let TrashAnswer::Page(page) = answer else {
            bail!(
                "the node has given another answer than a list\n  cure: use the `lockstep` of the same version as the node"
            );
        };
        entries.extend(page.entries);
        next = page.next.filter(|next| *next > from);
    }
    Ok(entries)
}

fn run_restore(args: &RestoreArgs) -> Result<ExitCode> {
    let mut client = ControlClient::connect(&args.node.socket()?)?;
    let mut path_of = |path: &Option<PathBuf>| match path {
        Some(path) => in_datastore(&mut client, &args.datastore, path).map(Some),
        None => Ok(None),
    };
    let question = RestoreQuestion {
        path: path_of(&args.path)?.unwrap_or_default(),
        inode: args.inode,
        at: args.at,
        since: args.since,
        to: path_of(&args.to)?,
    };
    let answer = client.trash(&args.datastore, &TrashCommand::Restore(question))?;
    let TrashAnswer::Restored(restored) = answer else {
        bail!(
            "the node has given another answer than that of a restore\n  cure: use the `lockstep` of the same version as the node"
        );
    };
    if args.json {
        say_json(&restored)?;
    } else {
        say(&restored_text(&restored))?;
        for path in &restored.skipped {
            warn(&format!(
                "stays in the trash, since another file has its name: {}",
                printable(path)
            ));
        }
    }
    Ok(ExitCode::from(u8::from(restored.skipped_total > 0)))
}

fn run_empty(args: &EmptyArgs) -> Result<ExitCode> {
    let mut client = ControlClient::connect(&args.node.socket()?)?;
    let before = args.before;
    let answer = client.trash(&args.datastore, &TrashCommand::Empty { before })?;
    let TrashAnswer::Emptied(count) = answer else {
        bail!(
            "the node has given another answer than a count\n  cure: use the `lockstep` of the same version as the node"
        );
    };
    if args.json {
        say_json(&serde_json::json!({ "emptied": count }))?;
    } else {
        let count = terminal::count(count);
        say(&format!(
            "{count} files and directories have left the trash; their space is being freed\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A path of an argument as a path from the root of the datastore. A whole path is one below the mount of the node.
fn in_datastore(client: &mut ControlClient, datastore: &str, path: &Path) -> Result<Vec<u8>> {
    if !path.is_absolute() {
        return Ok(path.as_os_str().as_bytes().to_vec());
    }
    let status = client.status()?;
    let found = status
        .datastores
        .iter()
        .find(|it| it.settings.name == datastore);
    let Some(found) = found else {
        bail!(
            "the node has no datastore named {datastore}\n  cure: see the names in `lockstep status`"
        );
    };
    let mount = found.settings.mount.clone().unwrap_or_default();
    match path.strip_prefix(&mount) {
        Ok(inside) if !mount.is_empty() => Ok(inside.as_os_str().as_bytes().to_vec()),
        _ => bail!(
            "{} is not below the mount of {datastore}\n  cure: name the path from the mount directory on, without a slash in front",
            path.display()
        ),
    }
}

fn bytes_of(entry: &TrashEntry) -> Vec<u8> {
    path_bytes(&entry.path, entry.path_hex.as_deref())
}

/// Generation and sequence of the operation that has deleted an entry.
fn order_of(entry: &TrashEntry) -> (u64, u64) {
    let (generation, sequence) = entry.osn.split_once('.').unwrap_or_default();
    (
        generation.parse().unwrap_or(0),
        sequence.parse().unwrap_or(0),
    )
}

fn is_at_or_below(path: &[u8], directory: &[u8]) -> bool {
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    let rest = path.strip_prefix(directory);
    directory.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// One line for each entry.
fn table(entries: &[TrashEntry]) -> String {
    if entries.is_empty() {
        return "nothing in the trash\n".to_owned();
    }
    let line = |entry: &TrashEntry| {
        let TrashEntry {
            inode,
            path,
            kind,
            size,
            deleted,
            ..
        } = entry;
        let path = printable(path);
        let what = if kind == "file" {
            terminal::bytes(*size)
        } else {
            kind.clone()
        };
        format!("{deleted}  {what:>11}  {inode:>8}  {path}\n")
    };
    entries.iter().map(line).collect()
}

fn restored_text(restored: &TrashRestored) -> String {
    let path = printable(&restored.path);
    let path = if path.is_empty() {
        "the mount directory"
    } else {
        &path
    };
    let skipped = match restored.skipped_total {
        0 => String::new(),
        total => format!("; {} stay in the trash", terminal::count(total)),
    };
    match restored.restored {
        1 if skipped.is_empty() => format!("{path} is back\n"),
        count => format!(
            "{path} is back: {} files and directories{skipped}\n",
            terminal::count(count)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: &str) -> TrashEntry {
        TrashEntry {
            inode: 42,
            path: path.to_owned(),
            kind: kind.to_owned(),
            size: 2048,
            deleted: "2026-11-30T12:00:00Z".to_owned(),
            osn: "2.13".to_owned(),
            ..TrashEntry::default()
        }
    }

    #[test]
    fn a_list_has_a_line_for_each_entry() {
        let entries = [entry("a/b\n", "file"), entry("a", "directory")];
        assert_eq!(
            table(&entries),
            "2026-11-30T12:00:00Z     2.00 KiB        42  a/b\\n\n\
             2026-11-30T12:00:00Z    directory        42  a\n"
        );
        assert_eq!(table(&[]), "nothing in the trash\n");
        assert_eq!(order_of(&entries[0]), (2, 13));
    }

    #[test]
    fn a_path_is_below_itself_and_its_directories() {
        for (path, directory, is_below) in [
            ("a/b", "a", true),
            ("a/b", "a/", true),
            ("a", "a", true),
            ("ab", "a", false),
            ("a", "", true),
        ] {
            let found = is_at_or_below(path.as_bytes(), directory.as_bytes());
            assert_eq!(found, is_below, "{path} {directory}");
        }
    }

    #[test]
    fn a_restore_says_what_is_back() {
        let mut restored = TrashRestored {
            path: "a".to_owned(),
            restored: 1,
            ..TrashRestored::default()
        };
        assert_eq!(restored_text(&restored), "a is back\n");
        restored.restored = 12;
        restored.skipped_total = 2;
        let text = "a is back: 12 files and directories; 2 stay in the trash\n";
        assert_eq!(restored_text(&restored), text);
    }
}
