//! The write-back of the kernel's dirty pages before a node gives its role away.
//!
//! The drop of the kernel's caches writes dirty pages back while programs wait. So most of them are written back before,
//! while this node still serves: with 256 MiB of them programs wait a third of the time.
//!
//! Invariant: the call that waits for the write-backs is made in a process or thread of its own. The write-backs come as
//! requests to this node, and a process that is killed while it waits for its own mount does not end.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use lockstep_driver::threads;

use crate::device::child_process::hidden_command;

/// The name of the command of the child process.
const COMMAND: &str = "write-back";

/// How long a failover waits for the write-backs. They go on after that.
const WRITE_BACK_WAIT_MAX: Duration = Duration::from_secs(5);

/// Writes the dirty pages of one mount back.
#[derive(Debug)]
pub(crate) struct WriteBack {
    mount_point: PathBuf,
    /// This program, for a child process: of a mount that outlives this process.
    program: Option<PathBuf>,
}

impl WriteBack {
    pub fn new(mount_point: &Path, program: Option<&Path>) -> Self {
        Self {
            mount_point: mount_point.to_owned(),
            program: program.map(Into::into),
        }
    }

    /// Has the kernel write back what is dirty now. Waits for that, but not without bound.
    pub fn run(&self) {
        let (done, is_done) = channel();
        let (mount_point, program) = (self.mount_point.clone(), self.program.clone());
        let begun = threads::spawn("fuse-write-back", move || {
            let written = match program {
                Some(program) => write_back_in_child(&program, &mount_point),
                None => write_back(&mount_point),
            };
            if let Err(error) = written {
                tracing::debug!(%error, "the kernel may not have written its pages back");
            }
            // The receiver may have given up.
            let _sent = done.send(());
        });
        match begun {
            // A write-back that takes longer goes on.
            Ok(_) => drop(is_done.recv_timeout(WRITE_BACK_WAIT_MAX)),
            Err(error) => tracing::debug!(%error, "no thread for the write-back"),
        }
    }
}

/// Has the kernel write back the dirty pages of the file system that is mounted at a directory.
///
/// # Errors
/// If the directory cannot be opened, or a write-back has failed.
pub fn write_back(mount_point: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(mount_point)?)?)
}

fn write_back_in_child(program: &Path, mount_point: &Path) -> io::Result<()> {
    let status = hidden_command(program, COMMAND).arg(mount_point).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("the child process: {status}")))
    }
}
