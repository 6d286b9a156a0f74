//! The processes of one node: the node itself and, in a playground with a witness, the holder of its mount.
//!
//! Stopping also finds a node that another process restarted by its `command`: the process that listens on the control
//! socket is the node.

use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::background::{self, BackgroundProcess};
use crate::layout::NodePlan;
use crate::options::PlaygroundOptions;
use crate::sockets;

/// How long a holder may take until it listens.
const HOLDER_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at the socket of a holder.
const HOLDER_INTERVAL: Duration = Duration::from_millis(2);

/// A node that this process started.
pub(crate) struct NodeProcess {
    pub(crate) plan: NodePlan,
    process: BackgroundProcess,
    holder: Option<BackgroundProcess>,
}

impl NodeProcess {
    /// Starts the node of this plan, logging to its file, and before it the holder of its mount, if it is to have one.
    pub(crate) fn start(plan: &NodePlan, options: &PlaygroundOptions) -> Result<Self> {
        let mut holder = None;
        if options.cluster.is_some() {
            let command = command_line(plan, options, "hold")?;
            let started = BackgroundProcess::start(command, &plan.holder_log());
            holder = Some(started.context("cannot start the holder")?);
            await_holder(plan)?;
        }
        let mut command = command_line(plan, options, "node")?;
        command.extend(["--log".to_owned(), options.log.clone()]);
        if let Some(cpus) = options.cpus.get(plan.name) {
            let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
            command.extend(["--cpus".to_owned(), list.join(",")]);
        }
        let process = BackgroundProcess::start(command, &plan.log)
            .with_context(|| format!("cannot start node {}", plan.name))?;
        Ok(Self {
            plan: plan.clone(),
            process,
            holder,
        })
    }

    /// Name of the node.
    pub(crate) fn name(&self) -> &'static str {
        self.plan.name
    }

    /// Directory of the node's store.
    pub(crate) fn store(&self) -> &Path {
        &self.plan.store
    }

    /// The arguments that start the node, the program first.
    pub(crate) fn command(&self) -> &[String] {
        self.process.command()
    }

    /// The shell command that starts the node.
    pub(crate) fn command_line(&self) -> String {
        self.command().join(" ")
    }

    /// The shell commands that start the server's processes: the holder, if there is one, and the node.
    pub(crate) fn command_lines(&self) -> Vec<String> {
        let holder = self.holder.iter();
        let holder = holder.map(|holder| format!("{} &", holder.command().join(" ")));
        holder.chain([self.command_line()]).collect()
    }

    /// The node's last started process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The processes of the node: itself and its holder.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let holder = self.holder.iter().map(BackgroundProcess::pid);
        std::iter::once(self.pid()).chain(holder).collect()
    }

    /// The exit status of the process, if it has ended.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.process.exited()
    }

    /// Kills the node with SIGKILL and waits until it is gone. Its holder, if any, keeps the mount.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.begin_kill()?;
        self.process.await_end()
    }

    /// Kills the node and its holder with SIGKILL, as if the server died, and waits until both are gone.
    pub(crate) fn kill_server(&mut self) -> Result<()> {
        let mut all: Vec<_> = std::iter::once(&mut self.process)
            .chain(&mut self.holder)
            .collect();
        all.iter_mut()
            .try_for_each(|process| process.begin_kill())?;
        all.iter_mut().try_for_each(|process| process.await_end())
    }

    /// Later starts of the node and its holder are done by a command that begins with these words.
    pub(crate) fn run_within(&mut self, words: Vec<String>) {
        if let Some(holder) = &mut self.holder {
            holder.run_within(words.clone());
        }
        self.process.run_within(words);
    }

    /// Starts a dead node again by its command, and its holder, if that is dead, too.
    pub(crate) fn restart(&mut self) -> Result<()> {
        if let Some(holder) = &mut self.holder
            && holder.exited().is_some()
        {
            holder.restart().context("cannot start the holder again")?;
            await_holder(&self.plan)?;
        }
        self.process
            .restart()
            .with_context(|| format!("cannot start node {} again", self.plan.name))
    }

    /// Asks the node to stop and kills it if it has not after `grace`. A restarted node is stopped, too. Then the holder
    /// is stopped.
    pub(crate) fn stop(&mut self, grace: Duration) -> Result<()> {
        self.process.stop(grace)?;
        if let Some(pid) = sockets::listener(&self.plan.control) {
            background::terminate(pid, grace)?;
        }
        self.holder
            .as_mut()
            .map_or(Ok(()), |holder| holder.stop(grace))
    }
}

/// Kills the node of that control socket and its holder, if they run, without waiting for their end.
pub(crate) fn kill_listeners(control: &Path) {
    let listeners = [
        sockets::listener(control),
        sockets::packet_listener(&sockets::of_holder(control)),
    ];
    listeners.into_iter().flatten().for_each(background::kill);
}

fn await_holder(plan: &NodePlan) -> Result<()> {
    let started = Instant::now();
    let socket = sockets::of_holder(&plan.control);
    while sockets::packet_listener(&socket).is_none() {
        ensure!(
            started.elapsed() < HOLDER_LIMIT,
            "the holder of node {} does not listen at {}",
            plan.name,
            socket.display()
        );
        std::thread::sleep(HOLDER_INTERVAL);
    }
    Ok(())
}

fn command_line(plan: &NodePlan, options: &PlaygroundOptions, verb: &str) -> Result<Vec<String>> {
    let text = |path: &Path| {
        let text = path
            .to_str()
            .with_context(|| format!("{} is not UTF-8 text", path.display()))?;
        anyhow::Ok(text.to_owned())
    };
    let program = text(&options.node_program)?;
    let config = text(&plan.config)?;
    Ok(vec![
        program,
        verb.to_owned(),
        "--config".to_owned(),
        config,
    ])
}
