//! The datastores of a node: the list that grows and shrinks while the node runs.
//!
//! Everything that knows the datastores of the node takes them from here at the moment of use: the listener, the answers to
//! commands, the notices for the service manager, the look at mounts and at cluster addresses. So a datastore that is added is
//! there for all of them, and one that is taken off is there for none.
//!
//! Invariants:
//! - One change of the list at a time, and none once the node stops.
//! - No two datastores of the list share name, uuid, store or mount, and no path of one lies inside a path of another.
//! - A datastore that could not be added leaves nothing behind, and neither does one that was taken off: no mount, no thread, no
//!   lock of its store, no client of a witness that no other datastore has.

use std::path::Path;
use std::sync::Arc;

use lockstep_driver::config::ConfigRefused;
use lockstep_link::{Fingerprint, Identity};
use lockstep_mount::hold::DescriptorStore;
use lockstep_types::DatastoreUuid;
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::error::NodeError;
use super::slot::DatastoreSlot;
use super::witnesses::NodeWitnesses;
use crate::config::{Choice, DatastoreConfig, Encryption, NodeConfig, WitnessConfig};
use crate::signals::Waker;

/// See the head of this file.
pub struct DatastoreRegistry {
    /// In the order of the configuration, then in the order of the additions.
    slots: RwLock<Vec<Arc<DatastoreSlot>>>,
    /// Held by the thread that changes the list: whether the node stops.
    is_closed: Mutex<bool>,
    /// Key and certificate of the node; `None` for a node without peers.
    identity: Option<Arc<Identity>>,
    /// The setting of all connections with peers; `None` without a listener.
    encryption: Option<Encryption>,
    witnesses: NodeWitnesses,
    descriptors: Arc<DescriptorStore>,
    /// Wakes the thread that takes the events of the mounts.
    waker: Waker,
}

/// Why the list of datastores, or a datastore in it, cannot change. With the cure.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Another datastore has the value.
    #[error(
        "the {key} {value} is that of the datastore {of}\n  cure: give each datastore its own {key}"
    )]
    Taken {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Name of the other datastore.
        of: String,
    },
    /// A path lies inside a path of another datastore, or around it.
    #[error(
        "{path} and {other} of the datastore {of} lie inside each other\n  \
         cure: give every store and every mount a directory of its own, none inside another"
    )]
    Overlap {
        /// The path.
        path: String,
        /// The path of the other datastore.
        other: String,
        /// Name of the other datastore.
        of: String,
    },
    /// The node has no listener for peers.
    #[error(
        "the datastore {0} has a peer, and this node does not listen for peers\n  \
         cure: write `identity` and `listen` into [node], and start the node again"
    )]
    NoListener(String),
    /// The connections of the node have another setting.
    #[error(
        "encryption of the peer of {name} is {wanted}, and {present} for all other datastores of this node\n  \
         cure: give all datastores of this node the same, or run a second node process for this one",
        wanted = .wanted.word(), present = .present.word()
    )]
    Encryption {
        /// Name of the datastore.
        name: String,
        /// Its setting.
        wanted: Encryption,
        /// The setting of the node.
        present: Encryption,
    },
    /// The node has no such datastore.
    #[error("this node has no datastore named {name}\n  cure: name one of: {names}")]
    Unknown {
        /// The name.
        name: String,
        /// The names of all datastores.
        names: String,
    },
    /// The datastore has another witness.
    #[error(
        "the witness of {0} cannot change while the datastore runs: both nodes must ask one witness, and know its answers since \
         their start\n  cure: change both files and start one node after the other, as \"Change or remove the witness\" in \
         docs/operations/witness.md says"
    )]
    OtherWitness(String),
    /// A running datastore cannot follow the change.
    #[error(transparent)]
    Refused(#[from] ConfigRefused),
    /// The datastore cannot be started.
    #[error(transparent)]
    Start(#[from] NodeError),
    /// The datastore is off the list, and its end was not clean.
    #[error(
        "the datastore {0} has ended, and not cleanly: the log of the node names the failure; acknowledged changes are as safe as \
         after a kill\n  cure: see that nothing is mounted there before the datastore is added again"
    )]
    Unclean(String),
    /// The node stops.
    #[error("the node is about to stop\n  cure: start the node again with the new configuration")]
    Stopping,
}

impl DatastoreRegistry {
    /// The datastores of a configuration. None is started yet. `link`: the identity of this node for its peers, and the setting
    /// of all connections.
    ///
    /// # Errors
    /// If a witness cannot be asked.
    pub(super) fn new(
        config: &NodeConfig,
        link: Option<(&Arc<Identity>, Encryption)>,
        waker: &Waker,
    ) -> Result<Self, NodeError> {
        let registry = Self {
            slots: RwLock::default(),
            is_closed: Mutex::new(false),
            identity: link.map(|(identity, _)| Arc::clone(identity)),
            encryption: link.map(|(_, encryption)| encryption),
            witnesses: NodeWitnesses::default(),
            descriptors: Arc::new(DescriptorStore::find(&config.control)),
            waker: waker.clone(),
        };
        for datastore in &config.datastores {
            let witness = config.witness(datastore.uuid);
            let slot = registry.slot(datastore.clone(), witness)?;
            registry.slots.write().push(slot);
        }
        Ok(registry)
    }

    fn slot(
        &self,
        config: DatastoreConfig,
        witness: Option<&WitnessConfig>,
    ) -> Result<Arc<DatastoreSlot>, NodeError> {
        let witness = match (witness, &self.identity) {
            (Some(witness), Some(identity)) => Some(self.witnesses.client(witness, identity)?),
            _ => None,
        };
        let (descriptors, waker) = (Arc::clone(&self.descriptors), self.waker.clone());
        let slot = DatastoreSlot::new(config, witness, descriptors, waker);
        Ok(Arc::new(slot))
    }

    /// The datastores of this moment.
    pub(super) fn all(&self) -> Vec<Arc<DatastoreSlot>> {
        self.slots.read().clone()
    }

    /// The datastore of that name.
    pub(super) fn find(&self, name: &str) -> Option<Arc<DatastoreSlot>> {
        let slots = self.slots.read();
        slots.iter().find(|slot| slot.name() == name).cloned()
    }

    /// The datastore that this node shares with a peer.
    pub(super) fn of_peer(
        &self,
        uuid: DatastoreUuid,
        peer: Fingerprint,
    ) -> Option<Arc<DatastoreSlot>> {
        let slots = self.slots.read();
        let mut all = slots.iter();
        all.find(|slot| slot.config().uuid == uuid && slot.has_peer(peer))
            .cloned()
    }

    /// The names of all datastores, for a message.
    pub(super) fn names(&self) -> String {
        let slots = self.slots.read();
        let names: Vec<_> = slots.iter().map(|slot| slot.name()).collect();
        names.join(", ")
    }

    /// The key and the certificate of the node.
    pub(super) const fn identity(&self) -> Option<&Arc<Identity>> {
        self.identity.as_ref()
    }

    /// Adds a datastore, and starts it: its store is opened and mounted, and its peer and its witness are asked.
    ///
    /// # Errors
    /// If the node cannot have it, or cannot start it. Then the list is as before.
    pub fn add(
        &self,
        config: DatastoreConfig,
        witness: Option<&WitnessConfig>,
    ) -> Result<(), RegistryError> {
        let _changing = self.changing()?;
        self.check(&config)?;
        let slot = self.slot(config, witness)?;
        // Before the start, as at the start of a node: a peer that calls meanwhile is told to wait.
        self.slots.write().push(Arc::clone(&slot));
        let started = slot.start(self.identity.as_ref());
        if started.is_err() {
            self.take_off(&slot);
        }
        Ok(started?)
    }

    /// Takes a datastore off the node: it is unmounted, all its work ends, its data goes to stable storage, and its store can be
    /// used by another process.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`] and [`RegistryError::Stopping`] change nothing. After [`RegistryError::Unclean`] the datastore
    /// is off the list, too.
    pub fn remove(&self, name: &str) -> Result<(), RegistryError> {
        let _changing = self.changing()?;
        let slot = self.known(name)?;
        if self.take_off(&slot) {
            tracing::info!(datastore = name, "taken off this node");
            Ok(())
        } else {
            Err(RegistryError::Unclean(name.to_owned()))
        }
    }

    /// Gives a datastore another configuration without a stop. A datastore that could not be started yet takes any
    /// configuration, but for its name.
    ///
    /// # Errors
    /// If the datastore cannot follow the change. Then nothing changes.
    pub fn reconfigure(
        &self,
        config: DatastoreConfig,
        witness: Option<&WitnessConfig>,
    ) -> Result<(), RegistryError> {
        let _changing = self.changing()?;
        let slot = self.known(&config.name)?;
        if slot.witness() != witness {
            return Err(RegistryError::OtherWitness(config.name));
        }
        Ok(slot.reconfigure(config)?)
    }

    /// The right to change the list, of one thread at a time.
    fn changing(&self) -> Result<MutexGuard<'_, bool>, RegistryError> {
        let is_closed = self.is_closed.lock();
        if *is_closed {
            return Err(RegistryError::Stopping);
        }
        Ok(is_closed)
    }

    fn known(&self, name: &str) -> Result<Arc<DatastoreSlot>, RegistryError> {
        self.find(name).ok_or_else(|| RegistryError::Unknown {
            name: name.to_owned(),
            names: self.names(),
        })
    }

    /// Takes a datastore off the list, and ends it. Returns whether its end was clean.
    fn take_off(&self, slot: &Arc<DatastoreSlot>) -> bool {
        // First the list: from now on no thread finds the datastore there.
        self.slots.write().retain(|other| !Arc::ptr_eq(other, slot));
        let is_clean = slot.end();
        let slots = self.slots.read();
        let in_use: Vec<_> = slots.iter().filter_map(|slot| slot.witness()).collect();
        self.witnesses.keep(&in_use);
        is_clean
    }

    /// Ends all changes of the list, for the stop of the node. Returns the datastores.
    pub(super) fn close(&self) -> Vec<Arc<DatastoreSlot>> {
        *self.is_closed.lock() = true;
        self.all()
    }

    /// Checks that this node can have a datastore beside the others.
    fn check(&self, new: &DatastoreConfig) -> Result<(), RegistryError> {
        if let Some(peer) = &new.peer {
            let name = new.name.clone();
            match self.encryption {
                None => return Err(RegistryError::NoListener(name)),
                Some(present) if present != peer.encryption && self.has_peers() => {
                    let wanted = peer.encryption;
                    return Err(RegistryError::Encryption {
                        name,
                        wanted,
                        present,
                    });
                }
                Some(_) => {}
            }
        }
        let slots = self.slots.read();
        slots
            .iter()
            .try_for_each(|slot| check_beside(new, &slot.config()))
    }

    fn has_peers(&self) -> bool {
        self.slots
            .read()
            .iter()
            .any(|slot| slot.config().peer.is_some())
    }
}

fn check_beside(new: &DatastoreConfig, other: &DatastoreConfig) -> Result<(), RegistryError> {
    let taken = |key, value: String| RegistryError::Taken {
        key,
        value,
        of: other.name.clone(),
    };
    if new.name == other.name {
        return Err(taken("name", new.name.clone()));
    }
    if new.uuid == other.uuid {
        return Err(taken("uuid", new.uuid.to_string()));
    }
    let overlap = |one: &Path, two: &Path| one.starts_with(two) || two.starts_with(one);
    for path in [&new.store, &new.mount] {
        for present in [&other.store, &other.mount] {
            if overlap(path, present) {
                return Err(RegistryError::Overlap {
                    path: path.display().to_string(),
                    other: present.display().to_string(),
                    of: other.name.clone(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use lockstep_fs::InoRanges;
    use lockstep_types::settings::Role;

    use super::*;
    use crate::config::PeerConfig;
    use crate::signals::ShutdownRequests;

    fn datastore(name: &str, uuid: u8, [store, mount]: [&str; 2]) -> DatastoreConfig {
        let places = [store, mount].map(PathBuf::from);
        DatastoreConfig::new(
            name,
            DatastoreUuid::from_bytes([uuid; 16]),
            places,
            Role::Primary,
        )
    }

    fn mirrored(encryption: Encryption, config: DatastoreConfig) -> DatastoreConfig {
        DatastoreConfig {
            peer: Some(PeerConfig {
                address: "10.0.0.2:7400".parse().unwrap(),
                fingerprint: Fingerprint::of_certificate(b"peer"),
                encryption,
                ino_ranges: InoRanges::default(),
                witness: None,
            }),
            ..config
        }
    }

    /// The registry of a node with one datastore, which does not run.
    fn registry(first: DatastoreConfig, encryption: Option<Encryption>) -> DatastoreRegistry {
        let config = NodeConfig {
            name: "n".to_owned(),
            control: "/nonexistent/control.sock".into(),
            link: None,
            datastores: vec![first],
            witnesses: Vec::new(),
        };
        let requests = ShutdownRequests::of(Vec::new()).unwrap();
        DatastoreRegistry {
            encryption,
            ..DatastoreRegistry::new(&config, None, &requests.waker()).unwrap()
        }
    }

    /// The refusal of a datastore, which names a cure. The list is as before.
    fn refusal(registry: &DatastoreRegistry, new: DatastoreConfig) -> String {
        let text = registry.add(new, None).unwrap_err().to_string();
        assert!(text.contains("\n  cure: "), "{text}");
        assert_eq!(registry.names(), "one");
        text
    }

    #[test]
    fn a_datastore_shares_nothing_with_another_one() {
        let registry = registry(datastore("one", 1, ["/s/1", "/m/1"]), None);
        for (new, cause) in [
            (
                datastore("one", 2, ["/s/2", "/m/2"]),
                "the name one is that of the datastore one",
            ),
            (datastore("two", 1, ["/s/2", "/m/2"]), "the uuid 01010101-"),
            (
                datastore("two", 2, ["/s/1", "/m/2"]),
                "/s/1 and /s/1 of the datastore one",
            ),
            (
                datastore("two", 2, ["/s/2", "/m/1/2"]),
                "/m/1/2 and /m/1 of the datastore one",
            ),
            (
                datastore("two", 2, ["/m", "/n"]),
                "/m and /m/1 of the datastore one",
            ),
        ] {
            let text = refusal(&registry, new);
            assert!(text.starts_with(cause), "{text}");
        }
    }

    #[test]
    fn a_datastore_with_a_peer_needs_a_listener_with_its_encryption() {
        let first = || datastore("one", 1, ["/s/1", "/m/1"]);
        let new = |encryption| mirrored(encryption, datastore("two", 2, ["/s/2", "/m/2"]));
        let alone = registry(first(), None);
        assert!(refusal(&alone, new(Encryption::On)).contains("does not listen"));
        let in_clear = registry(mirrored(Encryption::Off, first()), Some(Encryption::Off));
        let text = refusal(&in_clear, new(Encryption::On));
        assert!(
            text.contains("encryption of the peer of two is on, and off for all"),
            "{text}"
        );
    }

    #[test]
    fn a_datastore_that_cannot_be_started_is_not_added() {
        let registry = registry(datastore("one", 1, ["/s/1", "/m/1"]), None);
        let dir = tempfile::tempdir().unwrap();
        let places = ["store", "mount"].map(|it| dir.path().join(it));
        let uuid = DatastoreUuid::from_bytes([2; 16]);
        let new = DatastoreConfig::new("two", uuid, places, Role::Primary);
        let refused = registry.add(new, None);
        assert!(
            matches!(refused, Err(RegistryError::Start(_))),
            "{refused:?}"
        );
        assert_eq!(registry.names(), "one");
    }

    #[test]
    fn a_datastore_that_does_not_run_takes_another_configuration_and_can_be_taken_off() {
        let registry = registry(datastore("one", 1, ["/s/1", "/m/1"]), None);
        registry
            .reconfigure(datastore("one", 1, ["/s/2", "/m/2"]), None)
            .unwrap();
        let store = registry.find("one").unwrap().config().store.clone();
        assert_eq!(store, Path::new("/s/2"));
        let unknown = registry.remove("two").unwrap_err().to_string();
        assert!(unknown.contains("name one of: one"), "{unknown}");
        registry.remove("one").unwrap();
        assert!(registry.all().is_empty());
    }

    #[test]
    fn a_node_that_stops_takes_no_change() {
        let registry = registry(datastore("one", 1, ["/s/1", "/m/1"]), None);
        assert_eq!(registry.close().len(), 1);
        let changes = [
            registry.add(datastore("two", 2, ["/s/2", "/m/2"]), None),
            registry.remove("one"),
            registry.reconfigure(datastore("one", 1, ["/s/1", "/m/1"]), None),
        ];
        for change in changes {
            assert!(matches!(change, Err(RegistryError::Stopping)), "{change:?}");
        }
    }
}
