//! The steps of the demo in which the primary fails: its whole server, and its process alone.

use anyhow::{Result, bail, ensure};
use lockstep_types::{Choice, Role};
use rustix::system::uname;

use crate::mounts;

use super::show::{count, milliseconds};
use super::{Demo, FAILOVER_AFTER_MS, ids};

/// The first Linux that lets a mount outlive its process.
const HELD_MOUNT_SINCE: (u32, u32) = (6, 9);
/// How often the demo tries to restart the process in time. A busy machine may be too slow once.
const RESTARTS: u32 = 5;

impl Demo<'_> {
    /// The server of the primary dies: the other node takes over, and the dead one comes back as the secondary.
    pub(super) fn lose_the_primary(&mut self) -> Result<()> {
        self.show
            .step("Kill the primary in mid-write: the node, and the holder of its mount");
        let dead = self.cluster.primary;
        let before = self.cluster.mark()?;
        let node = self.cluster.playground.node(dead)?;
        self.show.command(&format!("kill -9 {}", ids(&node.pids())));
        node.kill_server()?;
        let after = self.cluster.await_records()?;
        self.cluster.await_takeover()?;
        let new = self.cluster.primary.word();
        self.show.good(&format!(
            "the client waited {}; then node {new} served it, without an operator",
            milliseconds(after.longest_pause)
        ));
        ensure!(
            after.interruptions > before.interruptions,
            "the client kept its connection with a dead server"
        );
        let status = self.cluster.status()?;
        self.show.good(&format!(
            "{} records were acknowledged before; node {new} is the primary of generation {}",
            count(before.acknowledged),
            status.generation
        ));
        self.bring_back(dead)?;
        let returned = self.cluster.playground.status(dead)?;
        ensure!(
            returned.role == Role::Secondary,
            "node {} came back as the {}",
            dead.word(),
            returned.role.word()
        );
        self.compare("Do both nodes hold the same again?")
    }

    /// The process of the primary dies, and the mount stays.
    pub(super) fn lose_a_process(&mut self) -> Result<()> {
        self.show
            .step("Kill the process of the primary alone: the server and the holder live on");
        if !can_hold_mounts(&uname().release().to_string_lossy()) {
            let (major, minor) = HELD_MOUNT_SINCE;
            self.show.note(&format!(
                "left out: a mount outlives its process from Linux {major}.{minor} on, and this is an older one"
            ));
            return Ok(());
        }
        for _ in 0..RESTARTS {
            if self.restart_process()? {
                return Ok(());
            }
            self.show.note(&format!(
                "this machine was too busy: the process came back after more than {FAILOVER_AFTER_MS} ms, and the other \
                 node took over, as it must; once more"
            ));
            self.cluster.await_takeover()?;
            self.cluster.await_protected()?;
        }
        bail!("the process came back too late {RESTARTS} times")
    }

    /// Kills the process of the primary and starts it again; false if it came back too late.
    fn restart_process(&mut self) -> Result<bool> {
        let name = self.cluster.primary;
        let generation = self.cluster.status()?.generation;
        let mount = self.cluster.mount()?;
        let before = self.cluster.mark()?;
        let node = self.cluster.playground.node(name)?;
        self.show.command(&format!("kill -9 {}", node.pid()));
        node.kill()?;
        let is_held = mounts::is_mounted(&mount)?;
        node.restart()?;
        let after = self.cluster.await_records()?;
        self.cluster.await_settled(generation)?;
        let status = self.cluster.playground.status(name)?;
        if status.generation != generation {
            return Ok(false);
        }
        let word = name.word();
        self.show
            .command(&self.cluster.playground.node(name)?.command_line());
        ensure!(is_held, "nothing was mounted after the process was killed");
        ensure!(
            after.interruptions == before.interruptions,
            "the client lost its connection when the process was killed"
        );
        self.show.good(
            "the mount stayed: the program on the server kept its open file, and its call waited",
        );
        self.show.good(&format!(
            "the client noticed nothing but a pause of {}: no error, and the same connection",
            milliseconds(after.longest_pause)
        ));
        self.show.good(&format!(
            "node {word} is still the primary of generation {generation}, and both nodes are in sync"
        ));
        Ok(true)
    }
}

/// Whether a Linux of this release lets a mount outlive its process.
fn can_hold_mounts(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    number().zip(number()) >= Some(HELD_MOUNT_SINCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_held_from_linux_6_9_on() {
        for release in ["6.9.0", "6.12.9+bpo-amd64", "6.10-rc1", "7.0.1"] {
            assert!(can_hold_mounts(release), "{release}");
        }
        for release in ["6.8.12-amd64", "5.19.0", "6", ""] {
            assert!(!can_hold_mounts(release), "{release}");
        }
    }
}
