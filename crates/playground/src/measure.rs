//! Measures failovers as a client sees them: the time between the last acknowledgement before a failure and the first one
//! after it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use signal_hook::iterator::Signals;

use crate::cluster::FailoverCluster;
use crate::options::{ClusterOptions, PlaygroundOptions};
use crate::playground::Playground;
use crate::program::Program;

/// How long the client writes before each failure.
const WRITING_TIME: Duration = Duration::from_millis(500);

/// The part that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The processes of the primary's server are killed, so that every connection is reset.
    Kill,
    /// No byte passes between the primary's server and the others, and no connection ends.
    Isolation,
    /// The process of the primary is killed, and started again at once; a holder keeps its mount.
    Restart,
}

/// The failures to measure.
#[derive(Debug)]
pub struct MeasureOptions {
    /// The `lockstep` program.
    pub program: PathBuf,
    /// Directory in which a new directory is made, and removed again.
    pub dir: PathBuf,
    /// Time from the loss of the connection to the takeover, in milliseconds: 300 to 60,000.
    pub failover_after_ms: u64,
    /// The failures, in order, each with its number.
    pub failures: Vec<(Failure, u32)>,
    /// Signals that end the measurement.
    pub stop_signals: Vec<i32>,
}

/// One failure, as the client saw it.
#[derive(Clone, Copy, Debug)]
pub struct ClientPause {
    /// The part that failed.
    pub failure: Failure,
    /// Time between the last acknowledgement before and the first one after.
    pub pause: Duration,
    /// Whether the other node took over.
    pub took_over: bool,
    /// Whether the client had to connect again.
    pub reconnected: bool,
}

/// Measures the failures on a new cluster, and tells `report` of each. At the end the nodes must be identical, and hold
/// every acknowledged record.
///
/// # Errors
/// If the cluster cannot be started, does not get in sync after a failure, or has lost a record; and after a signal.
pub fn measure(options: &MeasureOptions, mut report: impl FnMut(ClientPause)) -> Result<()> {
    let work_dir = tempfile::Builder::new()
        .prefix("lockstep-failover-")
        .tempdir_in(&options.dir)
        .with_context(|| format!("cannot make a directory in {}", options.dir.display()))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut cluster = start(options, &work_dir.path().join("play"), &interrupted)?;
    cluster.start_client()?;
    for (failure, times) in &options.failures {
        for _ in 0..*times {
            std::thread::sleep(WRITING_TIME);
            report(cluster.measure(*failure)?);
            cluster.await_protected()?;
        }
    }
    let records = cluster.finish_client()?;
    let verified = cluster.playground.verify(cluster.primary)?;
    ensure!(verified.identical, "the nodes differ: {verified:?}");
    records.check(&cluster.mount()?)?;
    cluster.stop()
}

fn start(
    options: &MeasureOptions,
    dir: &Path,
    interrupted: &Arc<AtomicBool>,
) -> Result<FailoverCluster> {
    let playground = PlaygroundOptions {
        cluster: Some(ClusterOptions {
            failover_after_ms: options.failover_after_ms,
            can_isolate: true,
        }),
        ..PlaygroundOptions::with_program(dir, Program::at(&options.program))
    };
    let mut signals = Signals::new(&options.stop_signals)?;
    let mut asked_to_stop = || signals.pending().next().is_some();
    let Some(playground) = Playground::start(&playground, &mut asked_to_stop)? else {
        bail!("interrupted");
    };
    let (flag, kill) = (Arc::clone(interrupted), playground.killer());
    std::thread::Builder::new().spawn(move || {
        for _ in signals.forever() {
            flag.store(true, Ordering::Relaxed);
            kill();
        }
    })?;
    FailoverCluster::start(playground, Arc::clone(interrupted))
}

impl FailoverCluster {
    /// Lets the primary fail once, and repairs it after the client has gone on.
    fn measure(&mut self, failure: Failure) -> Result<ClientPause> {
        let failing = self.primary;
        let generation = self.status()?.generation;
        let before = self.mark()?;
        let node = self.playground.node(failing)?;
        match failure {
            Failure::Kill => node.kill_server()?,
            Failure::Restart => {
                node.kill()?;
                node.restart()?;
            }
            Failure::Isolation => self.playground.isolate(failing, true),
        }
        let after = self.await_records()?;
        match failure {
            Failure::Kill => {
                self.await_takeover()?;
                self.playground.node(failing)?.restart()?;
            }
            Failure::Isolation => {
                self.await_takeover()?;
                self.playground.isolate(failing, false);
            }
            Failure::Restart => {
                self.await_settled(generation)?;
                if self.playground.status(failing)?.generation != generation {
                    self.await_takeover()?;
                }
            }
        }
        Ok(ClientPause {
            failure,
            pause: after.longest_pause,
            took_over: self.primary != failing,
            reconnected: after.interruptions > before.interruptions,
        })
    }
}
