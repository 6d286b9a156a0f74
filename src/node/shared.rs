//! The state that the threads of a node share, and the answers to the commands.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::Datastore;
use lockstep_driver::report::{
    ChangeReaderStatus, ChangesPart, ChangesQuestion, CommandFailure, DiffPart, DiffQuestion,
    ReaderCommand, RoleReport, SnapshotCommand, SnapshotStatus, TrashAnswer, TrashCommand,
    VerifyMode, VerifyProgress, VerifyReport,
};
use lockstep_fs::export::{ExportSummary, ExportWatch, Lost};
use lockstep_fs::seed::{SeedProgress, SeedSummary};
use lockstep_link::WarningLimiter;

use super::at_once::at_once;
use super::cluster_address::LEAVE_LIMIT;
use super::export::{write_out, write_seed};
use super::registry::DatastoreRegistry;
use super::slot::DatastoreSlot;
use crate::control::{ControlService, ExportQuestion, NodeStatus, RoleCommand};
use crate::stop_signal::StopSignal;

/// Pause before the second attempt to start a datastore.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest pause between two attempts.
const LONGEST_RETRY: Duration = Duration::from_secs(20);
/// Pause between two looks at the cluster addresses and the NFS servers behind them.
const ADDRESS_LOOK_INTERVAL: Duration = Duration::from_secs(3);

/// The state that the threads of a node share.
pub(super) struct NodeShared {
    /// Name of the node.
    pub name: String,
    /// The datastores.
    pub registry: DatastoreRegistry,
    /// Set when the node begins to stop.
    pub stop: StopSignal,
    /// Limits the log lines about refused connections.
    pub refusals: WarningLimiter,
}

impl NodeShared {
    /// Returns the datastore of that name, for a command, and its slot.
    ///
    /// # Errors
    /// If the node has no such datastore, or has not started it.
    fn running(&self, name: &str) -> Result<(Arc<DatastoreSlot>, Arc<Datastore>), CommandFailure> {
        let slot = self.registry.find(name).ok_or_else(|| {
            CommandFailure::new(
                format!("node {} has no datastore named {name}", self.name),
                format!("name one of: {}", self.registry.names()),
            )
        })?;
        let datastore = slot.running().ok_or_else(|| {
            CommandFailure::new(
                format!("node {} has not started {name}", self.name),
                "see the reason in `lockstep status`",
            )
        })?;
        Ok((slot, datastore))
    }

    /// Gives the role to the other node, after the cluster address has left this server, if that has it.
    fn hand_over(
        &self,
        slot: &DatastoreSlot,
        datastore: &Datastore,
        accepts_differences: bool,
    ) -> Result<RoleReport, CommandFailure> {
        // Programs go on until the node gives its role away, and an address that leaves for nothing would be an outage.
        datastore.role().prepare_hand_over()?;
        let unproved = datastore.check_before_failover(accepts_differences)?;
        let Some(address) = slot.address().here() else {
            let report = datastore.role().hand_over()?;
            return Ok(RoleReport { unproved, ..report });
        };
        let departure = slot.address().depart(address);
        let outcome = departure.wait(|| self.stop.is_set());
        if !outcome.left {
            tracing::warn!(
                datastore = datastore.name(),
                %address,
                limit_ms = LEAVE_LIMIT.as_millis(),
                "the cluster address has not left this server in time: the failover goes on; see the log of keepalived"
            );
        }
        let report = datastore.role().hand_over()?;
        Ok(RoleReport {
            address: Some(outcome),
            unproved,
            ..report
        })
    }

    /// Retries the datastores that could not be started, until all run. The pause between two attempts doubles.
    pub fn start_the_rest(&self) {
        let mut wait = FIRST_RETRY;
        loop {
            if self.stop.wait(wait) {
                return;
            }
            let all = self.registry.all().into_iter();
            let attempts: Vec<_> = all
                .filter(|slot| slot.running().is_none())
                .map(|slot| {
                    let before = slot.reason();
                    let started = slot.start(self.registry.identity());
                    slot.log_failure(before.as_ref());
                    started
                })
                .collect();
            if attempts.iter().all(Result::is_ok) {
                return;
            }
            wait = (wait * 2).min(LONGEST_RETRY);
        }
    }

    /// Returns the states of all datastores, in one line.
    pub fn summary(&self) -> String {
        let describe = |slot: &Arc<DatastoreSlot>| {
            let name = slot.name();
            match slot.running() {
                Some(datastore) => format!("{name}: {}", datastore.state().describe()),
                None => format!("{name}: NOT STARTED: {}", slot.reason().unwrap_or_default()),
            }
        };
        let all = self.registry.all();
        all.iter().map(describe).collect::<Vec<_>>().join("; ")
    }

    /// Looks at the cluster addresses, and at the NFS servers behind them, until the node stops.
    pub fn watch_addresses(&self) {
        loop {
            // A server that hangs costs seconds, and the end of the node waits for this thread.
            at_once(&self.registry.all(), |slot| slot.look_at_address());
            if self.stop.wait(ADDRESS_LOOK_INTERVAL) {
                return;
            }
        }
    }

    /// Returns a datastore whose maintenance has made no progress for `limit`, if there is one.
    pub fn stuck_for(&self, limit: Duration) -> Option<String> {
        let all = self.registry.all();
        let mut running = all.iter().filter_map(|slot| slot.running());
        let stuck = running.find(|datastore| datastore.since_tick() > limit)?;
        Some(stuck.name().to_owned())
    }
}

impl ControlService for NodeShared {
    fn status(&self) -> NodeStatus {
        let fingerprint = self.registry.identity().map(|it| it.fingerprint());
        NodeStatus {
            node: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            fingerprint: fingerprint.map(|fingerprint| fingerprint.to_string()),
            datastores: self
                .registry
                .all()
                .iter()
                .map(|slot| slot.status())
                .collect(),
        }
    }

    fn verify(
        &self,
        name: &str,
        mode: VerifyMode,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, CommandFailure> {
        self.running(name)?.1.verify(mode, progress)
    }

    fn changes(
        &self,
        name: &str,
        question: &ChangesQuestion,
        take: &mut dyn FnMut(ChangesPart) -> bool,
    ) -> Result<(), CommandFailure> {
        self.running(name)?.1.changes(question, take)
    }

    fn change_readers(
        &self,
        name: &str,
        command: &ReaderCommand,
    ) -> Result<Vec<ChangeReaderStatus>, CommandFailure> {
        self.running(name)?.1.change_readers(command)
    }

    fn snapshots(
        &self,
        name: &str,
        command: &SnapshotCommand,
    ) -> Result<Vec<SnapshotStatus>, CommandFailure> {
        self.running(name)?.1.snapshots(command)
    }

    fn trash(&self, name: &str, command: &TrashCommand) -> Result<TrashAnswer, CommandFailure> {
        self.running(name)?.1.trash(command)
    }

    fn export(
        &self,
        name: &str,
        question: &ExportQuestion,
        report: &mut dyn FnMut(&Lost),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<ExportSummary, CommandFailure> {
        let (_, datastore) = self.running(name)?;
        let goes_on = || goes_on() && !self.stop.is_set();
        let watch = ExportWatch {
            report,
            goes_on: &goes_on,
        };
        write_out(&datastore, question, watch)
    }

    fn export_seed(
        &self,
        name: &str,
        question: &ExportQuestion,
        progress: &mut dyn FnMut(SeedProgress),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<SeedSummary, CommandFailure> {
        let (_, datastore) = self.running(name)?;
        write_seed(&datastore, question, &mut |done| {
            progress(done);
            if goes_on() && !self.stop.is_set() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
    }

    fn snapshot_diff(
        &self,
        name: &str,
        question: &DiffQuestion,
        take: &mut dyn FnMut(DiffPart) -> bool,
    ) -> Result<(), CommandFailure> {
        self.running(name)?.1.snapshot_diff(question, take)
    }

    fn change_role(&self, name: &str, change: RoleCommand) -> Result<RoleReport, CommandFailure> {
        let (slot, datastore) = self.running(name)?;
        match change {
            RoleCommand::HandOver {
                accepts_differences,
            } => self.hand_over(&slot, &datastore, accepts_differences),
            RoleCommand::Promote { accepts_loss } => datastore.role().promote(accepts_loss),
            RoleCommand::Demote => datastore.role().demote(),
        }
    }

    fn follow_address(&self, name: &str, address: IpAddr, has_nfs: bool) {
        // The status tells the caller of a missing datastore.
        if let Some(slot) = self.registry.find(name) {
            slot.address().follow(address, has_nfs);
        }
    }
}
