//! `lockstep demo`: shows the main promise on this machine in about a minute.
//!
//! The demo writes real data into a mirrored directory, kills the secondary with SIGKILL while programs write, and
//! restarts it. The demo checks each statement before it prints the statement, and fails if a check fails.

mod bytes;
mod database;
mod files;
mod records;
mod show;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lockstep_types::Role;
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::config::DATASTORE;
use crate::options::PlaygroundOptions;
use crate::playground::Playground;
use crate::program::StatusAnswer;

use database::{DatabaseWriter, Ledger};
use files::DemoFiles;
use records::{RecordWriter, WrittenRecords};
use show::{Show, count, duration, size};

/// How long writes wait for the dead secondary: short, so that the viewer does not wait long.
const PAUSE_LIMIT_MS: u64 = 3_000;
/// How long programs write before, between and after the events.
const WRITING_TIME: Duration = Duration::from_secs(2);
/// How long the nodes may take to reach an expected state.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two status requests.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// Exit code for a failed check.
const NO: u8 = 1;
/// Exit code of a program that Ctrl-C has ended, as shells give it.
const INTERRUPTED: u8 = 130;

/// See it work on this machine, in about a minute
///
/// Runs a primary and a secondary, writes files, a database and a large file into the mirrored
/// directory, kills the secondary in mid-write, brings it back, and checks that nothing is lost.
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

/// The running playground and its directory. Fields are dropped in this order: the mount must be gone before its
/// directory is removed.
struct Demo<'s> {
    playground: Playground,
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
            pause_limit_ms: PAUSE_LIMIT_MS,
            ..PlaygroundOptions::new(&work_dir.path().join("play"))?
        };
        let mut asked_to_stop = || signals.pending().next().is_some();
        let Some(playground) = Playground::start(&options, &mut asked_to_stop)? else {
            return Ok(None);
        };
        watch_signals(signals, &playground, interrupted)?;
        Ok(Some(Self {
            playground,
            work_dir,
            show,
        }))
    }

    fn play(mut self) -> Result<()> {
        self.introduce()?;
        let files = self.write_files()?;
        let ledger = self.make_database()?;
        self.compare("Do both nodes hold the same?")?;
        let (records, ledger) = self.lose_the_secondary(ledger)?;
        self.compare("And do both nodes hold the same again?")?;
        self.show.step("Is everything there that was acknowledged?");
        check_all(
            self.show,
            self.playground.mount(),
            &files,
            &records,
            &ledger,
        )?;
        self.read_secondary_alone(&files, &records, &ledger)
    }

    fn introduce(&mut self) -> Result<()> {
        self.show
            .title("Lockstep: one directory, identical on two servers at every moment.");
        let mount = self.playground.mount().display().to_string();
        for (role, word) in [(Role::Primary, "primary"), (Role::Secondary, "secondary")] {
            let node = self.playground.node(role)?;
            let (name, pid, store) = (node.name(), node.pid(), node.store().display());
            self.show.note(&format!(
                "node {name} is the {word}: process {pid}, store {store}"
            ));
        }
        self.show
            .note(&format!("the directory is mounted at {mount}"));
        Ok(())
    }

    fn write_files(&self) -> Result<DemoFiles> {
        self.show
            .step("Write real data: each write is on both nodes before it is acknowledged");
        let files = DemoFiles::standard();
        let started = Instant::now();
        files.write_tree(self.playground.mount())?;
        self.show.good(&format!(
            "{} small files in {} directories, in {}",
            count(files.tree_files()),
            files.directories(),
            duration(started.elapsed())
        ));
        let started = Instant::now();
        files.write_large(self.playground.mount())?;
        self.show.good(&format!(
            "one file of {}, made durable, in {}",
            size(files.large_bytes()),
            duration(started.elapsed())
        ));
        Ok(files)
    }

    fn make_database(&self) -> Result<Ledger> {
        let started = Instant::now();
        let mut ledger = Ledger::create(self.playground.mount())?;
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
        let report = self.playground.verify()?;
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

    /// The main part: programs write all the time while the secondary dies and comes back.
    fn lose_the_secondary(&mut self, ledger: Ledger) -> Result<(WrittenRecords, Ledger)> {
        self.show.step("Kill the secondary in mid-write");
        let records = RecordWriter::start(self.playground.mount())?;
        let ledger = DatabaseWriter::start(ledger)?;
        std::thread::sleep(WRITING_TIME);
        let written = records.acknowledged();
        self.show.note(&format!(
            "two programs write all the time; {} records so far",
            count(written)
        ));
        self.kill_secondary()?;
        self.wait_until("the primary goes on alone", |status| !status.in_sync)?;
        wait_for_writes(&records, written)?;
        std::thread::sleep(WRITING_TIME);
        self.show_alone(&records)?;
        self.bring_back()?;
        std::thread::sleep(WRITING_TIME);
        Ok((records.finish()?, ledger.finish()?))
    }

    fn kill_secondary(&mut self) -> Result<()> {
        let secondary = self.playground.node(Role::Secondary)?;
        self.show.command(&format!("kill -9 {}", secondary.pid()));
        secondary.kill()
    }

    fn show_alone(&self, records: &RecordWriter) -> Result<()> {
        let status = self.playground.status()?;
        ensure!(
            !status.in_sync,
            "the status says in sync while the secondary is dead"
        );
        self.show.good(&format!(
            "no write failed; the longest waited {} (the pause limit is {})",
            duration(records.longest_wait()),
            duration(Duration::from_millis(PAUSE_LIMIT_MS))
        ));
        self.show
            .good("then on_peer_loss = \"continue\" decided: the writes go on, with one copy");
        self.show.command(&format!("lockstep status {DATASTORE}"));
        self.show.good(&state_line(&status));
        Ok(())
    }

    fn bring_back(&mut self) -> Result<()> {
        self.show
            .step("Bring it back, while the programs go on writing");
        let secondary = self.playground.node(Role::Secondary)?;
        secondary.restart()?;
        self.show.command(&secondary.command_line());
        let waited = self.wait_until("both nodes are in sync again", |status| status.in_sync)?;
        self.show.good(&format!(
            "in sync again after {}, without being asked",
            duration(waited)
        ));
        self.show.good(&state_line(&self.playground.status()?));
        Ok(())
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&StatusAnswer) -> bool) -> Result<Duration> {
        let started = Instant::now();
        loop {
            let status = self.playground.status()?;
            if is_so(&status) {
                return Ok(started.elapsed());
            }
            ensure!(
                started.elapsed() < WAIT_LIMIT,
                "waited {} in vain until {what}: {}",
                duration(WAIT_LIMIT),
                state_line(&status)
            );
            std::thread::sleep(ASK_INTERVAL);
        }
    }

    /// Exports the store of the secondary without the primary, and checks the exported files.
    fn read_secondary_alone(
        mut self,
        files: &DemoFiles,
        records: &WrittenRecords,
        ledger: &Ledger,
    ) -> Result<()> {
        self.show.step("Is it all on the secondary alone?");
        self.playground.stop()?;
        let secondary = self.playground.node(Role::Secondary)?;
        let name = secondary.name();
        let copy = self.work_dir.path().join("copy");
        self.show.note(&format!(
            "both nodes are stopped; node {name}'s store is written out without the other"
        ));
        self.show
            .command(&format!("lockstep export {DATASTORE} {}", copy.display()));
        self.playground.export(Role::Secondary, &copy)?;
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

/// Waits until two more writes than `before` are acknowledged: the first of them may have been in flight already.
fn wait_for_writes(records: &RecordWriter, before: u64) -> Result<()> {
    let started = Instant::now();
    while records.acknowledged() <= before + 1 {
        ensure!(
            started.elapsed() < WAIT_LIMIT,
            "writes do not go on after the secondary was killed"
        );
        std::thread::sleep(ASK_INTERVAL);
    }
    Ok(())
}

fn state_line(status: &StatusAnswer) -> String {
    let reason = status.reason.as_ref().map(|reason| format!(": {reason}"));
    format!("{}{}", status.state, reason.unwrap_or_default())
}

/// Compares the files under `root` with the acknowledged writes.
fn check_all(
    show: &Show,
    root: &Path,
    files: &DemoFiles,
    records: &WrittenRecords,
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
        count(records.acknowledged())
    ));
    ledger.check(root)?;
    show.good(&format!(
        "all {} acknowledged transactions; integrity_check says ok, the books balance",
        count(ledger.acknowledged())
    ));
    Ok(())
}
