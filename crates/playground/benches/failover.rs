//! How long a client waits when a node fails: `scripts/measure-failover`, which builds the program and asks for root.
//!
//! Each failure is one line on standard error, and the summary is a table for `docs/results/failover.md` on standard
//! output. `docs/benchmarks.md` explains the figures.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use lockstep_playground::{ClientPause, Failure, MeasureOptions, measure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The client-visible pause of failovers
#[derive(Debug, Parser)]
struct Arguments {
    /// The `lockstep` program
    #[arg(long)]
    program: PathBuf,

    /// Directory to work in: a new directory in it is made and removed again
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,

    /// Time from the loss of the connection to the takeover, in milliseconds
    #[arg(long, default_value_t = 1500)]
    failover_after_ms: u64,

    /// Number of failovers by kill
    #[arg(long, default_value_t = 50)]
    kills: u32,

    /// Number of failovers by isolation
    #[arg(long, default_value_t = 50)]
    isolations: u32,

    /// Number of restarts of the process
    #[arg(long, default_value_t = 50)]
    restarts: u32,

    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// The content of a row of the table.
const ROWS: [(Failure, &str, &str); 3] = [
    (
        Failure::Kill,
        "kill of the primary's server",
        "median 2 s, worst 3 s",
    ),
    (
        Failure::Isolation,
        "isolation of the primary's server",
        "worst 8 s",
    ),
    (
        Failure::Restart,
        "restart of the primary's process",
        "no failover",
    ),
];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let failures = [
        (Failure::Kill, arguments.kills),
        (Failure::Isolation, arguments.isolations),
        (Failure::Restart, arguments.restarts),
    ];
    let options = MeasureOptions {
        program: arguments.program,
        dir: arguments.dir,
        failover_after_ms: arguments.failover_after_ms,
        failures: failures.into(),
        stop_signals: vec![SIGHUP, SIGINT, SIGTERM],
    };
    let load_before = load()?;
    let mut pauses = Vec::new();
    measure(&options, |pause| {
        pauses.push(pause);
        // Progress is no result: a closed standard error does not end the measurement.
        let _ = writeln!(std::io::stderr(), "{}", describe(&pause, pauses.len()));
    })?;
    let mut table = table(&pauses);
    writeln!(
        table,
        "\nLoad of the machine (1, 5 and 15 minutes): {load_before} before, {} after.",
        load()?
    )?;
    std::io::stdout()
        .write_all(table.as_bytes())
        .context("cannot print the table")
}

fn describe(pause: &ClientPause, number: usize) -> String {
    let role = if pause.took_over {
        "the other node took over"
    } else {
        "the same node serves"
    };
    let connection = if pause.reconnected {
        "connected again"
    } else {
        "same connection"
    };
    let (failure, ms) = (pause.failure, pause.pause.as_millis());
    format!("{number}: {failure:?}: {ms} ms; {role}; {connection}")
}

fn table(pauses: &[ClientPause]) -> String {
    let mut text =
        "| failure | rounds | median | worst | takeovers | connections lost | target |\n\
         |---|---:|---:|---:|---:|---:|---|\n"
            .to_owned();
    for (failure, name, target) in ROWS {
        let of_kind = || pauses.iter().filter(|pause| pause.failure == failure);
        let mut times: Vec<Duration> = of_kind().map(|pause| pause.pause).collect();
        times.sort_unstable();
        let (Some(median), Some(worst)) = (median(&times), times.last()) else {
            continue;
        };
        let takeovers = of_kind().filter(|pause| pause.took_over).count();
        let lost = of_kind().filter(|pause| pause.reconnected).count();
        let rounds = times.len();
        // A text takes every line.
        let _ = writeln!(
            text,
            "| {name} | {rounds} | {} ms | {} ms | {takeovers} | {lost} | {target} |",
            median.as_millis(),
            worst.as_millis()
        );
    }
    text
}

/// The value in the middle of sorted times, or the mean of the two in the middle.
fn median(sorted: &[Duration]) -> Option<Duration> {
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get((sorted.len() - 1) / 2)?;
    Some((*upper + *lower) / 2)
}

fn load() -> Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg").context("cannot read the load")?;
    let numbers: Vec<&str> = text.split_whitespace().take(3).collect();
    Ok(numbers.join(", "))
}
