//! A process that a test has started.
//!
//! Invariant: the process has ended when the [`Process`] is dropped. It ends, too, if the test itself is killed: `setpriv` becomes
//! the process, and has asked the kernel for that.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::await_that;

/// A killed process has mostly ended by then.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two looks whether it has.
const KILL_LOOK: Duration = Duration::from_millis(1);

/// The way to start a process, such as in another namespace.
pub type Spawn = Arc<dyn Fn(&mut Command) -> io::Result<Child> + Send + Sync>;

/// Returns the command that runs a program, with its output at the end of a log. The process dies with the test.
pub fn logged_command(program: &str, log: &Path) -> Command {
    let log = OpenOptions::new().create(true).append(true).open(log);
    let log = log.unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", program])
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    command
}

/// A process that runs, or that has ended and was not waited for.
pub struct Process {
    /// The name of the process in messages.
    name: String,
    child: Child,
}

impl Process {
    /// Starts a command.
    pub fn start(name: &str, command: &mut Command) -> Self {
        Self::of(name, command.spawn().unwrap())
    }

    /// Takes over a process that was started.
    pub fn of(name: &str, child: Child) -> Self {
        Self {
            name: name.to_owned(),
            child,
        }
    }

    /// Returns the number of the process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the directory of the process in `/proc`.
    pub fn proc(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.pid().as_raw_nonzero()))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Returns how the process has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Ends the process with SIGKILL, as a crash does.
    pub fn kill(self) {
        self.kill_or(|| ());
    }

    /// Ends the process with SIGKILL. Calls `release` if the process waits for something that outlives it.
    pub fn kill_or(mut self, release: impl FnOnce()) {
        self.signal(Signal::KILL);
        let deadline = Instant::now() + KILL_LIMIT;
        while self.ended().is_none() && Instant::now() < deadline {
            sleep(KILL_LOOK);
        }
        if self.ended().is_none() {
            release();
        }
        let status = self.child.wait().unwrap();
        let is_killed = status.signal() == Some(9);
        assert!(is_killed, "the {} ended by itself: {status}", self.name);
    }

    /// Ends the process with SIGTERM, as an administrator does.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.await_end("stop");
        assert!(status.success(), "the {} stopped: {status}", self.name);
    }

    /// Waits until the process has ended by itself, without an error.
    pub fn await_success(mut self) {
        let status = self.await_end("end by itself");
        assert!(status.success(), "the {} ended: {status}", self.name);
    }

    /// Waits until the process has ended by itself, with an error.
    pub fn await_failure(mut self) {
        let status = self.await_end("end by itself");
        assert_eq!(status.code(), Some(2), "the {} ended: {status}", self.name);
    }

    fn await_end(&mut self, how: &str) -> ExitStatus {
        let mut ended = None;
        await_that(&format!("the {} to {how}", self.name), || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
