//! `lockstep verify`: compares both nodes of a datastore.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::{Difference, VerifyProgress, VerifyReport};
use lockstepfs::control::ControlClient;

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::outcome::NO;
use crate::cli::terminal::{LiveLines, bytes, count, say, say_json};

/// Compare both nodes of a datastore now
///
/// Compares all names, attributes and content, while programs go on writing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// Name of the datastore
    name: String,

    #[command(flatten)]
    node: RunningNodeArgs,

    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockstep verify data
  lockstep verify data --json --control /run/lockstep/a.sock

Exit codes: 0 identical, 1 different, 2 could not compare.";

pub(crate) fn run(args: &VerifyArgs) -> Result<ExitCode> {
    let mut client = ControlClient::connect(&args.node.socket()?)?;
    let mut line = LiveLines::new();
    let outcome = client.verify(&args.name, &mut |step| line.show(&[progress(step)]));
    drop(line);
    let report = outcome?;
    if args.json {
        say_json(&report)?;
    } else {
        say(&text(&report))?;
    }
    Ok(if report.identical {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    })
}

fn text(report: &VerifyReport) -> String {
    let compared = format!(
        "{} names and inodes, {} of content compared",
        count(report.inodes_compared),
        bytes(report.bytes_compared)
    );
    if report.identical {
        return format!("identical on both nodes ({compared})\n");
    }
    let mut text = format!(
        "DIFFERENT: {} differences ({compared})\n",
        count(report.differences_total)
    );
    for difference in &report.differences {
        text.push_str(&difference_line(difference));
    }
    let listed = u64::try_from(report.differences.len()).unwrap_or(u64::MAX);
    if report.differences_total > listed {
        let more = report.differences_total - listed;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  … and {} more", count(more));
    }
    text
}

fn difference_line(difference: &Difference) -> String {
    let path = difference.path.as_deref().unwrap_or("(no name)");
    format!(
        "  {path} (inode {}): {}\n",
        difference.inode, difference.what
    )
}

/// The line on a terminal while the nodes are compared.
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
            }],
        };
        let text = text(&report);
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
