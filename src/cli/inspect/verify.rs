//! `lockstep verify`: compares both nodes of a datastore.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _, stderr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lockstep_driver::report::{Difference, VerifyProgress, VerifyReport};
use lockstepfs::control::ControlClient;

use crate::cli::arguments::RunningNodeArgs;
use crate::cli::outcome::NO;
use crate::cli::terminal::{bytes, count, say, say_json};

/// Interval of progress on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

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
    let mut line = ProgressLine::new();
    let outcome = client.verify(&args.name, &mut |step| line.show(step));
    line.clear();
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

/// One line on the terminal, rewritten in place. Without a terminal there is no line.
struct ProgressLine {
    visible: bool,
    shown: Option<Instant>,
}

impl ProgressLine {
    fn new() -> Self {
        Self {
            visible: stderr().is_terminal(),
            shown: None,
        }
    }

    fn show(&mut self, step: VerifyProgress) {
        let due = self
            .shown
            .is_none_or(|shown| shown.elapsed() >= PROGRESS_INTERVAL);
        if !self.visible || !due {
            return;
        }
        self.shown = Some(Instant::now());
        let total = step
            .inodes_total
            .map(|total| format!(" of {}", count(total)));
        write_line(&format!(
            "compared {}{}, {}",
            count(step.inodes_compared),
            total.unwrap_or_default(),
            bytes(step.bytes_compared)
        ));
    }

    fn clear(&self) {
        if self.shown.is_some() {
            write_line("");
        }
    }
}

/// Writes the progress line. An error of writing must not stop the command.
fn write_line(text: &str) {
    let mut out = stderr();
    let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
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
