//! Processes that end with their owner, and commands that must succeed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A running process. Dropping it sends SIGTERM, and SIGKILL later.
pub struct Owned {
    child: Child,
    patience: Duration,
}

impl Owned {
    /// Takes over `child`, which has `patience` to end after SIGTERM.
    pub fn new(child: Child, patience: Duration) -> Self {
        Self { child, patience }
    }

    /// Whether the process still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.runs() {
            terminate(self.child.id());
        }
        let deadline = Instant::now() + self.patience;
        while self.runs() {
            if Instant::now() >= deadline {
                // An error means that the process has just ended.
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Sends SIGTERM; nothing happens if the process is gone.
pub fn terminate(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Runs a command to its end and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let done = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {command:?}"))?;
    if !done.status.success() {
        bail!(
            "{command:?}: {}: {}{}",
            done.status,
            String::from_utf8_lossy(&done.stderr),
            String::from_utf8_lossy(&done.stdout)
        );
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Detaches a mount, busy or not; nothing happens if there is none.
pub fn unmount(mount: &Path) {
    let _ = Command::new("umount")
        .arg("-l")
        .arg(mount)
        .stderr(Stdio::null())
        .status();
}

/// Whether a program is on the `PATH` or among the system programs.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(program).is_file())
}
