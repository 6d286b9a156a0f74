//! `lockstep verify`: compares both nodes of a datastore, or two copies without their nodes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use lockstep_driver::report::{Difference, VerifyMode, VerifyProgress, VerifyReport};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_verify::offline::{NameDifferenceKind, OfflineCopy, compare_offline};
use lockstepfs::config::Role;
use lockstepfs::control::ControlClient;

use super::caveats::warn_of_caveats;

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::outcome::NO;
use crate::cli::terminal::{LiveLines, bytes, count, say, say_json};

/// Compare both nodes of a datastore now
///
/// Compares all names, attributes and content, while programs go on writing. With --deep, both nodes read
/// content from their disks: bits that have changed there are found although the kernel still has the right
/// ones in its memory. Each node compares the bytes with its own sums, so Lockstep can say which side is wrong.
///
/// With --fast, the sums that both nodes keep stand for the content, and content is read only where the sums differ
/// or say nothing. That finds operations that one node lacks, and no bits that have changed on a disk.
///
/// With --deep --repair, the right side heals the wrong one, block by block, while programs go on. A block of
/// which no side is known to be right stays as it is. Both nodes keep the versions of these blocks aside in
/// .lockstep/bad-blocks in their stores.
///
/// With --offline, compares two copies of which no node is needed: stores of stopped nodes, or their
/// manifests. `lockstep export NAME --manifest FILE` writes the manifest of a store, to be compared on another
/// machine. A store whose copy may be incomplete or old is compared too, with a warning.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools)] // each is an option of its own
pub(crate) struct VerifyArgs {
    /// Name of the datastore
    #[arg(required_unless_present = "offline")]
    name: Option<String>,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Read content from the disks of both nodes, past the memory of their kernels
    #[arg(long, conflicts_with = "offline")]
    deep: bool,

    /// Compare the sums of files in the place of their content
    #[arg(long, conflicts_with_all = ["deep", "offline"])]
    fast: bool,

    /// Heal the wrong side where the right one is known
    #[arg(long, requires = "deep")]
    repair: bool,

    /// Compare two copies without their nodes, each the directory of a store or the file of a manifest
    #[arg(long, num_args = 2, value_names = ["COPY", "COPY"], conflicts_with_all = ["name", "config", "control"])]
    offline: Option<Vec<PathBuf>>,

    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep verify data
  lockstep verify data --fast
  lockstep verify data --deep
  lockstep verify data --deep --repair
  lockstep verify data --json --control /run/lockstep/a.sock
  lockstep verify --offline /var/lib/lockstep/data /tmp/data-of-b.manifest

Exit codes: 0 identical (also: everything was healed), 1 different, 2 could not compare.";

/// Names of copies between two lines on a terminal.
const NAMES_PER_LINE: u64 = 64;

pub(crate) fn run(args: &VerifyArgs) -> Result<ExitCode> {
    let report = match (args.offline.as_deref(), &args.name) {
        (Some([first, second]), _) => compare_copies([first, second])?,
        (_, Some(name)) => compare_nodes(args, name)?,
        (_, None) => bail!("name a datastore, or two copies after --offline"),
    };
    if args.json {
        say_json(&report)?;
    } else {
        let identical = match args.offline {
            None => "identical on both nodes",
            Some(_) => "identical",
        };
        say(&text(&report, identical))?;
    }
    Ok(if report.identical {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    })
}

fn compare_nodes(args: &VerifyArgs, name: &str) -> Result<VerifyReport> {
    let mut client = ControlClient::connect(&args.node.socket()?)?;
    let mut line = LiveLines::new();
    let mode = match (args.deep, args.repair) {
        (_, true) => VerifyMode::Repair,
        (true, false) => VerifyMode::Disk,
        (false, false) if args.fast => VerifyMode::Sums,
        (false, false) => VerifyMode::Memory,
    };
    Ok(client.verify(name, mode, &mut |step| line.show(&[progress(step)]))?)
}

fn compare_copies(paths: [&PathBuf; 2]) -> Result<VerifyReport> {
    let copies = paths.map(|path| OfflineCopy::at(path));
    let mut line = LiveLines::new();
    let report = compare_offline(&copies, &mut |so_far| {
        if so_far.names % NAMES_PER_LINE == 0 {
            let step = VerifyProgress {
                inodes_compared: so_far.names,
                inodes_total: None,
                bytes_compared: so_far.bytes,
            };
            line.show(&[progress(step)]);
        }
    })?;
    for path in paths {
        warn_of(path);
    }
    Ok(VerifyReport {
        identical: report.is_identical(),
        inodes_compared: report.names,
        bytes_compared: report.bytes,
        differences_total: report.total,
        differences: report
            .differences
            .into_iter()
            .map(|difference| Difference {
                inode: difference.ino,
                what: in_words(&difference.what, paths),
                path: Some(difference.path),
                blocks: None,
            })
            .collect(),
        ..VerifyReport::default()
    })
}

/// Says why the copy in a store may be incomplete or old. A manifest does not tell.
fn warn_of(copy: &Path) {
    if copy.is_dir() {
        warn_of_caveats(Some(&copy.display().to_string()), copy, Role::Secondary);
    }
}

fn in_words(what: &NameDifferenceKind, [first, second]: [&PathBuf; 2]) -> String {
    match what {
        NameDifferenceKind::OnlyIn { first: is_first } => {
            let only = if *is_first { first } else { second };
            format!("exists in {} only", only.display())
        }
        NameDifferenceKind::Column { name, values } => {
            let [of_first, of_second] = values;
            let (first, second) = (first.display(), second.display());
            format!("{name} is {of_first} in {first} and {of_second} in {second}")
        }
    }
}

fn text(report: &VerifyReport, identical: &str) -> String {
    let compared = format!(
        "{} names and inodes, {} of content compared",
        count(report.inodes_compared),
        bytes(report.bytes_compared)
    );
    let found = count(report.differences_total);
    let mut text = match (report.identical, report.differences_total) {
        (true, 0) => format!("{identical} ({compared})\n"),
        (true, _) => format!("{identical} now: {found} differences healed ({compared})\n"),
        (false, _) => format!(
            "DIFFERENT: {found} differences{} ({compared})\n",
            healed(report)
        ),
    };
    for difference in &report.differences {
        text.push_str(&difference_line(difference));
    }
    let listed = u64::try_from(report.differences.len()).unwrap_or(u64::MAX);
    if report.differences_total > listed {
        let more = report.differences_total - listed;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  … and {} more", count(more));
    }
    if report.unproved_blocks > 0 {
        let bytes = bytes(report.unproved_blocks.saturating_mul(BLOCK_BYTES as u64));
        let _ = writeln!(
            text,
            "No sum of its node said anything of {bytes} on the disks. Blocks that both have equal have sums now."
        );
    }
    if let Some(folder) = &report.kept_in {
        let _ = writeln!(
            text,
            "Versions of these blocks: {folder} in the store of each node."
        );
    }
    text
}

/// The number of differences that are no longer there, if there are some.
fn healed(report: &VerifyReport) -> String {
    match report.healed_total {
        0 => String::new(),
        healed => format!(", {} of them healed", count(healed)),
    }
}

fn difference_line(difference: &Difference) -> String {
    let path = difference.path.as_deref().unwrap_or("(no name)");
    format!(
        "  {path} (inode {}): {}\n",
        difference.inode, difference.what
    )
}

/// The line on a terminal while nodes or copies are compared.
fn progress(step: VerifyProgress) -> String {
    let total = step
        .inodes_total
        .map(|total| format!(" of {}", count(total)));
    format!(
        "compared {}{}, {}",
        count(step.inodes_compared),
        total.unwrap_or_default(),
        bytes(step.bytes_compared)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_listed() {
        let report = VerifyReport {
            identical: false,
            inodes_compared: 1200,
            bytes_compared: 2048,
            differences_total: 3,
            differences: vec![Difference {
                inode: 7,
                path: Some("/a".to_owned()),
                what: "mode 644 here, 600 there".to_owned(),
                blocks: None,
            }],
            ..VerifyReport::default()
        };
        let text = text(&report, "identical");
        assert!(
            text.starts_with("DIFFERENT: 3 differences (1,200 names"),
            "{text}"
        );
        assert!(
            text.contains("  /a (inode 7): mode 644 here, 600 there\n"),
            "{text}"
        );
        assert!(text.ends_with("  … and 2 more\n"), "{text}");
    }
}
