//! Lockstep beside other systems on this machine: the same workloads on a plain directory, on an unmirrored
//! playground, on a mirrored one, and on a Gluster replica where it is installed.
//!
//! `cargo bench --bench compare -- --help` lists the options; `docs/benchmarks.md` explains the figures. The systems
//! take turns within each round, so that noise of the machine hits all alike. Every other round goes through the
//! systems backwards, so that no system profits from its place. Every figure is the median of the rounds. Floors are
//! printed, never asserted.
//!
//! The program must never leave a process, mount or file behind, also after an interruption: every started process
//! has an owner that ends it when dropped, and SIGINT only sets a flag that is checked between steps.

mod fio;
mod gluster;
mod hand_over;
mod options;
mod playground;
mod process;
mod report;
mod small_files;
mod system;
mod workload;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use options::Options;
use report::Report;
use system::System;
use workload::Workload;

fn main() -> Result<()> {
    let Some(options) = Options::from_arguments()? else {
        return Ok(());
    };
    let interrupted = watch_signals()?;
    let work = tempfile::Builder::new()
        .prefix("compare-")
        .tempdir_in(&options.dir)
        .with_context(|| format!("make a directory in {}", options.dir.display()))?;
    let systems = system::start_all(&options, work.path())?;
    let workloads = workload::chosen(&options, work.path())?;
    let report = measure(&options, &systems, &workloads, &interrupted)?;
    print!("{}", report.markdown(options.two_machines));
    if options.two_machines {
        for block_kib in workload::BLOCKS_KIB {
            let workload = workload::mirrored_write(&options, block_kib).name();
            let hand_over = hand_over::microseconds(block_kib)?;
            print!("{}", report.at_best(&workload, hand_over));
        }
    }
    if let Some(file) = &options.json {
        write_json(file, &report)?;
    }
    Ok(())
}

fn watch_signals() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("watch for signals")?;
    }
    Ok(flag)
}

fn measure(
    options: &Options,
    systems: &[System],
    workloads: &[Workload],
    interrupted: &AtomicBool,
) -> Result<Report> {
    let mut report = Report::new(systems);
    for workload in workloads {
        for round in 1..=options.rounds {
            for system in in_turn(systems, round) {
                if interrupted.load(Ordering::Relaxed) {
                    bail!("interrupted");
                }
                eprintln!(
                    "{}: round {round}/{} on {}",
                    workload.name(),
                    options.rounds,
                    system.name
                );
                measure_once(workload, system, &mut report)?;
            }
        }
    }
    Ok(report)
}

/// The systems in the order of a round.
fn in_turn(systems: &[System], round: usize) -> Vec<&System> {
    let mut turns: Vec<&System> = systems.iter().collect();
    if round.is_multiple_of(2) {
        turns.reverse();
    }
    turns
}

/// Runs one workload on one system, in a fresh directory that is removed afterwards.
fn measure_once(workload: &Workload, system: &System, report: &mut Report) -> Result<()> {
    let place = tempfile::Builder::new()
        .prefix("run-")
        .tempdir_in(&system.dir)
        .with_context(|| format!("make a directory in {}", system.dir.display()))?;
    // Writes back the data of the previous run, so that this run does not pay for it.
    rustix::fs::sync();
    let figures = workload
        .run(place.path(), system)
        .with_context(|| format!("{} on {}", workload.name(), system.name))?;
    for figure in figures {
        report.add(&system.name, figure);
    }
    place.close().context("remove what a run wrote")
}

fn write_json(file: &Path, report: &Report) -> Result<()> {
    let text = serde_json::to_string_pretty(&report.json()).context("encode the report")?;
    std::fs::write(file, text).with_context(|| format!("write {}", file.display()))
}
