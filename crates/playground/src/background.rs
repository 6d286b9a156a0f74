//! A process in the background: started, watched, killed and stopped.
//!
//! A process is held by descriptor while it is signalled, so that the signal cannot hit another process with the same
//! number.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long the kernel may take to end a process that was killed.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// A process that this process started, and its log.
pub(crate) struct BackgroundProcess {
    /// The words of a command that runs `command`; none if this process does so.
    within: Vec<String>,
    command: Vec<String>,
    log: PathBuf,
    child: Child,
}

impl BackgroundProcess {
    /// Starts a command in a process group of its own. Its output goes to the end of the log.
    pub(crate) fn start(command: Vec<String>, log: &Path) -> Result<Self> {
        let child = spawn(&command, log)?;
        Ok(Self {
            within: Vec::new(),
            command,
            log: log.to_owned(),
            child,
        })
    }

    /// The program and its arguments.
    pub(crate) fn command(&self) -> &[String] {
        &self.command
    }

    /// The number of the last started process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status of the process, if it has ended.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends SIGKILL, without waiting for the end.
    pub(crate) fn begin_kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill a process")
    }

    /// Waits for the end of a killed process.
    pub(crate) fn await_end(&mut self) -> Result<()> {
        self.child
            .wait()
            .map(drop)
            .context("cannot wait for a process")
    }

    /// Later starts are done by a command that begins with these words, and becomes the program.
    pub(crate) fn run_within(&mut self, words: Vec<String>) {
        self.within = words;
    }

    /// Starts the dead process again.
    pub(crate) fn restart(&mut self) -> Result<()> {
        let command = [self.within.as_slice(), &self.command].concat();
        self.child = spawn(&command, &self.log)?;
        Ok(())
    }

    /// Asks the process to stop, and kills it if it has not after `grace`.
    pub(crate) fn stop(&mut self, grace: Duration) -> Result<()> {
        if self.exited().is_none() {
            terminate(Pid::from_child(&self.child), grace)?;
            self.await_end()?;
        }
        Ok(())
    }
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

/// Kills a process, without waiting for its end.
pub(crate) fn kill(pid: Pid) {
    if let Ok(Some(process)) = hold(pid) {
        // A process that is gone already is as good.
        let _ = pidfd_send_signal(&process, Signal::KILL);
    }
}

/// Asks a process to stop, and kills it if it has not after `grace`.
pub(crate) fn terminate(pid: Pid, grace: Duration) -> Result<()> {
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
        Err(error) => Err(error).context("cannot watch a process"),
    }
}

/// Sends the signal and returns whether the process ends within `limit`.
fn ends(process: &OwnedFd, signal: Signal, limit: Duration) -> Result<bool> {
    match pidfd_send_signal(process, signal) {
        Ok(()) => {}
        Err(Errno::SRCH) => return Ok(true),
        Err(error) => return Err(error).context("cannot signal a process"),
    }
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // The descriptor becomes readable when the process ends.
        let mut watched = [PollFd::new(process, PollFlags::IN)];
        match poll(&mut watched, Some(&Timespec::try_from(left)?)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for a process"),
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
