//! `lockstep demo`: shows the main promise on this machine in about a minute.
//!
//! The demo writes real data into a mirrored directory, deletes a part, and brings that back from a snapshot (`snapshot`). While
//! programs and a client write, it kills the secondary with SIGKILL, then the server of the primary, and then the process of the new
//! primary alone (`failover`). At the end a bit of the secondary's disk flips (`rot`), its server loses power (`power`), and the
//! primary dies in the middle of a resync (`resync`). The demo checks each statement before it prints the statement, and fails if a
//! check fails.

mod database;
mod failover;
mod files;
mod power;
mod resync;
mod rot;
mod show;
mod snapshot;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::cluster::{FailoverCluster, state_line};
use crate::config::DATASTORE;
use crate::options::{ClusterOptions, FAILOVER_AFTER_MS, PlaygroundOptions, ServerName};
use crate::playground::Playground;
use crate::records::WrittenRecords;

use database::{DatabaseWriter, Ledger};
use files::{DemoFiles, LastFile};
use rot::FlippedBit;
use show::{Show, count, duration, milliseconds, size};

/// How long programs write before, between and after the events.
const WRITING_TIME: Duration = Duration::from_secs(1);
/// Exit code for a failed check.
const NO: u8 = 1;
/// Exit code of a program that Ctrl-C has ended, as shells give it.
const INTERRUPTED: u8 = 130;

/// See it work on this machine, in about a minute
///
/// Runs a primary, a secondary and a witness, and writes files, a database and a large file into the mirrored
/// directory. It deletes a part, and brings that back from a snapshot. While a client writes, the demo kills the secondary, then the primary, and then a process alone. It shows
/// how long the client waited, brings each of them back, and checks that nothing is lost. Then it flips a bit on the disk of
/// the secondary, cuts the power of its server, and kills the primary in the middle of a resync.
/// Needs root, /dev/fuse and 1 GiB of space, and leaves nothing behind.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// Directory to work in: a new directory in it is made and removed again [default: $TMPDIR, or
    /// /tmp]
    #[arg(long)]
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  lockstep demo
  lockstep demo --dir /var/tmp

Exit codes: 0 everything is as it should be, 1 something is not, 2 could not start, 130 interrupted.";

/// Runs the demo; one of `stop_signals` ends it.
pub fn run(args: &DemoArgs, stop_signals: &[i32]) -> Result<ExitCode> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let work_dir = tempfile::Builder::new()
        .prefix("lockstep-demo-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let show = Show::new();
    let started = Instant::now();
    let signals = Signals::new(stop_signals)?;
    let Some(demo) = Demo::start(&show, work_dir, signals, &interrupted)? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    Ok(match demo.play() {
        Ok(()) => {
            show.end(&format!(
                "Everything is as it should be, after {}.",
                duration(started.elapsed())
            ));
            ExitCode::SUCCESS
        }
        Err(_) if interrupted.load(Ordering::Relaxed) => {
            show.end("Stopped as you asked; everything is cleaned up.");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            show.bad(&format!("{error:#}"));
            ExitCode::from(NO)
        }
    })
}

/// The running cluster and its directory. Fields are dropped in this order: the mounts must be gone before their
/// directory is removed.
struct Demo<'s> {
    cluster: FailoverCluster,
    work_dir: TempDir,
    show: &'s Show,
}

impl<'s> Demo<'s> {
    fn start(
        show: &'s Show,
        work_dir: TempDir,
        mut signals: Signals,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Option<Self>> {
        let options = PlaygroundOptions {
            cluster: Some(ClusterOptions {
                failover_after_ms: FAILOVER_AFTER_MS,
                can_isolate: false,
            }),
            own_disks: true,
            ..PlaygroundOptions::new(&work_dir.path().join("play"))?
        };
        let mut asked_to_stop = || signals.pending().next().is_some();
        let Some(playground) = Playground::start(&options, &mut asked_to_stop)? else {
            return Ok(None);
        };
        watch_signals(signals, &playground, interrupted)?;
        Ok(Some(Self {
            cluster: FailoverCluster::start(playground, Arc::clone(interrupted))?,
            work_dir,
            show,
        }))
    }

    fn play(mut self) -> Result<()> {
        self.introduce()?;
        let files = self.write_files()?;
        let ledger = self.make_database()?;
        self.compare("Do both nodes hold the same?")?;
        self.take_a_deletion_back(&files)?;
        self.start_client()?;
        let ledger = self.lose_the_secondary(ledger)?;
        self.lose_the_primary()?;
        self.lose_a_process()?;
        let records = self.cluster.finish_client()?;
        self.compare("Do both nodes still hold the same?")?;
        self.heal_a_flipped_bit(&files)?;
        self.show.step("Is everything there that was acknowledged?");
        check_all(self.show, &self.cluster.mount()?, &files, records, &ledger)?;
        let last = self.lose_the_power_of_the_secondary()?;
        self.lose_the_primary_in_a_resync(&files, records, &ledger)?;
        self.read_secondary_alone(&files, records, &ledger, last.as_ref())
    }

    fn introduce(&mut self) -> Result<()> {
        self.show
            .title("Lockstep: one directory, identical on two servers at every moment.");
        self.show
            .note("this machine plays two servers, and the witness on a third one");
        for (name, word) in [(ServerName::A, "primary"), (ServerName::B, "secondary")] {
            let node = self.cluster.playground.node(name)?;
            let (name, pid) = (node.name(), node.pid());
            let (store, mount) = (node.store().display(), node.plan.mount.display());
            self.show.note(&format!(
                "node {name} is the {word}: process {pid}, store {store}, mounted at {mount}"
            ));
        }
        let witness = self.cluster.playground.witness_pid();
        self.show.note(&format!(
            "the witness decides which node serves when they lose each other: process {}",
            witness.unwrap_or_default()
        ));
        Ok(())
    }

    fn write_files(&self) -> Result<DemoFiles> {
        self.show
            .step("Write real data: each write is on both nodes before it is acknowledged");
        let files = DemoFiles::standard();
        let started = Instant::now();
        let mount = self.cluster.mount()?;
        files.write_tree(&mount)?;
        self.show.good(&format!(
            "{} small files in {} directories, in {}",
            count(files.tree_files()),
            files.directories(),
            duration(started.elapsed())
        ));
        let started = Instant::now();
        files.write_large(&mount)?;
        self.show.good(&format!(
            "one file of {}, made durable, in {}",
            size(files.large_bytes()),
            duration(started.elapsed())
        ));
        Ok(files)
    }

    fn make_database(&self) -> Result<Ledger> {
        let started = Instant::now();
        let mut ledger = Ledger::create(&self.cluster.mount()?)?;
        ledger.transfer_many(300)?;
        self.show.good(&format!(
            "an SQLite database with {} transactions, each durable on both nodes, in {}",
            count(ledger.acknowledged()),
            duration(started.elapsed())
        ));
        Ok(ledger)
    }

    fn compare(&mut self, question: &str) -> Result<()> {
        self.show.step(question);
        self.show.command(&format!("lockstep verify {DATASTORE}"));
        let started = Instant::now();
        let report = self.cluster.playground.verify(self.cluster.primary)?;
        ensure!(
            report.identical,
            "the nodes differ in {} places, first: {}",
            report.differences_total,
            report
                .differences
                .first()
                .unwrap_or(&serde_json::Value::Null)
        );
        self.show.good(&format!(
            "identical: {} names and inodes, {} of content compared in {}",
            count(report.inodes_compared),
            size(report.bytes_compared),
            duration(started.elapsed())
        ));
        Ok(())
    }

    fn start_client(&mut self) -> Result<()> {
        self.show
            .step("A client writes through the address of the cluster");
        let address = self.cluster.address();
        self.show.note(
            "a program on each server writes the client's records into its mount, and syncs each one",
        );
        self.show.note(&format!(
            "the demo plays the address: it passes {address} on to the node that `lockstep health` names"
        ));
        self.show
            .note("on real servers keepalived does that: see `lockstep keepalived-config`");
        self.cluster.start_client()?;
        std::thread::sleep(WRITING_TIME);
        let written = self.cluster.progress()?.acknowledged;
        ensure!(written > 0, "the client got no answer");
        self.show.good(&format!(
            "{} records so far; the client goes on during all that follows",
            count(written)
        ));
        Ok(())
    }

    /// The secondary dies and comes back, while the client and a program with a database write.
    fn lose_the_secondary(&mut self, ledger: Ledger) -> Result<Ledger> {
        self.show.step("Kill the secondary in mid-write");
        let ledger = DatabaseWriter::start(ledger)?;
        std::thread::sleep(WRITING_TIME);
        let before = self.cluster.mark()?;
        let secondary = self.cluster.playground.node(ServerName::B)?;
        self.show
            .command(&format!("kill -9 {}", ids(&secondary.pids())));
        secondary.kill_server()?;
        let alone = |status: &crate::program::StatusAnswer| !status.in_sync;
        self.cluster
            .await_status(ServerName::A, "the primary goes on alone", alone)?;
        let after = self.cluster.await_records()?;
        ensure!(
            after.interruptions == before.interruptions,
            "the client lost its connection when the secondary died"
        );
        self.show.good(&format!(
            "no write failed; the client waited {}, until the witness let the primary go on alone",
            milliseconds(after.longest_pause)
        ));
        std::thread::sleep(WRITING_TIME);
        self.show.command(&format!("lockstep status {DATASTORE}"));
        self.show.good(&state_line(&self.cluster.status()?));
        self.bring_back(ServerName::B)?;
        std::thread::sleep(WRITING_TIME);
        ledger.finish()
    }

    /// Starts a dead node again, while the client writes, and waits until both are in sync.
    fn bring_back(&mut self, name: ServerName) -> Result<()> {
        self.show.step(&format!(
            "Bring node {} back, while the client goes on writing",
            name.word()
        ));
        self.restart(name)
    }

    /// Starts a dead node again, and waits until both are in sync.
    fn restart(&mut self, name: ServerName) -> Result<()> {
        let node = self.cluster.playground.node(name)?;
        node.restart()?;
        for command in node.command_lines() {
            self.show.command(&command);
        }
        let waited = self.cluster.await_protected()?;
        self.show.good(&format!(
            "node {} is the secondary, and in sync again after {}, by itself",
            name.word(),
            duration(waited)
        ));
        Ok(())
    }

    /// A bit flips on the disk of the secondary.
    fn heal_a_flipped_bit(&mut self, files: &DemoFiles) -> Result<()> {
        self.show
            .step("Flip a bit on the disk of the secondary, behind the back of its node");
        let secondary = self.cluster.primary.other();
        let store = self.cluster.playground.plan(secondary)?.store.clone();
        let flipped = FlippedBit::make(&store, files.large_bytes())?;
        self.show
            .command(&format!("lockstep verify {DATASTORE} --deep --repair"));
        let started = Instant::now();
        let report = self.cluster.playground.repair(self.cluster.primary)?;
        rot::check_report(&report)?;
        flipped.check_healed()?;
        self.show.good(&format!(
            "found among {} on each disk, named as wrong on the secondary, and healed from the primary, in {}",
            size(report.bytes_compared),
            duration(started.elapsed())
        ));
        Ok(())
    }

    /// Exports the store of the secondary without the primary, and checks the exported files.
    fn read_secondary_alone(
        mut self,
        files: &DemoFiles,
        records: WrittenRecords,
        ledger: &Ledger,
        last: Option<&LastFile>,
    ) -> Result<()> {
        self.show.step("Is it all on the secondary alone?");
        let secondary = self.cluster.primary.other();
        self.cluster.stop()?;
        let name = secondary.word();
        let copy = self.work_dir.path().join("copy");
        self.show.note(&format!(
            "both nodes are stopped; node {name}'s store is written out without the other"
        ));
        self.show
            .command(&format!("lockstep export {DATASTORE} {}", copy.display()));
        self.cluster.export(secondary, &copy)?;
        last.map_or(Ok(()), |last| last.check(&copy))?;
        check_all(self.show, &copy, files, records, ledger)
    }
}

/// Ends the demo on a signal by killing the nodes, so that every call that waits for a node returns.
fn watch_signals(
    mut signals: Signals,
    playground: &Playground,
    interrupted: &Arc<AtomicBool>,
) -> Result<()> {
    let (interrupted, kill) = (Arc::clone(interrupted), playground.killer());
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _ in signals.forever() {
                interrupted.store(true, Ordering::Relaxed);
                kill();
            }
        })
        .context("cannot watch for Ctrl-C")?;
    Ok(())
}

/// Process numbers as the arguments of a command.
fn ids(pids: &[u32]) -> String {
    let texts: Vec<String> = pids.iter().map(ToString::to_string).collect();
    texts.join(" ")
}

/// Compares the files under `root` with the acknowledged writes.
fn check_all(
    show: &Show,
    root: &Path,
    files: &DemoFiles,
    records: WrittenRecords,
    ledger: &Ledger,
) -> Result<()> {
    files.check(root)?;
    show.good(&format!(
        "{} files and the large one: content as written",
        count(files.tree_files())
    ));
    records.check(root)?;
    show.good(&format!(
        "all {} acknowledged records, in order and whole",
        count(records.acknowledged)
    ));
    ledger.check(root)?;
    show.good(&format!(
        "all {} acknowledged transactions; integrity_check says ok, the books balance",
        count(ledger.acknowledged())
    ));
    Ok(())
}
