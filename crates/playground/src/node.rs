//! The process of one node: started, watched and stopped.
//!
//! Stopping also finds a node that another process restarted by its `command`: the process that listens on the control
//! socket is the node. A process is held by descriptor while it is signalled, so that the signal cannot hit another
//! process with the same number.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::layout::NodePlan;
use crate::options::PlaygroundOptions;
use crate::sockets;

/// How long the kernel may take to end a process that was killed.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// A node that this process started.
pub(crate) struct NodeProcess {
    pub(crate) plan: NodePlan,
    pub(crate) command: Vec<String>,
    child: Child,
}

impl NodeProcess {
    /// Starts the node of this plan in a process group of its own, logging to its file.
    pub(crate) fn start(plan: &NodePlan, options: &PlaygroundOptions) -> Result<Self> {
        let command = command_line(plan, options)?;
        let child = spawn(&command, &plan.log)
            .with_context(|| format!("cannot start node {}", plan.name))?;
        Ok(Self {
            plan: plan.clone(),
            command,
            child,
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

    /// The shell command that starts the node.
    pub(crate) fn command_line(&self) -> String {
        self.command.join(" ")
    }

    /// The node's last started process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status of the process, if it has ended.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills the node with SIGKILL and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill the node")?;
        self.child.wait().context("cannot wait for the node")?;
        Ok(())
    }

    /// Starts a dead node again, by its command.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.child = spawn(&self.command, &self.plan.log)
            .with_context(|| format!("cannot start node {} again", self.plan.name))?;
        Ok(())
    }

    /// Asks the node to stop and kills it if it has not after `grace`. A restarted node is stopped, too.
    pub(crate) fn stop(&mut self, grace: Duration) -> Result<()> {
        if self.exited().is_none() {
            terminate(Pid::from_child(&self.child), grace)?;
            self.child.wait().context("cannot wait for the node")?;
        }
        if let Some(pid) = sockets::listener(&self.plan.control) {
            terminate(pid, grace)?;
        }
        Ok(())
    }
}

fn command_line(plan: &NodePlan, options: &PlaygroundOptions) -> Result<Vec<String>> {
    let text = |path: &Path| {
        let text = path
            .to_str()
            .with_context(|| format!("{} is not UTF-8 text", path.display()))?;
        anyhow::Ok(text.to_owned())
    };
    let mut command = vec![text(&options.node_program)?, "node".to_owned()];
    command.extend(["--config".to_owned(), text(&plan.config)?]);
    command.extend(["--log".to_owned(), options.log.clone()]);
    if let Some(cpus) = options.cpus.get(plan.name) {
        let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        command.extend(["--cpus".to_owned(), list.join(",")]);
    }
    Ok(command)
}

fn spawn(command: &[String], log: &Path) -> Result<Child> {
    let (program, arguments) = command.split_first().context("the command is empty")?;
    let log = open_log(log)?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // In a group of its own, so that Ctrl-C in a terminal reaches the playground and not the nodes.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    Ok(child)
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

/// Kills the node that listens on this socket, if any does, without waiting for its end.
pub(crate) fn kill_listener(socket: &Path) {
    if let Some(Ok(Some(process))) = sockets::listener(socket).map(hold) {
        // A process that is gone already is as good.
        let _ = pidfd_send_signal(&process, Signal::KILL);
    }
}

fn terminate(pid: Pid, grace: Duration) -> Result<()> {
    let Some(process) = hold(pid)? else {
        return Ok(());
    };
    if ends(&process, Signal::TERM, grace)? || ends(&process, Signal::KILL, KILL_GRACE)? {
        return Ok(());
    }
    bail!(
        "process {} does not end even when killed",
        pid.as_raw_nonzero()
    )
}

/// A descriptor of the process; `None` if it is gone.
fn hold(pid: Pid) -> Result<Option<OwnedFd>> {
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Ok(Some(process)),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(error).context("cannot watch a node"),
    }
}

/// Sends the signal and returns whether the process ends within `limit`.
fn ends(process: &OwnedFd, signal: Signal, limit: Duration) -> Result<bool> {
    match pidfd_send_signal(process, signal) {
        Ok(()) => {}
        Err(Errno::SRCH) => return Ok(true),
        Err(error) => return Err(error).context("cannot signal a node"),
    }
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // The descriptor becomes readable when the process ends.
        let mut watched = [PollFd::new(process, PollFlags::IN)];
        match poll(&mut watched, Some(&Timespec::try_from(left)?)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for a node"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(script: &str) -> Child {
        Command::new("/bin/sh")
            .args(["-c", script])
            .spawn()
            .unwrap()
    }

    #[test]
    fn a_process_that_obeys_is_only_asked() {
        let mut obedient = child("exec sleep 1000");
        terminate(Pid::from_child(&obedient), Duration::from_secs(60)).unwrap();
        let status = obedient.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(15)
        );
    }

    #[test]
    fn a_process_that_does_not_obey_is_killed() {
        let mut stubborn = Command::new("/bin/sh")
            .args(["-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The script prints a line when the trap is set.
        let mut line = [0; 3];
        std::io::Read::read_exact(stubborn.stdout.as_mut().unwrap(), &mut line).unwrap();
        terminate(Pid::from_child(&stubborn), Duration::from_millis(100)).unwrap();
        let status = stubborn.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9)
        );
    }
}
