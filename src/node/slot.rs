//! One datastore of a node: it runs, or it is not started and the node tries again.
//!
//! Invariants: a failed start leaves nothing open, mounted or locked behind. A running datastore is never started a
//! second time. The lock of the state is never held while a store is opened or mounted, so that a request for the
//! status never waits for a disk.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_driver::config::FailoverTimes;
use lockstep_driver::report::{DatastoreStatus, ServiceStatus, StrayStatus, SyncStatus};
use lockstep_driver::{Datastore, DatastoreHandle, Dialer, Place, prepare, threads};
use lockstep_fs::InoRanges;
use lockstep_link::Identity;
use lockstep_mount::hold::DescriptorStore;
use lockstep_mount::{MountError, MountNotice, MountOptions, Mounted, Unmounted};
use lockstep_types::time::millis;
use parking_lot::Mutex;

use super::cluster_address::FollowedAddress;
use super::error::{NodeError, system};
use super::witnesses::NodeWitness;
use crate::config::DatastoreConfig;
use crate::service_manager::one_line;
use crate::signals::Waker;

/// One datastore of the configuration.
pub(super) struct DatastoreSlot {
    config: DatastoreConfig,
    witness: Option<NodeWitness>,
    descriptors: Arc<DescriptorStore>,
    /// Wakes the thread that takes the events of the mount.
    waker: Waker,
    address: FollowedAddress,
    state: Mutex<SlotState>,
}

/// Whether a datastore runs.
enum SlotState {
    /// The datastore was not started yet, or could not be started.
    Stopped(StoppedDatastore),
    /// The datastore runs.
    Running(RunningDatastore),
}

struct StoppedDatastore {
    since: Instant,
    /// Why the last start failed; `None` before the first attempt has ended.
    reason: Option<String>,
}

struct RunningDatastore {
    datastore: Arc<Datastore>,
    mounted: Option<Mounted>,
    threads: Vec<JoinHandle<()>>,
    /// Entries of the mount directory itself, which the mount hides.
    hidden: Option<StrayStatus>,
}

impl DatastoreSlot {
    /// A datastore before its first start.
    pub fn new(
        config: DatastoreConfig,
        witness: Option<NodeWitness>,
        descriptors: Arc<DescriptorStore>,
        waker: Waker,
    ) -> Self {
        let stopped = StoppedDatastore {
            since: Instant::now(),
            reason: None,
        };
        Self {
            config,
            witness,
            descriptors,
            waker,
            address: FollowedAddress::default(),
            state: Mutex::new(SlotState::Stopped(stopped)),
        }
    }

    pub const fn config(&self) -> &DatastoreConfig {
        &self.config
    }

    pub const fn address(&self) -> &FollowedAddress {
        &self.address
    }

    /// Looks where the cluster address is, and whether the NFS server behind it answers.
    pub fn look_at_address(&self) {
        self.address.look(|| {
            let running = self.running();
            running.map_or(ServiceStatus::None, |datastore| {
                datastore.status().sync.service
            })
        });
    }

    /// Returns the datastore, if it runs.
    pub fn running(&self) -> Option<Arc<Datastore>> {
        match &*self.state.lock() {
            SlotState::Running(running) => Some(Arc::clone(&running.datastore)),
            SlotState::Stopped(_) => None,
        }
    }

    /// Returns why the last start failed; `None` if the datastore runs or no attempt has ended yet.
    pub fn reason(&self) -> Option<String> {
        match &*self.state.lock() {
            SlotState::Running(_) => None,
            SlotState::Stopped(stopped) => stopped.reason.clone(),
        }
    }

    /// Opens the store, mounts it, and starts its threads. Logs no failure. Only one thread at a time
    /// may call this, and only while the datastore does not run.
    pub fn start(&self, identity: Option<&Arc<Identity>>) -> Result<(), NodeError> {
        match self.open_and_serve(identity) {
            Ok(running) => {
                self.log_hidden(running.hidden.as_ref());
                *self.state.lock() = SlotState::Running(running);
                tracing::info!(datastore = self.config.name, "started");
                Ok(())
            }
            Err(error) => {
                self.note_failure(&error);
                Err(error)
            }
        }
    }

    /// Stores the reason of a failed start.
    fn note_failure(&self, error: &NodeError) {
        if let SlotState::Stopped(stopped) = &mut *self.state.lock() {
            stopped.reason = Some(one_line(&error.to_string()));
        }
    }

    /// Logs why the last start failed, unless that is the same as `before`.
    pub fn log_failure(&self, before: Option<&String>) {
        if let Some(reason) = self.reason().filter(|reason| Some(reason) != before) {
            let datastore = &self.config.name;
            tracing::error!(datastore, reason, "cannot start this datastore");
        }
    }

    fn log_hidden(&self, hidden: Option<&StrayStatus>) {
        if let Some(stray) = hidden {
            tracing::warn!(
                datastore = self.config.name,
                mount = %self.config.mount.display(),
                names = stray.names.join(", "),
                "the mount directory itself holds files, which are not part of the datastore: programs wrote \
                 them while nothing was mounted there; move them away while the node is stopped"
            );
        }
    }

    /// The configuration, with the values that follow from the fingerprints of both nodes.
    fn config_with(&self, identity: Option<&Arc<Identity>>) -> DatastoreConfig {
        let mut config = self.config.clone();
        if let (Some(peer), Some(identity)) = (&mut config.peer, identity)
            && identity.fingerprint() > peer.fingerprint
        {
            peer.ino_ranges = InoRanges::Odd;
        }
        config
    }

    /// Checks that the peer is another node.
    fn check_peer(&self, identity: Option<&Arc<Identity>>) -> Result<(), NodeError> {
        let own = identity.map(|identity| identity.fingerprint());
        let peer = self.config.peer.as_ref().map(|peer| peer.fingerprint);
        if own.is_some() && own == peer {
            let datastore = self.config.name.clone();
            return Err(NodeError::OwnPeer { datastore });
        }
        Ok(())
    }

    fn open_and_serve(
        &self,
        identity: Option<&Arc<Identity>>,
    ) -> Result<RunningDatastore, NodeError> {
        self.check_peer(identity)?;
        lockstep_mount::check(&self.mount_options())?;
        let place = Place::on_this_machine(&self.config)?;
        let datastore = prepare(self.config_with(identity), place)?.open()?;
        let mut running = RunningDatastore {
            hidden: self.stray(),
            datastore,
            mounted: None,
            threads: Vec::new(),
        };
        match self.serve(&mut running, identity) {
            Ok(()) => Ok(running),
            Err(error) => {
                // The caller gets the first error; errors of this shutdown are in the log.
                let _is_clean = running.unmount();
                running.stop();
                let _is_clean = running.close();
                Err(error)
            }
        }
    }

    /// Mounts the datastore and starts its threads.
    fn serve(
        &self,
        running: &mut RunningDatastore,
        identity: Option<&Arc<Identity>>,
    ) -> Result<(), NodeError> {
        let service = Arc::new(DatastoreHandle::new(Arc::clone(&running.datastore)));
        running.mounted = Some(lockstep_mount::mount(service, &self.mount_options())?);
        running.datastore.reap_orphans();
        let maintained = Arc::clone(&running.datastore);
        running.start_thread("maintenance", move || maintained.run_maintenance())?;
        let watched = Arc::clone(&running.datastore);
        running.start_thread("disk-watch", move || watched.role().watch_disk())?;
        let dialer = identity
            .and_then(|identity| Dialer::new(running.datastore.config(), Arc::clone(identity)));
        if let Some(dialer) = dialer {
            let datastore = Arc::clone(&running.datastore);
            running.start_thread("dialer", move || datastore.role().run_dialer(&dialer))?;
        }
        self.ask_witness(running)
    }

    /// Starts the thread that asks the witness, if the datastore has one.
    fn ask_witness(&self, running: &mut RunningDatastore) -> Result<(), NodeError> {
        let (Some(witness), Some(peer)) = (&self.witness, &self.config.peer) else {
            return Ok(());
        };
        let (client, uuid) = (&witness.client, self.config.uuid);
        let me = client.member(uuid, peer.fingerprint)?;
        let witness = client.datastore(uuid, peer.fingerprint)?;
        let leased = Arc::clone(&running.datastore);
        running.start_thread("lease", move || leased.role().run_lease_timer())?;
        let asking = Arc::clone(&running.datastore);
        running.start_thread("witness", move || {
            asking.role().ask_witness(Arc::from(witness), me);
        })
    }

    /// The length of a lease, if this node serves under leases.
    fn lease(&self) -> Option<Duration> {
        let times = self.config.failover().filter(|_| self.witness.is_some());
        times.map(FailoverTimes::lease)
    }

    fn mount_options(&self) -> MountOptions {
        let waker = self.waker.clone();
        MountOptions {
            threads: self.config.fuse_threads,
            descriptors: Arc::clone(&self.descriptors),
            held_name: format!("lockstep.{}", self.config.uuid),
            program: Some("/proc/self/exe".into()),
            lease: self.lease(),
            notice: MountNotice::new(move || waker.wake()),
            standby: self.config.policies.standby,
            ..MountOptions::new(&self.config.mount, &self.config.name)
        }
    }

    /// Returns entries of the mount directory itself while nothing is mounted there.
    fn stray(&self) -> Option<StrayStatus> {
        let stray = lockstep_mount::bare_entries(&self.config.mount)?;
        Some(StrayStatus {
            names: stray.names,
            more: stray.more,
        })
    }

    /// Takes the event that the mount has ended or failed, as an error.
    pub fn take_mount_event(&self) -> Option<NodeError> {
        let SlotState::Running(running) = &*self.state.lock() else {
            return None;
        };
        let mount = running.mounted.as_ref()?;
        Some(match mount.take_event()? {
            Err(error) => NodeError::Mount(error),
            Ok(()) => NodeError::Unmounted {
                mount_point: mount.mount_point().to_owned(),
            },
        })
    }

    /// Unmounts the datastore. Returns whether that succeeded.
    pub fn unmount(&self) -> bool {
        match &mut *self.state.lock() {
            SlotState::Running(running) => running.unmount(),
            SlotState::Stopped(_) => true,
        }
    }

    /// Ends all work of the datastore.
    pub fn stop(&self) {
        if let Some(datastore) = self.running() {
            datastore.stop();
        }
    }

    /// Waits for the threads of the datastore and puts everything on stable storage. Returns whether that succeeded.
    pub fn close(&self) -> bool {
        match &mut *self.state.lock() {
            SlotState::Running(running) => running.close(),
            SlotState::Stopped(_) => true,
        }
    }

    /// Returns the status for operators.
    pub fn status(&self) -> DatastoreStatus {
        let (hidden, outlives) = match &*self.state.lock() {
            SlotState::Running(running) => {
                let mounted = running.mounted.as_ref();
                let hidden = mounted.map(|_| running.hidden.clone());
                (hidden, mounted.is_some_and(Mounted::outlives_process))
            }
            SlotState::Stopped(_) => (None, false),
        };
        // Without a mount the directory itself can be read.
        let stray = hidden.unwrap_or_else(|| self.stray());
        let mut status = match self.running() {
            Some(datastore) => datastore.status(),
            None => self.status_while_stopped(),
        };
        if let (Some(status), Some(witness)) = (&mut status.witness, &self.witness) {
            status.address.clone_from(&witness.address);
        }
        status.sync.restart_within_ms.take_if(|_| !outlives);
        self.address.amend(&mut status.sync);
        DatastoreStatus { stray, ..status }
    }

    fn status_while_stopped(&self) -> DatastoreStatus {
        let (since, reason) = match &*self.state.lock() {
            SlotState::Stopped(stopped) => (stopped.since.elapsed(), stopped.reason.clone()),
            SlotState::Running(_) => (Duration::ZERO, None),
        };
        let state = if reason.is_some() {
            "not started"
        } else {
            "starting"
        };
        DatastoreStatus {
            sync: SyncStatus {
                state: state.to_owned(),
                service_since_ms: 0,
                restart_within_ms: None,
                since_ms: millis(since),
                reason,
                started: false,
                service: ServiceStatus::None,
                ..DatastoreStatus::of_configuration(&self.config).sync
            },
            ..DatastoreStatus::of_configuration(&self.config)
        }
    }
}

impl RunningDatastore {
    fn start_thread(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), NodeError> {
        let thread = threads::spawn(name, body).map_err(system("start a thread"))?;
        self.threads.push(thread);
        Ok(())
    }

    fn unmount(&mut self) -> bool {
        let unmounted = self.mounted.take().map(Mounted::unmount);
        unmounted.is_none_or(|outcome: Result<Unmounted, MountError>| {
            if let Err(error) = &outcome {
                tracing::error!(%error, "still mounted");
            }
            outcome.is_ok()
        })
    }

    fn stop(&self) {
        self.datastore.stop();
    }

    fn close(&mut self) -> bool {
        for thread in self.threads.drain(..) {
            // A thread that panics ends the process, so there is no panic to handle.
            let _ended = thread.join();
        }
        self.datastore.close()
    }
}
