//! One datastore of a node: it runs, or it could not be started and is tried again.
//!
//! Invariants: a datastore that cannot be started leaves nothing open, mounted or locked behind; one that
//! runs is never started a second time. The lock of the standing is never held while a store is opened or a
//! mount is made, so that whoever asks for the status need not wait for a disk.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_driver::report::{DatastoreStatus, ServiceStatus, StrayStatus};
use lockstep_driver::{Datastore, DatastoreHandle, Dialer, Place, prepare, threads};
use lockstep_link::Identity;
use parking_lot::Mutex;

use super::error::{NodeError, one_line, system};
use crate::config::{DatastoreConfig, Role};
use crate::fuse::{self, MountError, MountOptions, Mounted, Unmounted};

/// One datastore of the configuration.
pub(super) struct Slot {
    config: DatastoreConfig,
    standing: Mutex<Standing>,
}

/// Whether a datastore runs.
enum Standing {
    /// It was not started yet, or could not be.
    Down(Down),
    /// It runs.
    Up(Up),
}

struct Down {
    since: Instant,
    /// Why it could not be started; `None` before the first attempt has ended.
    reason: Option<String>,
}

struct Up {
    datastore: Arc<Datastore>,
    mounted: Option<Mounted>,
    threads: Vec<JoinHandle<()>>,
    /// What the mount directory itself held before the mount hid it.
    hidden: Option<StrayStatus>,
}

impl Slot {
    /// A datastore that was not started yet.
    pub fn new(config: DatastoreConfig) -> Self {
        let down = Down {
            since: Instant::now(),
            reason: None,
        };
        Self {
            config,
            standing: Mutex::new(Standing::Down(down)),
        }
    }

    pub const fn config(&self) -> &DatastoreConfig {
        &self.config
    }

    /// The datastore, if it runs.
    pub fn running(&self) -> Option<Arc<Datastore>> {
        match &*self.standing.lock() {
            Standing::Up(up) => Some(Arc::clone(&up.datastore)),
            Standing::Down(_) => None,
        }
    }

    /// Why it could not be started; `None` if it runs or no attempt has ended yet.
    pub fn reason(&self) -> Option<String> {
        match &*self.standing.lock() {
            Standing::Up(_) => None,
            Standing::Down(down) => down.reason.clone(),
        }
    }

    /// Opens the store, mounts it if this node is the primary, and starts its threads. Called by one thread
    /// at a time, and only while it does not run.
    pub fn start(&self, identity: Option<&Arc<Identity>>) -> Result<(), NodeError> {
        match self.bring_up(identity) {
            Ok(up) => {
                self.say_hidden(up.hidden.as_ref());
                *self.standing.lock() = Standing::Up(up);
                tracing::info!(datastore = self.config.name, "started");
                Ok(())
            }
            Err(error) => {
                self.note_failure(&error);
                Err(error)
            }
        }
    }

    /// Keeps why it could not be started, and logs a reason that is another than before.
    fn note_failure(&self, error: &NodeError) {
        let reason = one_line(&error.to_string());
        let Standing::Down(down) = &mut *self.standing.lock() else {
            return;
        };
        if down.reason.as_ref() != Some(&reason) {
            let datastore = &self.config.name;
            tracing::error!(datastore, reason, "cannot start this datastore");
            down.reason = Some(reason);
        }
    }

    fn say_hidden(&self, hidden: Option<&StrayStatus>) {
        if let Some(stray) = hidden {
            tracing::warn!(
                datastore = self.config.name,
                mount = %self.config.mount.display(),
                names = stray.names.join(", "),
                "the mount directory itself holds files, which are not part of the datastore: they were \
                 written while nothing was mounted there; move them away while the node is stopped"
            );
        }
    }

    fn bring_up(&self, identity: Option<&Arc<Identity>>) -> Result<Up, NodeError> {
        let is_primary = self.config.role == Role::Primary;
        if is_primary {
            fuse::check(&self.mount_options())?;
        }
        let place = Place::on_this_machine(&self.config)?;
        let datastore = prepare(self.config.clone(), place)?.open()?;
        let mut up = Up {
            hidden: self.stray(),
            datastore,
            mounted: None,
            threads: Vec::new(),
        };
        match self.serve(&mut up, identity) {
            Ok(()) => Ok(up),
            Err(error) => {
                // What is wrong with stopping is in the log; what was wrong before counts.
                let _in_order = up.unmount();
                up.stop();
                let _in_order = up.close();
                Err(error)
            }
        }
    }

    /// Mounts the datastore and starts its threads.
    fn serve(&self, up: &mut Up, identity: Option<&Arc<Identity>>) -> Result<(), NodeError> {
        if self.config.role == Role::Primary {
            let service = Arc::new(DatastoreHandle(Arc::clone(&up.datastore)));
            up.mounted = Some(fuse::mount(service, &self.mount_options())?);
            up.datastore.reap_orphans();
        }
        let maintained = Arc::clone(&up.datastore);
        up.start_thread("maintenance", move || maintained.run_maintenance())?;
        let dialer = identity.and_then(|identity| Dialer::new(&self.config, Arc::clone(identity)));
        if let Some(dialer) = dialer {
            let datastore = Arc::clone(&up.datastore);
            match self.config.role {
                Role::Primary => {
                    up.start_thread("primary", move || datastore.run_dialer(&dialer))?;
                }
                Role::Secondary => {
                    up.start_thread("waiting", move || datastore.run_dialer(&dialer))?;
                }
            }
        }
        Ok(())
    }

    fn mount_options(&self) -> MountOptions {
        MountOptions {
            threads: self.config.fuse_threads,
            ..MountOptions::new(&self.config.mount, &self.config.name)
        }
    }

    /// What the mount directory holds while nothing is mounted there.
    fn stray(&self) -> Option<StrayStatus> {
        let stray = fuse::bare_entries(&self.config.mount)?;
        Some(StrayStatus {
            names: stray.names,
            more: stray.more,
        })
    }

    /// What ended the mount, if it has ended or failed.
    pub fn mount_news(&self) -> Option<NodeError> {
        let Standing::Up(up) = &*self.standing.lock() else {
            return None;
        };
        let mount = up.mounted.as_ref()?;
        Some(match mount.news()? {
            Err(error) => NodeError::Mount(error),
            Ok(()) => NodeError::Unmounted {
                mount_point: mount.mount_point().to_owned(),
            },
        })
    }

    /// Takes the mount away; whether that could be done.
    pub fn unmount(&self) -> bool {
        match &mut *self.standing.lock() {
            Standing::Up(up) => up.unmount(),
            Standing::Down(_) => true,
        }
    }

    /// Ends all work of the datastore.
    pub fn stop(&self) {
        if let Some(datastore) = self.running() {
            datastore.stop();
        }
    }

    /// Waits for its threads and puts everything on stable storage; whether all of it could be.
    pub fn close(&self) -> bool {
        match &mut *self.standing.lock() {
            Standing::Up(up) => up.close(),
            Standing::Down(_) => true,
        }
    }

    /// Everything an operator may want to know.
    pub fn status(&self) -> DatastoreStatus {
        let hidden = match &*self.standing.lock() {
            Standing::Up(up) => up.mounted.is_some().then(|| up.hidden.clone()),
            Standing::Down(_) => None,
        };
        // Nothing is mounted: the directory can be looked at.
        let stray = hidden.unwrap_or_else(|| self.stray());
        let status = match self.running() {
            Some(datastore) => datastore.status(),
            None => self.status_while_down(),
        };
        DatastoreStatus { stray, ..status }
    }

    fn status_while_down(&self) -> DatastoreStatus {
        let (since, reason) = match &*self.standing.lock() {
            Standing::Down(down) => (down.since.elapsed(), down.reason.clone()),
            Standing::Up(_) => (Duration::ZERO, None),
        };
        let state = if reason.is_some() {
            "not started"
        } else {
            "starting"
        };
        DatastoreStatus {
            state: state.to_owned(),
            since_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            reason,
            started: false,
            service: ServiceStatus::None,
            ..DatastoreStatus::of_configuration(&self.config)
        }
    }
}

impl Up {
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
            // One that had panicked would have ended the process.
            let _ended = thread.join();
        }
        self.datastore.close()
    }
}
