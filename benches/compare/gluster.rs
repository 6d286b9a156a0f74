//! A Gluster volume of two bricks in replica, on this machine, beside any other Gluster here.
//!
//! The daemon listens on 127.0.0.2 only and keeps its state, its control socket and the bricks in a directory of the
//! benchmark. So a stopped daemon leaves only a few lines in its own log.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{self, Owned};

const ADDRESS: &str = "127.0.0.2";
const VOLUME: &str = "compare";
const PATIENCE: Duration = Duration::from_secs(30);

/// A mounted volume; dropping it unmounts, stops the bricks and the daemon.
pub struct Gluster {
    dir: PathBuf,
    daemon: Option<Owned>,
}

impl Gluster {
    /// Starts the daemon in the new directory `dir`, makes and mounts a volume.
    pub fn start(dir: &Path) -> Result<Self> {
        for part in ["state", "run", "brick-1", "brick-2", "mount"] {
            let part = dir.join(part);
            std::fs::create_dir_all(&part).with_context(|| format!("make {}", part.display()))?;
        }
        let gluster = Self {
            dir: dir.to_owned(),
            daemon: Some(start_daemon(dir)?),
        };
        gluster.await_daemon()?;
        gluster.make_volume()?;
        gluster.mount_volume()?;
        Ok(gluster)
    }

    /// The mount point of the volume.
    pub fn mount(&self) -> PathBuf {
        self.dir.join("mount")
    }

    fn command(&self, arguments: &[&str]) -> Result<String> {
        let flag = |name: &str, file: &str| format!("--{name}={}", self.dir.join(file).display());
        process::output(
            Command::new("gluster")
                .arg("--mode=script")
                .arg(flag("glusterd-sock", "control"))
                .arg(flag("log-file", "cli.log"))
                .args(arguments),
        )
    }

    fn await_daemon(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.command(&["volume", "list"]) {
            if Instant::now() >= deadline {
                return Err(error.context("glusterd does not answer"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn make_volume(&self) -> Result<()> {
        let brick = |name: &str| format!("{ADDRESS}:{}", self.dir.join(name).display());
        let (one, two) = (brick("brick-1"), brick("brick-2"));
        self.command(&[
            "volume", "create", VOLUME, "replica", "2", &one, &two, "force",
        ])?;
        self.command(&["volume", "start", VOLUME])?;
        Ok(())
    }

    /// Waits until a write reaches both bricks: a new client may have found only one.
    fn mount_volume(&self) -> Result<()> {
        process::output(
            Command::new("glusterfs")
                .arg(format!("--volfile-server={ADDRESS}"))
                .arg(format!("--volfile-id={VOLUME}"))
                .arg("--log-file")
                .arg(self.dir.join("client.log"))
                .arg(self.mount()),
        )?;
        let deadline = Instant::now() + PATIENCE;
        while !self.reaches_both_bricks() {
            if Instant::now() >= deadline {
                bail!("the GlusterFS volume does not write to both bricks");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn reaches_both_bricks(&self) -> bool {
        let probe = self.mount().join("probe");
        let written = std::fs::write(&probe, "probe").is_ok();
        let both = ["brick-1", "brick-2"]
            .iter()
            .all(|brick| self.dir.join(brick).join("probe").exists());
        let removed = std::fs::remove_file(&probe).is_ok();
        written && both && removed
    }

    /// Process ids that the daemon noted for its bricks and helpers.
    fn noted_pids(&self) -> Vec<u32> {
        let Ok(found) = process::output(
            Command::new("find")
                .arg(self.dir.join("run"))
                .args(["-name", "*.pid", "-exec", "cat", "{}", "+"]),
        ) else {
            return Vec::new();
        };
        found
            .lines()
            .filter_map(|pid| pid.trim().parse().ok())
            .collect()
    }
}

impl Drop for Gluster {
    fn drop(&mut self) {
        process::unmount(&self.mount());
        let pids = self.noted_pids();
        // If one of these fails, the next, harder step does its work.
        let _ = self.command(&["volume", "stop", VOLUME, "force"]);
        drop(self.daemon.take());
        for pid in pids {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name.starts_with("gluster") {
                process::terminate(pid);
            }
        }
    }
}

fn start_daemon(dir: &Path) -> Result<Owned> {
    let volfile = dir.join("glusterd.vol");
    let text = format!(
        "volume management\n\
         type mgmt/glusterd\n\
         option working-directory {0}/state\n\
         option run-directory {0}/run\n\
         option glusterd-sockfile {0}/control\n\
         option transport-type socket\n\
         option transport.socket.bind-address {ADDRESS}\n\
         option transport.socket.listen-port 24007\n\
         option ping-timeout 0\n\
         option event-threads 1\n\
         end-volume\n",
        dir.display()
    );
    std::fs::write(&volfile, text).with_context(|| format!("write {}", volfile.display()))?;
    let child = Command::new("glusterd")
        .arg("--no-daemon")
        .arg("--volfile")
        .arg(&volfile)
        .arg("--pid-file")
        .arg(dir.join("glusterd.pid"))
        .arg("--log-file")
        .arg(dir.join("glusterd.log"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start glusterd")?;
    Ok(Owned::new(child, PATIENCE))
}
