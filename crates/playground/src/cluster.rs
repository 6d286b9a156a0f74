//! A playground that fails over by itself, with a program on each server, the address that follows the primary, and a
//! client.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lockstep_types::Role;

use crate::cluster_address::ClusterAddressForwarder;
use crate::options::ServerName;
use crate::playground::Playground;
use crate::program::StatusAnswer;
use crate::record_client::{ClientProgress, RecordClient};
use crate::record_service::RecordService;
use crate::records::WrittenRecords;

/// How long the nodes may take to reach an expected state.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two status requests.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// The running cluster. Fields are dropped in this order: the client first, the nodes last.
pub(crate) struct FailoverCluster {
    client: Option<RecordClient>,
    address: ClusterAddressForwarder,
    services: Vec<RecordService>,
    pub(crate) playground: Playground,
    /// The node that is the primary.
    pub(crate) primary: ServerName,
    /// Ends every wait.
    interrupted: Arc<AtomicBool>,
}

impl FailoverCluster {
    /// Starts the programs and the address of a running playground, whose primary is node a. Once `interrupted` is true
    /// every wait ends with an error.
    pub(crate) fn start(playground: Playground, interrupted: Arc<AtomicBool>) -> Result<Self> {
        let mut services = Vec::new();
        let mut servers = Vec::new();
        for name in ServerName::ALL {
            let plan = playground.plan(name)?;
            let service = RecordService::start(&plan.mount)?;
            servers.push((plan.control.clone(), service.address()));
            services.push(service);
        }
        let address = ClusterAddressForwarder::start(playground.program(), &servers)?;
        Ok(Self {
            client: None,
            address,
            services,
            playground,
            primary: ServerName::A,
            interrupted,
        })
    }

    /// Starts the client, and waits for its first records.
    pub(crate) fn start_client(&mut self) -> Result<()> {
        self.client = Some(RecordClient::start(self.address.address())?);
        self.await_records().map(drop)
    }

    fn check_interrupted(&self) -> Result<()> {
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    /// The address that follows the primary.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.address.address()
    }

    /// The mount of the primary.
    pub(crate) fn mount(&self) -> Result<PathBuf> {
        Ok(self.playground.plan(self.primary)?.mount.clone())
    }

    /// The state of the datastore, as the primary reports it.
    pub(crate) fn status(&self) -> Result<StatusAnswer> {
        self.playground.status(self.primary)
    }

    fn client(&self) -> Result<&RecordClient> {
        self.client.as_ref().context("the client has ended")
    }

    /// The answers that the client has seen so far.
    pub(crate) fn progress(&self) -> Result<ClientProgress> {
        Ok(self.client()?.progress())
    }

    /// Begins to look for the client's longest pause anew, and returns what the client has seen so far.
    pub(crate) fn mark(&self) -> Result<ClientProgress> {
        Ok(self.client()?.mark())
    }

    /// Waits until the client has two more acknowledgements, since the first of them may have been under way already.
    pub(crate) fn await_records(&self) -> Result<ClientProgress> {
        let client = self.client()?;
        let (started, before) = (Instant::now(), client.progress().acknowledged);
        while client.progress().acknowledged < before + 2 {
            self.check_interrupted()?;
            ensure!(
                started.elapsed() < WAIT_LIMIT,
                "the client got no answer for {} s",
                WAIT_LIMIT.as_secs()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(client.progress())
    }

    /// Waits until the other node has taken over, and calls it the primary from then on.
    pub(crate) fn await_takeover(&mut self) -> Result<()> {
        let other = self.primary.other();
        self.await_status(other, "node has taken over", |status| {
            status.role == Role::Primary
        })?;
        self.primary = other;
        Ok(())
    }

    /// Waits until both nodes are in sync, and the witness protects the primary. Returns how long that took.
    pub(crate) fn await_protected(&self) -> Result<Duration> {
        self.await_status(self.primary, "both nodes are in sync", |status| {
            status.role == Role::Primary && status.in_sync && status.is_protected()
        })
    }

    /// Waits until the primary is protected again, or the other node has taken over in a later generation.
    pub(crate) fn await_settled(&self, generation: u64) -> Result<()> {
        let what = "its process has found its role again";
        self.await_status(self.primary, what, |status| {
            let is_same = status.generation == generation;
            let is_deposed = !is_same && status.role == Role::Secondary;
            is_deposed
                || is_same
                    && status.role == Role::Primary
                    && status.in_sync
                    && status.is_protected()
        })
        .map(drop)
    }

    /// Waits until a node reports a state. A node that does not answer yet is asked again.
    pub(crate) fn await_status(
        &self,
        name: ServerName,
        what: &str,
        is_so: impl Fn(&StatusAnswer) -> bool,
    ) -> Result<Duration> {
        let started = Instant::now();
        loop {
            self.check_interrupted()?;
            let status = self.playground.status(name);
            if status.as_ref().is_ok_and(&is_so) {
                return Ok(started.elapsed());
            }
            ensure!(
                started.elapsed() < WAIT_LIMIT,
                "waited {} s in vain until {what}; node {}: {}",
                WAIT_LIMIT.as_secs(),
                name.word(),
                state_line(&status?)
            );
            std::thread::sleep(ASK_INTERVAL);
        }
    }

    /// Stops the client, and returns its acknowledged records.
    pub(crate) fn finish_client(&mut self) -> Result<WrittenRecords> {
        let client = self.client.take();
        client.context("the client has ended")?.finish()
    }

    /// Ends the programs of the servers, and stops the nodes.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.client = None;
        self.services.clear();
        self.playground.stop()
    }

    /// Exports the store of a stopped node into `dest`.
    pub(crate) fn export(&self, name: ServerName, dest: &Path) -> Result<()> {
        self.playground.export(name, dest)
    }
}

/// The state in words, with the reason if there is one.
pub(crate) fn state_line(status: &StatusAnswer) -> String {
    let reason = status.reason.as_ref().map(|reason| format!(": {reason}"));
    format!("{}{}", status.state, reason.unwrap_or_default())
}
