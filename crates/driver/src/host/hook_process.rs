//! A command of the operator as a process: with a time limit for all of its process group, and with its output in the log.
//!
//! The output passes a pipe. A child that goes on after the command has ended does not keep the caller: the pipe is closed then.

#![allow(clippy::disallowed_methods)] // this file is a part of the host

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lockstep_types::time::millis;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Lines of the output that the log gets. The others are counted.
const LOGGED_LINES_MAX: usize = 100;
/// The last lines that a failure tells.
const LAST_LINES: usize = 8;
/// Longest line, in bytes: the rest of a longer one is left out.
const LINE_BYTES_MAX: usize = 400;
/// Reads of the pipe between two looks at the time.
const READS_AT_ONCE: usize = 16;
/// Time between two looks whether the caller gives the command up.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for the end of a command that was killed: a process that waits for a disk may not end.
const KILLED_WAIT: Duration = Duration::from_secs(1);
/// Variables by which the service manager speaks to the node, and to no other process.
const OF_SERVICE_MANAGER: &[&str] = &[
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "FDSTORE",
];

/// A command of the operator, ready to run.
#[derive(Clone, Debug)]
pub struct HookCommand {
    /// The program, as an absolute path, and its arguments.
    pub words: Vec<String>,
    /// Variables in addition to those of the node.
    pub environment: Vec<(&'static str, OsString)>,
    /// Longest time, after which the process group of the command is killed.
    pub limit: Duration,
}

/// A command of the operator that has failed.
#[derive(Debug, thiserror::Error)]
#[error("{program} {cause}{}", shown(.last_lines))]
pub struct HookFailure {
    /// The program.
    pub program: String,
    /// Its end.
    pub cause: HookFailureCause,
    /// The last lines of its output.
    pub last_lines: Vec<String>,
}

/// The end of a command that has failed.
#[derive(Debug, thiserror::Error)]
pub enum HookFailureCause {
    /// There is no process.
    #[error("could not be started: {0}")]
    NotStarted(io::Error),
    /// The process has ended by itself.
    #[error("ended with exit code {0}")]
    Exit(i32),
    /// A signal has ended the process.
    #[error("was ended by signal {0}")]
    Signal(i32),
    /// The limit, in milliseconds, was over.
    #[error("did not end within {0} ms, and was killed")]
    TooLong(u64),
    /// The caller has given the command up.
    #[error("was killed, because the node stops")]
    GivenUp,
}

fn shown(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| format!("\n    {line}")).collect();
    if lines.is_empty() {
        String::new()
    } else {
        format!("; the end of its output:{}", lines.concat())
    }
}

/// Runs a command until its end. Each line of its output goes to `log`, within bounds.
///
/// # Errors
/// The command cannot be started, or fails, or is killed: after its limit, or because `gives_up` says so.
pub(super) fn run(
    hook: &HookCommand,
    gives_up: &dyn Fn() -> bool,
    log: &mut dyn FnMut(&str),
) -> Result<(), HookFailure> {
    let mut output = HookOutput::new(log);
    let cause = match HookProcess::start(hook) {
        Ok(mut process) => process.wait(hook.limit, gives_up, &mut output),
        Err(error) => Err(HookFailureCause::NotStarted(error)),
    };
    let last_lines = output.finish();
    cause.map_err(|cause| HookFailure {
        program: hook.words.first().cloned().unwrap_or_default(),
        cause,
        last_lines,
    })
}

/// The process of a command, and the pipe from it.
struct HookProcess {
    child: Child,
    group: Pid,
    /// Readable once the process has ended.
    end: OwnedFd,
    /// `None` once all writers have closed the pipe.
    pipe: Option<PipeReader>,
}

impl HookProcess {
    fn start(hook: &HookCommand) -> io::Result<Self> {
        let Some((program, arguments)) = hook.words.split_first() else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let (pipe, writer) = io::pipe()?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(hook.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .current_dir("/")
            .process_group(0);
        for variable in OF_SERVICE_MANAGER {
            command.env_remove(variable);
        }
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        match pidfd_open(group, PidfdFlags::empty()) {
            Ok(end) => Ok(Self {
                child,
                group,
                end,
                pipe: Some(pipe),
            }),
            Err(error) => {
                let _killed = kill_process_group(group, Signal::KILL);
                child.wait()?;
                Err(error.into())
            }
        }
    }

    fn wait(
        &mut self,
        limit: Duration,
        gives_up: &dyn Fn() -> bool,
        output: &mut HookOutput<'_>,
    ) -> Result<(), HookFailureCause> {
        let started = Instant::now();
        loop {
            self.read(output);
            if let Ok(Some(status)) = self.child.try_wait() {
                self.read(output);
                return judged(status);
            }
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                self.kill(output);
                return Err(HookFailureCause::TooLong(millis(limit)));
            }
            if gives_up() {
                self.kill(output);
                return Err(HookFailureCause::GivenUp);
            }
            self.wait_for_event(left.min(LOOK), true);
        }
    }

    /// Waits for the end of the process, or for its output.
    fn wait_for_event(&self, limit: Duration, with_output: bool) {
        let mut watched = vec![PollFd::new(&self.end, PollFlags::IN)];
        if let Some(pipe) = self.pipe.as_ref().filter(|_| with_output) {
            watched.push(PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN));
        }
        // A wait that ends too early costs one more look.
        let _events = poll(&mut watched, Timespec::try_from(limit).ok().as_ref());
    }

    /// Reads what is in the pipe, or a part of much.
    fn read(&mut self, output: &mut HookOutput<'_>) {
        let mut bytes = [0; 4096];
        for _ in 0..READS_AT_ONCE {
            let Some(pipe) = &mut self.pipe else { return };
            match pipe.read(&mut bytes) {
                Ok(0) => self.pipe = None,
                Ok(count) => output.take(bytes.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }

    /// Kills the whole process group, while the group cannot be another one: its first process is not collected yet.
    fn kill(&mut self, output: &mut HookOutput<'_>) {
        if let Err(error) = kill_process_group(self.group, Signal::KILL) {
            tracing::warn!(%error, "a command around a snapshot cannot be killed");
        }
        self.wait_for_event(KILLED_WAIT, false);
        self.read(output);
        if matches!(self.child.try_wait(), Ok(None) | Err(_)) {
            tracing::warn!("a killed command around a snapshot has not ended yet");
        }
    }
}

fn judged(status: ExitStatus) -> Result<(), HookFailureCause> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(HookFailureCause::Exit(code)),
        (None, signal) => Err(HookFailureCause::Signal(signal.unwrap_or_default())),
    }
}

/// The output of a command, line by line.
struct HookOutput<'a> {
    log: &'a mut dyn FnMut(&str),
    /// The beginning of a line whose end is not there yet.
    line: Vec<u8>,
    last: VecDeque<String>,
    lines: usize,
}

impl<'a> HookOutput<'a> {
    fn new(log: &'a mut dyn FnMut(&str)) -> Self {
        Self {
            log,
            line: Vec::new(),
            last: VecDeque::new(),
            lines: 0,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.end_line();
            } else if self.line.len() < LINE_BYTES_MAX {
                self.line.push(*byte);
            }
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
        self.line.clear();
        self.lines += 1;
        if self.lines <= LOGGED_LINES_MAX {
            (self.log)(&line);
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    /// The last lines.
    fn finish(mut self) -> Vec<String> {
        if !self.line.is_empty() {
            self.end_line();
        }
        let left_out = self.lines.saturating_sub(LOGGED_LINES_MAX);
        if left_out > 0 {
            (self.log)(&format!("({left_out} more lines are left out)"));
        }
        self.last.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> HookCommand {
        HookCommand {
            words: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            environment: vec![("LOCKSTEP_SNAPSHOT", "a b".into())],
            limit,
        }
    }

    /// The outcome, and the lines in the log.
    fn outcome(hook: &HookCommand, gives_up: bool) -> (Result<(), HookFailure>, Vec<String>) {
        let mut lines = Vec::new();
        let outcome = run(hook, &|| gives_up, &mut |line| lines.push(line.to_owned()));
        (outcome, lines)
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_command_gets_its_variables_and_no_input_and_its_output_is_logged() {
        let script = "echo \"$LOCKSTEP_SNAPSHOT in $PWD\"; cat; printf end >&2";
        let (outcome, lines) = outcome(&shell(script, LONG), false);
        outcome.unwrap();
        assert_eq!(lines, ["a b in /", "end"]);
    }

    #[test]
    fn a_failure_tells_the_end_and_the_last_lines() {
        let (failed, _) = outcome(&shell("echo no room; exit 3", LONG), false);
        assert_eq!(
            failed.unwrap_err().to_string(),
            "/bin/sh ended with exit code 3; the end of its output:\n    no room"
        );
        let (killed, _) = outcome(&shell("kill -TERM $$", LONG), false);
        assert_eq!(
            killed.unwrap_err().to_string(),
            "/bin/sh was ended by signal 15"
        );
        let absent = HookCommand {
            words: vec!["/nowhere/freeze".to_owned()],
            ..shell("", LONG)
        };
        let text = outcome(&absent, false).0.unwrap_err().to_string();
        assert!(
            text.starts_with("/nowhere/freeze could not be started: No such file"),
            "{text}"
        );
    }

    /// Whether a process is there and no zombie.
    fn is_alive(pid: &str) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        state.is_ok_and(|it| !it.rsplit(')').next().unwrap().starts_with(" Z"))
    }

    /// Runs a shell that tells the number of its child and waits. Returns the end, and the number if the shell came so far.
    fn wait_in_vain(limit: Duration, gives_up: bool) -> (String, Option<String>) {
        let told = std::cell::RefCell::new(None);
        let gives_up = || gives_up && told.borrow().is_some();
        let hook = shell("sleep 600 & echo $!; wait", limit);
        let outcome = run(&hook, &gives_up, &mut |line| {
            told.replace(Some(line.to_owned()));
        });
        (outcome.unwrap_err().to_string(), told.take())
    }

    fn await_end(pid: &str) {
        while is_alive(pid) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_limit_kills_the_whole_group() {
        // A slow machine needs more time for the shell.
        let mut limits = (0..).map(|doubled| Duration::from_millis(200 << doubled));
        let child = limits.find_map(|limit| {
            let (end, child) = wait_in_vain(limit, false);
            let expected = format!("did not end within {} ms", limit.as_millis());
            assert!(end.contains(&expected), "{end}");
            child
        });
        await_end(&child.unwrap());
    }

    #[test]
    fn the_stop_of_the_node_kills_the_whole_group() {
        let (end, child) = wait_in_vain(LONG, true);
        assert!(end.contains("because the node stops"), "{end}");
        await_end(&child.unwrap());
    }

    #[test]
    fn a_child_that_goes_on_keeps_no_one_waiting() {
        let (outcome, lines) = outcome(&shell("sleep 600 & echo $!", LONG), false);
        outcome.unwrap();
        assert!(is_alive(&lines[0]));
        let pid = Pid::from_raw(lines[0].parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }

    #[test]
    fn much_output_is_cut() {
        let script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; done; head -c 9000 /dev/zero | tr '\\0' x; exit 1";
        let (outcome, lines) = outcome(&shell(script, LONG), false);
        assert_eq!(lines.len(), LOGGED_LINES_MAX + 1);
        assert_eq!(lines[LOGGED_LINES_MAX], "(201 more lines are left out)");
        let last = outcome.unwrap_err().last_lines;
        assert_eq!(last.len(), LAST_LINES);
        assert_eq!(last[LAST_LINES - 2], "300");
        assert_eq!(last[LAST_LINES - 1], "x".repeat(LINE_BYTES_MAX));
    }

    #[test]
    fn endless_output_does_not_put_the_limit_off() {
        let (outcome, _) = outcome(&shell("exec yes", Duration::from_millis(300)), false);
        let cause = outcome.unwrap_err().cause;
        assert!(matches!(cause, HookFailureCause::TooLong(300)), "{cause}");
    }
}
