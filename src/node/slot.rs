//! One datastore of a node: it runs, or it is not started and the node tries again.
//!
//! Invariants: a failed start leaves nothing open, mounted or locked behind. A running datastore is never started a
//! second time. A datastore that was taken off the node is never started again. The lock of the state is never held while
//! a store is opened or mounted, so that a request for the status never waits for a disk.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_driver::config::{ConfigRefused, FailoverTimes};
use lockstep_driver::report::{DatastoreStatus, ServiceStatus, StrayStatus, SyncStatus};
use lockstep_driver::{Datastore, DatastoreHandle, Dialer, Place, prepare, threads};
use lockstep_fs::InoRanges;
use lockstep_link::{Fingerprint, Identity};
use lockstep_mount::hold::DescriptorStore;
use lockstep_mount::{MountError, MountNotice, MountOptions, Mounted, Unmounted};
use lockstep_types::time::millis;
use parking_lot::{Mutex, RwLock};

use super::cluster_address::FollowedAddress;
use super::error::{NodeError, system};
use super::witnesses::NodeWitness;
use crate::config::{DatastoreConfig, WitnessConfig};
use crate::service_manager::one_line;
use crate::signals::Waker;

/// The longest wait for the threads that use a datastore which has ended.
const RELEASE_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two looks for them. A datastore is seldom taken off a running node.
const RELEASE_INTERVAL: Duration = Duration::from_millis(5);

/// One datastore of the configuration.
pub(super) struct DatastoreSlot {
    name: String,
    config: RwLock<Arc<DatastoreConfig>>,
    witness: Option<NodeWitness>,
    descriptors: Arc<DescriptorStore>,
    /// Wakes the thread that takes the events of the mount.
    waker: Waker,
    address: FollowedAddress,
    state: Mutex<SlotState>,
    /// Held by the thread that starts the datastore, or ends it for good.
    changing: Mutex<()>,
}

/// Whether a datastore runs.
enum SlotState {
    /// The datastore was not started yet, or could not be started.
    Stopped(StoppedDatastore),
    /// The datastore runs.
    Running(RunningDatastore),
    /// The datastore was taken off the node, and is never started again.
    Ended,
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
            name: config.name.clone(),
            config: RwLock::new(Arc::new(config)),
            witness,
            descriptors,
            waker,
            address: FollowedAddress::default(),
            state: Mutex::new(SlotState::Stopped(stopped)),
            changing: Mutex::new(()),
        }
    }

    /// Name of the datastore.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The configuration of this moment.
    pub fn config(&self) -> Arc<DatastoreConfig> {
        Arc::clone(&self.config.read())
    }

    /// The fingerprint of the peer.
    pub fn peer(&self) -> Option<Fingerprint> {
        let config = self.config.read();
        config.peer.as_ref().map(|peer| peer.fingerprint)
    }

    /// Whether the other node of the datastore has this fingerprint.
    pub fn has_peer(&self, fingerprint: Fingerprint) -> bool {
        self.peer() == Some(fingerprint)
    }

    /// The witness that this node asks.
    pub fn witness(&self) -> Option<&WitnessConfig> {
        self.witness.as_ref().map(|witness| &witness.config)
    }

    /// Takes another configuration with the same name. The caller holds the registry for a change.
    ///
    /// # Errors
    /// If a running datastore cannot follow the change. Then nothing changes.
    pub fn reconfigure(&self, new: DatastoreConfig) -> Result<(), ConfigRefused> {
        let _changing = self.changing.lock();
        if let Some(datastore) = self.running() {
            datastore.reconfigure(new.clone())?;
        }
        *self.config.write() = Arc::new(new);
        Ok(())
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
            SlotState::Stopped(_) | SlotState::Ended => None,
        }
    }

    /// Returns why the last start failed; `None` if the datastore runs or no attempt has ended yet.
    pub fn reason(&self) -> Option<String> {
        match &*self.state.lock() {
            SlotState::Running(_) | SlotState::Ended => None,
            SlotState::Stopped(stopped) => stopped.reason.clone(),
        }
    }

    /// Opens the store, mounts it, and starts its threads. Logs no failure. Does nothing if the datastore runs, or was taken off
    /// the node.
    pub fn start(&self, identity: Option<&Arc<Identity>>) -> Result<(), NodeError> {
        let _changing = self.changing.lock();
        if !matches!(&*self.state.lock(), SlotState::Stopped(_)) {
            return Ok(());
        }
        match self.open_and_serve(identity) {
            Ok(running) => {
                self.log_hidden(running.hidden.as_ref());
                *self.state.lock() = SlotState::Running(running);
                tracing::info!(datastore = self.name, "started");
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
            let datastore = &self.name;
            tracing::error!(datastore, reason, "cannot start this datastore");
        }
    }

    fn log_hidden(&self, hidden: Option<&StrayStatus>) {
        if let Some(stray) = hidden {
            tracing::warn!(
                datastore = self.name,
                mount = %self.config().mount.display(),
                names = stray.names.join(", "),
                "the mount directory itself holds files, which are not part of the datastore: programs wrote \
                 them while nothing was mounted there; move them away while the node is stopped"
            );
        }
    }

    /// The configuration, with the values that follow from the fingerprints of both nodes.
    fn config_with(&self, identity: Option<&Arc<Identity>>) -> DatastoreConfig {
        let mut config = DatastoreConfig::clone(&self.config());
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
        let peer = self.peer();
        if own.is_some() && own == peer {
            let datastore = self.name.clone();
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
        let place = Place::on_this_machine(&self.config())?;
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
        let (Some(witness), Some(peer)) = (&self.witness, self.peer()) else {
            return Ok(());
        };
        let (client, uuid) = (&witness.client, self.config().uuid);
        let me = client.member(uuid, peer)?;
        let witness = client.datastore(uuid, peer)?;
        let leased = Arc::clone(&running.datastore);
        running.start_thread("lease", move || leased.role().run_lease_timer())?;
        let asking = Arc::clone(&running.datastore);
        running.start_thread("witness", move || {
            asking.role().ask_witness(Arc::from(witness), me);
        })
    }

    /// The length of a lease, if this node serves under leases.
    fn lease(&self) -> Option<Duration> {
        let times = self.config().failover().filter(|_| self.witness.is_some());
        times.map(FailoverTimes::lease)
    }

    fn mount_options(&self) -> MountOptions {
        let (config, waker) = (self.config(), self.waker.clone());
        MountOptions {
            threads: config.fuse_threads,
            descriptors: Arc::clone(&self.descriptors),
            held_name: format!("lockstep.{}", config.uuid),
            program: Some("/proc/self/exe".into()),
            lease: self.lease(),
            notice: MountNotice::new(move || waker.wake()),
            standby: config.policies.standby,
            ..MountOptions::new(&config.mount, &config.name)
        }
    }

    /// Returns entries of the mount directory itself while nothing is mounted there.
    fn stray(&self) -> Option<StrayStatus> {
        let stray = lockstep_mount::bare_entries(&self.config().mount)?;
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
            SlotState::Stopped(_) | SlotState::Ended => true,
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
            SlotState::Stopped(_) | SlotState::Ended => true,
        }
    }

    /// Ends the datastore for good, in the order in which a node stops. A start that is under way ends first. Returns whether the
    /// end was clean, and nothing of the datastore is left.
    pub fn end(&self) -> bool {
        let _changing = self.changing.lock();
        let state = std::mem::replace(&mut *self.state.lock(), SlotState::Ended);
        let SlotState::Running(mut running) = state else {
            return true;
        };
        let is_unmounted = running.unmount();
        running.stop();
        let is_closed = running.close();
        running.release() && is_unmounted && is_closed
    }

    /// Returns the status for operators.
    pub fn status(&self) -> DatastoreStatus {
        let (hidden, outlives) = match &*self.state.lock() {
            SlotState::Running(running) => {
                let mounted = running.mounted.as_ref();
                let hidden = mounted.map(|_| running.hidden.clone());
                (hidden, mounted.is_some_and(Mounted::outlives_process))
            }
            SlotState::Stopped(_) | SlotState::Ended => (None, false),
        };
        // Without a mount the directory itself can be read.
        let stray = hidden.unwrap_or_else(|| self.stray());
        let mut status = match self.running() {
            Some(datastore) => datastore.status(),
            None => self.status_while_stopped(),
        };
        if let (Some(status), Some(witness)) = (&mut status.witness, &self.witness) {
            status.address = witness.config.address();
        }
        status.sync.restart_within_ms.take_if(|_| !outlives);
        self.address.amend(&mut status.sync);
        DatastoreStatus { stray, ..status }
    }

    fn status_while_stopped(&self) -> DatastoreStatus {
        let (since, reason) = match &*self.state.lock() {
            SlotState::Stopped(stopped) => (stopped.since.elapsed(), stopped.reason.clone()),
            SlotState::Running(_) | SlotState::Ended => (Duration::ZERO, None),
        };
        let state = if reason.is_some() {
            "not started"
        } else {
            "starting"
        };
        let configured = DatastoreStatus::of_configuration(&self.config());
        DatastoreStatus {
            sync: SyncStatus {
                state: state.to_owned(),
                service_since_ms: 0,
                restart_within_ms: None,
                since_ms: millis(since),
                reason,
                started: false,
                service: ServiceStatus::None,
                ..configured.sync
            },
            ..configured
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

    /// Waits until no thread uses the datastore any more: connections of the peer, commands and requests of programs end soon
    /// after it has stopped. Returns whether that is so: the lock of its store is free then.
    fn release(self) -> bool {
        let name = self.datastore.name().to_owned();
        let left = Arc::downgrade(&self.datastore);
        drop(self);
        let start = Instant::now();
        while left.strong_count() > 0 {
            if start.elapsed() > RELEASE_LIMIT {
                tracing::error!(datastore = name, "still in use after its end");
                return false;
            }
            thread::sleep(RELEASE_INTERVAL);
        }
        true
    }
}
