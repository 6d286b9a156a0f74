//! A `lockstep playground` and its mount.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;

use crate::process::{self, Owned};

const START_PATIENCE: Duration = Duration::from_secs(60);
const STOP_PATIENCE: Duration = Duration::from_secs(120);

/// A running playground; dropping it stops it.
pub struct Playground {
    // Stops its nodes by itself. If the playground cannot, `drop` ends the nodes and the mount.
    process: Option<Owned>,
    described: Described,
}

/// The part of `playground.json` used here.
#[derive(Deserialize)]
struct Described {
    mount: PathBuf,
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    pid: u32,
}

impl Playground {
    /// Starts the playground of the build `program` in the new directory `dir` and waits until it is ready.
    pub fn start(program: &Path, dir: &Path, arguments: &[&str]) -> Result<Self> {
        std::fs::create_dir(dir).with_context(|| format!("make {}", dir.display()))?;
        let log = dir.with_extension("log");
        let mut child = Command::new(program)
            .arg("playground")
            .arg("--dir")
            .arg(dir)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).with_context(|| format!("make {}", log.display()))?)
            .spawn()
            .with_context(|| format!("start {} playground", program.display()))?;
        let stdout = child.stdout.take().context("no output to read")?;
        let process = Owned::new(child, STOP_PATIENCE);
        await_ready(stdout)
            .with_context(|| std::fs::read_to_string(&log).unwrap_or_default())
            .with_context(|| format!("lockstep playground {}", arguments.join(" ")))?;
        Ok(Self {
            process: Some(process),
            described: read_description(&dir.join("playground.json"))?,
        })
    }

    /// The mount point of its datastore.
    pub fn mount(&self) -> &Path {
        &self.described.mount
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        drop(self.process.take());
        for node in &self.described.nodes {
            let stat = PathBuf::from(format!("/proc/{}/comm", node.pid));
            if std::fs::read_to_string(stat).is_ok_and(|name| name.trim() == "lockstep") {
                process::terminate(node.pid);
            }
        }
        process::unmount(&self.described.mount);
    }
}

fn await_ready(stdout: ChildStdout) -> Result<()> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line).map(|_| line);
        // The receiver is gone after the timeout.
        let _ = sender.send(read);
    });
    let line = receiver
        .recv_timeout(START_PATIENCE)
        .map_err(|_| anyhow!("not ready after {START_PATIENCE:?}"))??;
    if line.trim() != "ready" {
        bail!("printed {line:?} instead of ready");
    }
    Ok(())
}

fn read_description(file: &Path) -> Result<Described> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("decode {}", file.display()))
}
