//! The configuration of a running datastore, behind a handle: a reader takes the present value at the moment of use, and
//! another value can take its place while the datastore runs.
//!
//! Invariant: a value that was refused changes nothing, and a value that was accepted is in force as a whole.

use std::sync::Arc;

use lockstep_types::settings::Durability;
use parking_lot::RwLock;

use super::changes::{self, ConfigRefused};
use super::settings::Setting;
use super::{DatastoreConfig, PeerConfig};

/// See the head of this file. A reader that needs several settings that fit together takes one snapshot by
/// [`Self::current`], and keeps it for the length of one decision.
///
/// The lock is held for a clone of an `Arc`, never across a call. Readers of the data path share it, and only an operator's
/// change takes it alone, so a lock without waiting would gain nothing that a program could measure.
///
/// These settings can change while the datastore runs; each other one is refused with its cause and its cure
/// ([`settings::Change`](super::settings::Change)):
///
/// | setting | in force |
/// |---|---|
/// | `pause_limit_ms` | at once, also for the present pause |
/// | `flap_wait_max_ms` | at once |
/// | `peer_timeout_ms` | at once, at the latest after a quarter of the earlier one; the kernel's own limit for bytes without an acknowledgement, and the greeting, at the next connection |
/// | `answer_limit_ms` | at once |
/// | `disk_stall_limit_ms` | at once, from one limit to another; to switch the watch on or off needs a start |
/// | `resync_bytes_per_second` | at once, also for the resync of the moment |
/// | `resync_pause_above_ms` | at once, also for the resync of the moment |
/// | `scrub_every` | at once, also for the pass of the moment |
/// | `snapshots` | at once: within seconds what the schedule keeps no more is deleted |
/// | `snapshot_hooks` | at once: from the next snapshot on |
/// | `trash` | the next removal, and the next look at the trash |
/// | `trash_bytes` | the next look at the trash |
/// | `on_peer_loss` | at once; a pause that is over already, and a node that freezes or serves alone, stay as they are until the peer is back |
/// | `on_power_loss` | at the next start of the datastore |
/// | `role` | never for a store that has run once |
/// | `peer.address` | at the next connection |
#[derive(Debug)]
pub struct ConfigHandle {
    name: String,
    durability: Durability,
    current: RwLock<Arc<DatastoreConfig>>,
}

impl ConfigHandle {
    /// A handle with its first value.
    pub fn new(config: DatastoreConfig) -> Self {
        Self {
            name: config.name.clone(),
            durability: config.policies.durability,
            current: RwLock::new(Arc::new(config)),
        }
    }

    /// Name of the datastore, which never changes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The promise to clients, which no change of a running datastore touches. Each write asks for it, so it takes no lock.
    pub(crate) const fn durability(&self) -> Durability {
        self.durability
    }

    /// The present value: a snapshot, which a later change leaves alone.
    pub fn current(&self) -> Arc<DatastoreConfig> {
        Arc::clone(&self.current.read())
    }

    /// Puts another value in the place of the present one, and returns the settings that differ. The ranges of inode
    /// numbers stay: they follow from the fingerprints of the nodes.
    ///
    /// # Errors
    /// If a setting differs that cannot change while the datastore runs. The error lists each such setting, and the present
    /// value stays.
    pub(crate) fn replace(
        &self,
        new: DatastoreConfig,
    ) -> Result<Vec<&'static Setting>, ConfigRefused> {
        let mut current = self.current.write();
        let new = DatastoreConfig {
            peer: new.peer.map(|peer| PeerConfig {
                ino_ranges: current.ino_ranges(),
                ..peer
            }),
            ..new
        };
        let changed = changes::check(&current, &new)?;
        *current = Arc::new(new);
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::settings::{self, Change};
    use super::*;

    fn config() -> DatastoreConfig {
        changes::tests::config()
    }

    #[test]
    fn a_change_leaves_earlier_snapshots_alone() {
        let handle = ConfigHandle::new(config());
        let before = handle.current();
        let pause_limit = Duration::from_secs(3);
        let changed = handle.replace(DatastoreConfig {
            pause_limit,
            ..config()
        });
        let keys: Vec<_> = changed.unwrap().iter().map(|it| it.key).collect();
        assert_eq!(keys, ["pause_limit_ms"]);
        assert_eq!(*before, config());
        assert_eq!(handle.current().pause_limit, pause_limit);
    }

    #[test]
    fn one_refused_setting_refuses_the_whole_value() {
        let handle = ConfigHandle::new(config());
        let refused = handle.replace(DatastoreConfig {
            pause_limit: Duration::from_secs(3),
            fuse_threads: 3,
            store: "/elsewhere".into(),
            ..config()
        });
        let text = refused.unwrap_err().to_string();
        assert!(
            text.contains("store") && text.contains("fuse_threads"),
            "{text}"
        );
        assert!(
            text.contains("cure: ") && !text.contains("pause_limit_ms"),
            "{text}"
        );
        assert_eq!(*handle.current(), config());
    }

    /// The table above has the settings that can change, and no other.
    #[test]
    fn the_table_lists_the_settings_that_can_change() {
        let source = include_str!("handle.rs");
        let rows = source
            .lines()
            .filter_map(|line| line.strip_prefix("/// | `"));
        let mut listed: Vec<_> = rows
            .filter_map(|row| row.split_once('`'))
            .map(|it| it.0.to_owned())
            .collect();
        let can_change = |it: &&Setting| !matches!(it.change, Change::Refused { .. });
        let of_datastore = settings::DATASTORE.iter().filter(can_change);
        let of_peer = settings::PEER.iter().filter(can_change);
        let mut expected: Vec<_> = of_datastore.map(|it| it.key.to_owned()).collect();
        expected.extend(of_peer.map(|it| format!("peer.{}", it.key)));
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
}
