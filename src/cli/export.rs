//! `lockstep export`: a node's data as a plain tree, without the node and without its peer.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_fs::export::{ExportSummary, Lost, export};
use lockstepfs::config::Role;

use super::{ConfigArgs, NO, absolute, bytes, count, say, warn};

/// Write a node's data out as a plain directory, offline
///
/// Needs neither the node (stop it first) nor its peer. Keeps modes, owners, times, extended
/// attributes, links and holes, so run it as root. What the destination cannot hold, a name or a large
/// file among it, is left out and told. Space reserved with fallocate is not carried over.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// Name of the datastore
    name: String,

    /// Directory to write to: missing (its parent must exist) or empty. One that is missing is called
    /// DEST.partial until it is complete
    dest: PathBuf,

    #[command(flatten)]
    config: ConfigArgs,

    /// Also write one line per name: path, inode, type, mode, owner, size, times, links, hash. The file
    /// must not exist; it is called FILE.partial until it is complete
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep export data /mnt/rescue/data
  lockstep export data /tmp/data --manifest /tmp/data.manifest

A copy that may lack something (a secondary's that was not in sync, one on a failed disk) is
exported too; a warning says so.

Exit codes: 0 exported, 1 exported without what the destination could not hold, 2 could not export.";

/// Losses that are told one by one; the manifest has them all.
const TOLD_MAX: u64 = 20;

pub(crate) fn run(args: &ExportArgs) -> Result<ExitCode> {
    let config = args.config.load()?;
    let datastore = super::named(&config, &args.name)?;
    let dest = absolute(&args.dest)?;
    let mut told = 0;
    let mut tell = |lost: &Lost| {
        told += 1;
        if told <= TOLD_MAX {
            warn(&format!(
                "not kept: {}: {}: {}",
                lost.name, lost.what, lost.cause
            ));
        }
    };
    let summary = export(&datastore.store, &dest, args.manifest.as_deref(), &mut tell)?;
    for doubt in doubts(&datastore.store, datastore.role) {
        warn(&format!("WARNING: {doubt}"));
    }
    say(&format!(
        "exported {} names, {} of content to {}\n",
        count(summary.names),
        bytes(summary.bytes),
        dest.display()
    ))?;
    Ok(outcome(&summary, args.manifest.is_some()))
}

/// Sums up what the destination could not take.
fn outcome(summary: &ExportSummary, has_manifest: bool) -> ExitCode {
    if summary.lost == 0 {
        return ExitCode::SUCCESS;
    }
    let all = match (summary.lost > TOLD_MAX, has_manifest) {
        (false, _) => "",
        (true, true) => "; the manifest names each (lines that begin with \\lost)",
        (true, false) => "; --manifest FILE would name each",
    };
    let missing = match summary.missing {
        0 => String::new(),
        missing => format!("{} files or directories are MISSING; ", count(missing)),
    };
    warn(&format!(
        "WARNING: {missing}the destination could not take {} names, files or attributes{all}\n  cure: export \
         to a file system that can hold them, such as ext4 or XFS, as root",
        count(summary.lost)
    ));
    ExitCode::from(NO)
}

/// What whoever uses the copy must know.
fn doubts(store: &Path, role: Role) -> Vec<String> {
    lockstep_driver::caveats(store, role).unwrap_or_else(|error| {
        vec![format!(
            "it cannot be told whether this copy is complete: {error}"
        )]
    })
}
