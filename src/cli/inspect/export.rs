//! `lockstep export`: writes a node's data as a plain directory tree, without the node and without its peer; or has a running node write a snapshot.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use lockstep_fs::export::{ExportError, ExportSource, ExportSummary, Lost, export, write_list};
use lockstep_fs::seed::SeedProgress;
use lockstepfs::control::{ControlClient, ExportPlace, ExportQuestion};

use super::caveats::warn_of_caveats;
use crate::cli::arguments::{ConfigArgs, absolute, find_datastore};
use crate::cli::outcome::NO;
use crate::cli::terminal::{LiveLines, bytes, count, duration, say, warn};

/// Write a node's data out as a plain directory
///
/// With --at a running node writes the state of a snapshot, on either server, while programs go on. Otherwise stop the node first; its
/// peer is not needed. Keeps modes, owners, times, extended
/// attributes, links and holes, so run it as root. Names, files and attributes that the destination cannot
/// hold, such as a very large file, are left out and reported. Space reserved with fallocate is not reserved
/// in the copy.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// Name of the datastore
    name: String,

    /// Directory to write to: empty, or missing (its parent must exist). A missing directory is called
    /// DEST.partial until it is complete. Without DEST, only the manifest is written
    #[arg(required_unless_present = "manifest")]
    dest: Option<PathBuf>,

    #[command(flatten)]
    config: ConfigArgs,

    /// Write the state that this snapshot shows, also while the node runs: `fallback` is the whole copy from before a resync that has not
    /// ended
    #[arg(long, value_name = "SNAPSHOT")]
    at: Option<String>,

    /// Write a seed instead of a tree: the snapshot of --at as the first copy for another server, which `lockstep import` makes a
    /// store of there. The node must run
    #[arg(long, requires = "at", requires = "dest", conflicts_with = "manifest")]
    seed: bool,

    /// Write one line per name: path, inode, type, mode, owner, size, times, links, hash. The file
    /// must not exist; it is called FILE.partial until it is complete
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep export data /mnt/rescue/data
  lockstep export data /tmp/data --manifest /tmp/data.manifest
  lockstep export data --manifest /tmp/data.manifest     for `lockstep verify --offline`
  lockstep export data /mnt/backup/data --at nightly     a snapshot, beside the running node
  lockstep export data /mnt/rescue/data --at fallback    the whole copy from before a resync
  lockstep export data /mnt/disk/seed --at today --seed  a first copy for another server

A copy that may be incomplete (on a secondary that was not in sync, or on a failed disk) is
exported too, with a warning.

Exit codes: 0 exported, 1 exported without the reported losses, 2 could not export.";

const MIXED: &str = "\
WARNING: a resync had begun to change this copy, and had not ended: its files are of different moments
  cure: export the whole copy from before that resync, with --at fallback";

const TORN: &str = "\
WARNING: this snapshot is torn: its machine has lost its power before its bytes were on stable storage, so files may have bytes of an
earlier moment
  cure: export it on the other node, if `lockstep snapshot list` calls it settled there";

/// Is told each loss.
type ReportLoss<'a> = dyn FnMut(&Lost) + 'a;

/// Most losses that are printed; the manifest lists all.
const PRINTED_LOSSES_MAX: u64 = 20;

pub(crate) fn run(args: &ExportArgs) -> Result<ExitCode> {
    let config = args.config.load()?;
    let datastore = find_datastore(&config, &args.name)?;
    if args.seed {
        return write_seed(args, &config.control);
    }
    let source = ExportSource {
        store: &datastore.store,
        at: args.at.as_deref(),
    };
    let manifest = args.manifest.as_deref();
    let outcome = match (&args.dest, manifest) {
        (Some(dest), _) => {
            let dest = absolute(dest)?;
            let copy = |report: &mut ReportLoss<'_>| match export(source, &dest, manifest, report) {
                Err(ExportError::InUse { .. }) if args.at.is_some() => {
                    by_node(args, &config.control, &dest, report)
                }
                exported => Ok(exported?),
            };
            say_copied(copy, &dest, manifest.is_some())
        }
        (None, Some(manifest)) => write_manifest(source, manifest),
        (None, None) => bail!("name a directory, or a file after --manifest"),
    }?;
    // A snapshot is whole whatever has become of the copy since.
    if args.at.is_none() {
        warn_of_caveats(None, &datastore.store, datastore.role);
    }
    Ok(outcome)
}

/// Has the node that runs write a snapshot.
fn by_node(
    args: &ExportArgs,
    control: &Path,
    dest: &Path,
    report: &mut ReportLoss<'_>,
) -> Result<ExportSummary> {
    let question = question(args, dest)?;
    let mut node = ControlClient::connect(control)?;
    Ok(node.export(&args.name, question, report)?)
}

/// The snapshot and the places, as the node has to see them.
fn question(args: &ExportArgs, dest: &Path) -> Result<ExportQuestion> {
    let place = |path: &Path| {
        let place = ExportPlace::of(path);
        place.with_context(|| format!("cannot look at the directory above {}", path.display()))
    };
    let manifest = args.manifest.as_deref().map(absolute).transpose()?;
    Ok(ExportQuestion {
        at: args.at.clone().unwrap_or_default(),
        dest: place(dest)?,
        manifest: manifest.as_deref().map(place).transpose()?,
    })
}

/// Has the node that runs write a seed.
fn write_seed(args: &ExportArgs, control: &Path) -> Result<ExitCode> {
    let dest = absolute(args.dest.as_deref().context("name a directory")?)?;
    let question = question(args, &dest)?;
    let mut node = ControlClient::connect(control)?;
    let (mut lines, began) = (LiveLines::new(), Instant::now());
    let mut progress = |done: SeedProgress| {
        let since = duration(began.elapsed());
        lines.show(&[format!("{}, {since}", seed_line(&done))]);
    };
    let written = node.export_seed(&args.name, question, &mut progress);
    drop(lines);
    let summary = written?;
    say(&format!(
        "wrote a seed of {} files, {} of content to {}\n",
        count(summary.files),
        bytes(summary.bytes),
        dest.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn seed_line(done: &SeedProgress) -> String {
    format!(
        "writing: {} of {} files, {} of {}, holes included",
        count(done.files),
        count(done.files_total),
        bytes(done.bytes),
        bytes(done.bytes_total)
    )
}

fn write_manifest(source: ExportSource<'_>, manifest: &Path) -> Result<ExitCode> {
    let names = write_list(source, manifest)?;
    say(&format!(
        "listed {} names in {}\n",
        count(names),
        manifest.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Copies, and says what was copied.
fn say_copied(
    copy: impl FnOnce(&mut ReportLoss<'_>) -> Result<ExportSummary>,
    dest: &Path,
    has_manifest: bool,
) -> Result<ExitCode> {
    let mut losses = 0;
    let mut report = |lost: &Lost| {
        losses += 1;
        if losses <= PRINTED_LOSSES_MAX {
            warn(&format!(
                "not kept: {}: {}: {}",
                lost.name, lost.what, lost.cause
            ));
        }
    };
    let summary = copy(&mut report)?;
    say(&format!(
        "exported {} names, {} of content to {}\n",
        count(summary.names),
        bytes(summary.bytes),
        dest.display()
    ))?;
    if summary.is_mixed {
        warn(MIXED);
    }
    if summary.is_torn {
        warn(TORN);
    }
    Ok(outcome(&summary, has_manifest))
}

/// Prints a summary of the losses, and returns the exit code.
fn outcome(summary: &ExportSummary, has_manifest: bool) -> ExitCode {
    if summary.lost == 0 {
        return ExitCode::SUCCESS;
    }
    let list = match (summary.lost > PRINTED_LOSSES_MAX, has_manifest) {
        (false, _) => "",
        (true, true) => "; the manifest lists all (lines that begin with \\lost)",
        (true, false) => "; --manifest FILE would list all",
    };
    let missing = match summary.missing {
        0 => String::new(),
        missing => format!("{} files or directories are MISSING; ", count(missing)),
    };
    warn(&format!(
        "WARNING: {missing}the destination could not hold {} names, files or attributes{list}\n  cure: export \
         to a file system that can hold them, such as ext4 or XFS, as root",
        count(summary.lost)
    ));
    ExitCode::from(NO)
}
