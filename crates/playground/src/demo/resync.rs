//! The step of the demo in which the primary dies in the middle of a resync. The copy of the secondary is a mixture of two moments then, and the
//! secondary serves the whole copy from before.
//!
//! The resync is so slow that it cannot end before the primary dies, however slow the machine is.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::config::{self, DATASTORE};
use crate::options::ServerName;
use crate::program::StatusAnswer;
use crate::records::WrittenRecords;

use super::database::Ledger;
use super::files::{ChangedFile, DemoFiles, TREE};
use super::show::{count, duration, size};
use super::{Demo, check_all, ids};

/// Bytes of files that the resync reads in a second: [`ChangedFile`] takes half a minute.
const RESYNC_BYTES_PER_SEC: u64 = 1 << 20;

impl Demo<'_> {
    /// The primary has changed much alone, and dies while the secondary gets that. An operator has the secondary serve its whole copy.
    pub(super) fn lose_the_primary_in_a_resync(
        &mut self,
        files: &DemoFiles,
        records: WrittenRecords,
        ledger: &Ledger,
    ) -> Result<()> {
        self.show
            .step("Kill the primary in the middle of a resync, for good");
        let (primary, secondary) = (self.cluster.primary, self.cluster.primary.other());
        let file = ChangedFile::write(&self.cluster.mount()?)?;
        self.change_alone(secondary, &file)?;
        self.begin_resync(secondary)?;
        let node = self.cluster.playground.node(primary)?;
        self.show.command(&format!("kill -9 {}", ids(&node.pids())));
        node.kill_server()?;
        self.show_fallback(secondary)?;
        self.serve_fallback(secondary)?;
        let copy = self.copy_served(secondary)?;
        file.check(&copy)?;
        check_all(self.show, &copy, files, records, ledger)?;
        fs::remove_dir_all(copy).context("cannot remove a copy")?;
        self.take_back(primary)
    }

    /// Copies everything out of the mount. A database cannot be opened in a mount of another namespace.
    fn copy_served(&mut self, server: ServerName) -> Result<PathBuf> {
        let copy = self.work_dir.path().join("served");
        let mount = self.cluster.mount()?;
        self.show
            .command(&format!("cp -a {} {}", mount.display(), copy.display()));
        let seen = self.cluster.playground.seen_mount(server)?;
        let copied = Command::new("cp").arg("-a").arg(seen).arg(&copy).output();
        let copied = copied.context("cannot run cp")?;
        let errors = String::from_utf8_lossy(&copied.stderr);
        ensure!(copied.status.success(), "cp failed: {}", errors.trim_end());
        Ok(copy)
    }

    /// The server of the secondary dies, and the primary changes much without it.
    fn change_alone(&mut self, secondary: ServerName, file: &ChangedFile) -> Result<()> {
        let primary = self.cluster.primary;
        let node = self.cluster.playground.node(secondary)?;
        self.show.command(&format!("kill -9 {}", ids(&node.pids())));
        node.kill_server()?;
        let alone = |status: &StatusAnswer| status.started && !status.in_sync;
        let goes_on = "the primary goes on alone";
        self.cluster.await_status(primary, goes_on, alone)?;
        config::limit_resync(
            &self.cluster.playground.plan(primary)?.config,
            RESYNC_BYTES_PER_SEC,
        )?;
        let node = self.cluster.playground.node(primary)?;
        node.kill()?;
        node.restart()?;
        self.cluster.await_status(primary, goes_on, alone)?;
        self.show.note(&format!(
            "node {} has restarted with `resync_bytes_per_second = {RESYNC_BYTES_PER_SEC}`: its resyncs take their time",
            primary.word()
        ));
        let mount = self.cluster.mount()?;
        fs::remove_dir_all(mount.join(TREE)).context("cannot delete the small files")?;
        file.change(&mount)?;
        self.show.good(&format!(
            "node {} is alone, deletes the small files, and overwrites {} of another one",
            primary.word(),
            size(ChangedFile::BYTES as u64)
        ));
        Ok(())
    }

    /// The secondary comes back, and has got a part of the changes when this returns.
    fn begin_resync(&mut self, secondary: ServerName) -> Result<()> {
        let node = self.cluster.playground.node(secondary)?;
        node.restart()?;
        for command in node.command_lines() {
            self.show.command(&command);
        }
        let sends = |status: &StatusAnswer| status.resynced_bytes() > 0;
        self.cluster
            .await_status(self.cluster.primary, "the resync sends bytes", sends)?;
        let mixed = |status: &StatusAnswer| status.mixed;
        self.cluster
            .await_status(secondary, "the resync changes the copy", mixed)?;
        let sent = self.cluster.status()?.resynced_bytes();
        self.show.good(&format!(
            "a resync is under way, and has sent {} bytes: the copy of node {} shows no moment any more",
            count(sent),
            secondary.word()
        ));
        Ok(())
    }

    /// The secondary tells of its whole copy, and serves nothing by itself.
    fn show_fallback(&self, secondary: ServerName) -> Result<()> {
        self.show.command(&format!("lockstep status {DATASTORE}"));
        let playground = &self.cluster.playground;
        let row = playground.status_row(secondary, "fallback")?;
        self.show.good(&format!("fallback: {row}"));
        let status = playground.status(secondary)?;
        ensure!(
            status.mixed && !status.in_sync,
            "node {} is {}, in the middle of a resync",
            secondary.word(),
            status.state
        );
        Ok(())
    }

    /// An operator decides that the primary is lost.
    fn serve_fallback(&mut self, secondary: ServerName) -> Result<()> {
        self.show
            .command(&format!("lockstep promote {DATASTORE} --force-data-loss"));
        let started = Instant::now();
        self.cluster.playground.promote_by_force(secondary)?;
        self.cluster.await_takeover()?;
        let status = self.cluster.status()?;
        ensure!(!status.mixed, "the node serves a mixture");
        self.show.good(&format!(
            "node {} serves that moment, after {}, as the primary of generation {}",
            secondary.word(),
            duration(started.elapsed()),
            count(status.generation)
        ));
        Ok(())
    }

    /// The lost primary is found again. Its own changes become a snapshot.
    fn take_back(&mut self, lost: ServerName) -> Result<()> {
        let node = self.cluster.playground.node(lost)?;
        node.restart()?;
        for command in node.command_lines() {
            self.show.command(&command);
        }
        let asks = |status: &StatusAnswer| {
            let reason = status.reason.as_deref();
            reason.is_some_and(|reason| reason.contains("lockstep demote"))
        };
        self.cluster
            .await_status(lost, "the lost primary asks for a decision", asks)?;
        self.show.command(&format!("lockstep demote {DATASTORE}"));
        self.cluster.playground.demote(lost)?;
        self.cluster.await_protected()?;
        self.show.command(&format!("lockstep status {DATASTORE}"));
        let row = self.cluster.playground.status_row(lost, "lost copy")?;
        self.show.good(&format!("lost copy: {row}"));
        Ok(())
    }
}
