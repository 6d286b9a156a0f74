//! A running playground: starts the nodes, prints `ready`, and stops everything at a signal.
//!
//! The demo, the tests and the benchmarks use playgrounds. While it runs, a playground does nothing: a killed node stays
//! dead until its `command` is run again.
//!
//! Invariants: at its end, every process that it started and every mount is gone, unless the playground itself is killed
//! by SIGKILL. A directory with foreign files is never changed.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lockstep_types::Role;
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::Signals;

use crate::background::BackgroundProcess;
use crate::config::DATASTORE;
use crate::description;
use crate::layout::{NewRoot, NodePlan, PlaygroundLayout};
use crate::network::PlaygroundNetwork;
use crate::node::{self, NodeProcess};
use crate::options::{PlaygroundArgs, PlaygroundOptions, ServerName};
use crate::program::{Program, StatusAnswer, VerifyAnswer};
use crate::sockets;

/// How long the nodes may take until the datastore is mounted and in sync.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two status requests.
const READY_INTERVAL: Duration = Duration::from_millis(50);
/// How long a node may take to stop before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(20);

/// Runs a playground until one of `stop_signals` arrives.
pub fn run(args: &PlaygroundArgs, stop_signals: &[i32]) -> Result<ExitCode> {
    let options = PlaygroundOptions::from_args(args)?;
    // Before anything is started, so that a signal during the start is seen, too.
    let mut signals = Signals::new([stop_signals, &[SIGCHLD]].concat())?;
    let mut asked_to_stop = || signals.pending().any(|signal| signal != SIGCHLD);
    let Some(mut playground) = Playground::start(&options, &mut asked_to_stop)? else {
        return Ok(ExitCode::SUCCESS);
    };
    print_ready()?;
    for signal in signals.forever() {
        playground.reap();
        if signal != SIGCHLD {
            break;
        }
    }
    playground.stop()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the line `ready`. A closed pipe is no error: the nodes run all the same.
fn print_ready() -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "ready").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// The running nodes, until they are stopped or this is dropped.
pub(crate) struct Playground {
    program: Program,
    layout: PlaygroundLayout,
    nodes: Vec<NodeProcess>,
    witness: Option<BackgroundProcess>,
    network: PlaygroundNetwork,
}

impl Playground {
    /// Starts everything and waits until the datastore is mounted and in sync; `None` if `asked_to_stop` is true before.
    pub(crate) fn start(
        options: &PlaygroundOptions,
        asked_to_stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>> {
        let made = NewRoot::look(&options.dir)?;
        let started = Self::start_in(options, asked_to_stop);
        if started.is_err() {
            made.remove();
        }
        started
    }

    fn start_in(
        options: &PlaygroundOptions,
        asked_to_stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>> {
        let layout = PlaygroundLayout::prepare(options)?;
        layout.make_stores(&options.program)?;
        let network = layout.start_network(options.round_trip)?;
        let witness = layout.witness.as_ref();
        let witness = witness.map(|witness| witness.start(&options.program));
        let mut playground = Self {
            program: options.program.clone(),
            layout,
            nodes: Vec::new(),
            witness: witness.transpose()?,
            network,
        };
        // The secondary first, so that the primary finds it at its first attempt.
        for plan in playground.layout.nodes.iter().rev() {
            playground
                .nodes
                .insert(0, NodeProcess::start(plan, options)?);
        }
        if !playground.wait_ready(asked_to_stop)? {
            return Ok(None);
        }
        description::write(&playground.layout, &playground.nodes)?;
        Ok(Some(playground))
    }

    /// The program whose commands this playground runs.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// A node; an error if this playground does not have it.
    pub(crate) fn node(&mut self, name: ServerName) -> Result<&mut NodeProcess> {
        let node = self.nodes.get_mut(name.number());
        node.with_context(|| format!("this playground has no node {}", name.word()))
    }

    /// The files of a node; an error if this playground does not have it.
    pub(crate) fn plan(&self, name: ServerName) -> Result<&NodePlan> {
        let plan = self.layout.nodes.get(name.number());
        plan.with_context(|| format!("this playground has no node {}", name.word()))
    }

    /// The mount of a running node, as the node sees it. The processes of a server that has lost its power have a mount namespace of their own.
    pub(crate) fn seen_mount(&mut self, name: ServerName) -> Result<PathBuf> {
        let node = self.node(name)?;
        let mut seen = OsString::from(format!("/proc/{}/root", node.pid()));
        seen.push(&node.plan.mount);
        Ok(seen.into())
    }

    /// The number of the witness's process, if there is a witness.
    pub(crate) fn witness_pid(&self) -> Option<u32> {
        self.witness.as_ref().map(BackgroundProcess::pid)
    }

    /// Cuts a node off from the other one and from the witness, without a word to any of them, or ends that.
    pub(crate) fn isolate(&self, name: ServerName, is_cut: bool) {
        self.network.isolate(name.number(), is_cut);
    }

    /// Whether the servers have disks of their own, which can lose their power.
    pub(crate) fn has_disks(&self) -> bool {
        self.layout.has_disks()
    }

    /// The server of a node loses its power: its processes die, and its disk forgets what is not on stable storage. The node starts
    /// again by [`NodeProcess::restart`].
    pub(crate) fn lose_power(&mut self, name: ServerName) -> Result<()> {
        self.node(name)?.kill_server()?;
        let within = self.layout.lose_power(name.number())?;
        self.node(name)?.run_within(within);
        Ok(())
    }

    /// The state of the datastore, as this node reports it.
    pub(crate) fn status(&self, name: ServerName) -> Result<StatusAnswer> {
        self.program.status(&self.plan(name)?.control)
    }

    /// The text of a row of `lockstep status` on a node.
    pub(crate) fn status_row(&self, name: ServerName, row: &str) -> Result<String> {
        self.program.status_row(row, &self.plan(name)?.control)
    }

    /// Has a node serve its copy, whatever that lacks.
    pub(crate) fn promote_by_force(&self, name: ServerName) -> Result<()> {
        self.program.promote_by_force(&self.plan(name)?.control)
    }

    /// Has a node give up its role.
    pub(crate) fn demote(&self, name: ServerName) -> Result<()> {
        self.program.demote(&self.plan(name)?.control)
    }

    /// Compares both nodes, by the node that is the primary.
    pub(crate) fn verify(&self, primary: ServerName) -> Result<VerifyAnswer> {
        self.program.verify(&self.plan(primary)?.control)
    }

    /// Compares the disks of both nodes, by the node that is the primary, and heals what differs.
    pub(crate) fn repair(&self, primary: ServerName) -> Result<VerifyAnswer> {
        self.program.repair(&self.plan(primary)?.control)
    }

    /// Makes a snapshot, or rolls all files back to one, by the node that is the primary.
    pub(crate) fn snapshot(&self, primary: ServerName, verb: &str, name: &str) -> Result<()> {
        let control = &self.plan(primary)?.control;
        self.program.snapshot(&[verb, DATASTORE, name], control)
    }

    /// Deletes all snapshots, by the node that is the primary.
    pub(crate) fn delete_snapshots(&self, primary: ServerName) -> Result<()> {
        let control = &self.plan(primary)?.control;
        for name in self.program.snapshots(control)? {
            self.program
                .snapshot(&["delete", DATASTORE, &name], control)?;
        }
        Ok(())
    }

    /// Exports the store of a stopped node into `dest`.
    pub(crate) fn export(&self, name: ServerName, dest: &Path) -> Result<()> {
        self.program.export(dest, &self.plan(name)?.config)
    }

    /// Returns a function that kills all nodes, and the holders of their mounts, from any thread, so that calls that wait for a
    /// node return with an error.
    pub(crate) fn killer(&self) -> impl Fn() + Send + 'static {
        let nodes = self.layout.nodes.iter();
        let sockets: Vec<PathBuf> = nodes.map(|node| node.control.clone()).collect();
        move || {
            for socket in &sockets {
                node::kill_listeners(socket);
            }
        }
    }

    /// Waits until the primary reports that the datastore is mounted and, if mirrored, in sync.
    fn wait_ready(&mut self, asked_to_stop: &mut dyn FnMut() -> bool) -> Result<bool> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while !self.is_ready() {
            if asked_to_stop() {
                return Ok(false);
            }
            self.report_dead()?;
            if Instant::now() > deadline {
                bail!(
                    "the nodes are not ready after {} s{}",
                    READY_TIMEOUT.as_secs(),
                    self.all_log_tails()
                );
            }
            std::thread::sleep(READY_INTERVAL);
        }
        Ok(true)
    }

    fn is_ready(&self) -> bool {
        let has_witness = self.witness.is_some();
        let is_served = |status: &StatusAnswer| {
            let is_complete = status.in_sync || status.peer.is_none();
            status.started && is_complete && (status.is_protected() || !has_witness)
        };
        let mut plans = self.layout.nodes.iter();
        plans.all(|plan| sockets::listener(&plan.control).is_some())
            && self.status(ServerName::A).as_ref().is_ok_and(is_served)
    }

    fn report_dead(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            if let Some(status) = node.exited() {
                bail!(
                    "node {} stopped before it was ready ({status}){}",
                    node.plan.name,
                    node.plan.log_tail()
                );
            }
        }
        Ok(())
    }

    fn all_log_tails(&self) -> String {
        self.layout.nodes.iter().map(NodePlan::log_tail).collect()
    }

    /// Collects the exit status of dead nodes, so that none stays a zombie.
    pub(crate) fn reap(&mut self) {
        for node in &mut self.nodes {
            node.exited();
        }
    }

    /// Stops the nodes, the primary first, and unmounts what is left. Then stops the witness.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let is_primary = |name: ServerName| {
            self.status(name)
                .is_ok_and(|status| status.role == Role::Primary)
        };
        if self.witness.is_some() && is_primary(ServerName::B) {
            self.stop_node(ServerName::B)?;
        }
        self.stop_node(ServerName::A)?;
        self.stop_node(ServerName::B)?;
        self.layout.unmount()?;
        self.witness
            .as_mut()
            .map_or(Ok(()), |witness| witness.stop(STOP_GRACE))
    }

    fn stop_node(&mut self, name: ServerName) -> Result<()> {
        let node = self.nodes.get_mut(name.number());
        node.map_or(Ok(()), |node| node.stop(STOP_GRACE))
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            let _ = writeln!(
                io::stderr(),
                "error: the playground could not be cleaned up: {error:#}"
            );
        }
    }
}
