//! `lockstep node --background`: starts a node as another process, and returns when the node is ready.
//!
//! The node reports its state by systemd's protocol (`sd_notify`), to a socket in a directory that only this user
//! can reach.

use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cli::arguments::absolute;

/// Pause between two checks whether the node has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest message that the node sends.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Starts `lockstep node` with these arguments in a session of its own, and waits until the node is ready. The node
/// appends its log to `log`.
pub(in crate::cli) fn start(arguments: &[String], log: &Path) -> Result<ExitCode> {
    let log = absolute(log)?;
    let directory = PrivateDirectory::create().context("cannot make a directory for a socket")?;
    let socket = directory.path.join("ready");
    let notifications = UnixDatagram::bind(&socket).context("cannot make a socket")?;
    notifications.set_read_timeout(Some(POLL_INTERVAL))?;
    let mut node = spawn(arguments, &log, &socket)?;
    let mut status = String::new();
    loop {
        let ended = node.try_wait()?;
        while let Some(message) = receive(&notifications)? {
            for line in message.lines() {
                if line == "READY=1" {
                    return Ok(ExitCode::SUCCESS);
                }
                if let Some(text) = line.strip_prefix("STATUS=") {
                    text.clone_into(&mut status);
                }
            }
        }
        if let Some(ended) = ended {
            let cause = if status.is_empty() {
                ended.to_string()
            } else {
                status
            };
            bail!(
                "the node has not started: {cause}\n  its log is {}",
                log.display()
            );
        }
    }
}

/// A new directory that only this user can open, removed when dropped.
struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    fn create() -> io::Result<Self> {
        let random = RandomState::new().build_hasher().finish();
        let path = std::env::temp_dir().join(format!("lockstep-{random:016x}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the next message, if one arrives within [`POLL_INTERVAL`].
fn receive(socket: &UnixDatagram) -> Result<Option<String>> {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    match socket.recv(&mut message) {
        Ok(length) => {
            message.truncate(length);
            Ok(Some(String::from_utf8_lossy(&message).into_owned()))
        }
        Err(error) if is_no_message(&error) => Ok(None),
        Err(error) => Err(error).context("cannot receive messages of the node"),
    }
}

fn is_no_message(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

fn spawn(arguments: &[String], log: &Path, socket: &Path) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| {
            let path = log.display();
            format!(
                "cannot write the log {path}\n  cure: make its directory, or name a writable file"
            )
        })?;
    Command::new(program)
        // The file of this program may have the name of the mount helper.
        .arg0("lockstep")
        .args(["node", "--detached"])
        .args(arguments)
        // A working directory inside a file system would keep it from being unmounted.
        .current_dir("/")
        .env("NOTIFY_SOCKET", socket)
        .env_remove("WATCHDOG_USEC")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .context("cannot start the node")
}
