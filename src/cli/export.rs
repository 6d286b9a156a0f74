//! `lockstep export`: a node's data as a plain tree, without the node and without its peer.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_fs::export::{ExportSummary, export};
use lockstepfs::config::Role;

use super::{ConfigArgs, absolute, bytes, count, say, warn};

/// Write a node's data out as a plain directory, offline
///
/// Needs neither the node (stop it first) nor its peer. Keeps modes, owners, times, extended
/// attributes, links and holes, so run it as root.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// Name of the datastore
    name: String,

    /// Directory to write to: missing (its parent must exist) or empty
    dest: PathBuf,

    #[command(flatten)]
    config: ConfigArgs,

    /// Also write one line per name: path, inode, type, mode, owner, size, times, links, hash
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep export data /mnt/rescue/data
  lockstep export data /tmp/data --manifest /tmp/data.manifest

A copy that may lack something (a secondary's that was not in sync, one on a failed disk) is
exported too; a warning says so.

Exit codes: 0 exported, 2 could not export.";

pub(crate) fn run(args: &ExportArgs) -> Result<ExitCode> {
    let config = args.config.load()?;
    let datastore = super::named(&config, &args.name)?;
    let dest = absolute(&args.dest)?;
    let summary = write_out(&datastore.store, &dest, args.manifest.as_deref())?;
    for doubt in doubts(&datastore.store, datastore.role) {
        warn(&format!("WARNING: {doubt}"));
    }
    say(&format!(
        "exported {} names, {} of content to {}\n",
        count(summary.names),
        bytes(summary.bytes),
        dest.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What whoever uses the copy must know.
fn doubts(store: &Path, role: Role) -> Vec<String> {
    lockstepfs::datastore::doubts(store, role).unwrap_or_else(|error| {
        vec![format!(
            "it cannot be told whether this copy is complete: {error}"
        )]
    })
}

/// Writes the store out as a plain tree.
pub(crate) fn write_out(
    store: &Path,
    dest: &Path,
    manifest: Option<&Path>,
) -> Result<ExportSummary> {
    Ok(export(store, dest, manifest)?)
}
