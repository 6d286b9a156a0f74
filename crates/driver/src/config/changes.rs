//! The settings in which two configurations of one datastore differ, and whether a running datastore can follow.

use super::settings::{self, Change, Setting};
use super::{DatastoreConfig, Policies, ResyncLimits};

/// A change of the configuration that a running datastore cannot follow. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ConfigRefused(pub Vec<RefusedSetting>);

/// A setting that cannot change while the datastore runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSetting {
    /// Name of the datastore.
    pub datastore: String,
    /// The key, after its section if that is one below: `peer.fingerprint`.
    pub key: String,
    /// Why it cannot change.
    pub cause: &'static str,
    /// How the operator gets the new value all the same.
    pub cure: &'static str,
}

fn lines(refused: &[RefusedSetting]) -> String {
    let line = |it: &RefusedSetting| {
        let (key, datastore, cause, cure) = (&it.key, &it.datastore, it.cause, it.cure);
        format!(
            "{key} of {datastore} cannot change while the datastore runs: {cause}\n  cure: {cure}"
        )
    };
    refused.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The settings that differ.
///
/// # Errors
/// If one of them cannot change while the datastore runs.
pub(super) fn check(
    old: &DatastoreConfig,
    new: &DatastoreConfig,
) -> Result<Vec<&'static Setting>, ConfigRefused> {
    let differing = differing(old, new);
    let refused = differing.iter().filter_map(|it| it.refusal(old, new));
    let refused: Vec<_> = refused.collect();
    if refused.is_empty() {
        Ok(differing.into_iter().map(|it| it.setting).collect())
    } else {
        Err(ConfigRefused(refused))
    }
}

/// A setting that differs.
struct Differing {
    /// Name of the section below that of the datastore, with a dot; nothing for the latter.
    section: &'static str,
    setting: &'static Setting,
}

impl Differing {
    fn refusal(&self, old: &DatastoreConfig, new: &DatastoreConfig) -> Option<RefusedSetting> {
        let (cause, cure) = match self.setting.change {
            Change::Refused { cause, cure } => (cause, cure),
            Change::UnlessSwitched { cause, cure } if is_switched(old, new) => (cause, cure),
            Change::AtOnce
            | Change::NextConnection
            | Change::NextStart
            | Change::UnlessSwitched { .. } => return None,
        };
        Some(RefusedSetting {
            datastore: old.name.clone(),
            key: format!("{}{}", self.section, self.setting.key),
            cause,
            cure,
        })
    }
}

/// Whether only one of the two has a watch over the disk.
fn is_switched(old: &DatastoreConfig, new: &DatastoreConfig) -> bool {
    let [old, new] = [old, new].map(|it| it.policies.disk_stall_limit.get().is_some());
    old != new
}

fn differing(old: &DatastoreConfig, new: &DatastoreConfig) -> Vec<Differing> {
    let of_datastore = differing_of_datastore(old, new).into_iter();
    let of_datastore = of_datastore.map(|key| ("", settings::DATASTORE, key));
    let of_peer = differing_of_peer(old, new).into_iter();
    let of_peer = of_peer.map(|key| ("peer.", settings::PEER, key));
    let with_setting = |(section, all, key)| {
        let setting = settings::find(all, key)?;
        Some(Differing { section, setting })
    };
    of_datastore
        .chain(of_peer)
        .filter_map(with_setting)
        .collect()
}

fn differing_of_datastore(old: &DatastoreConfig, new: &DatastoreConfig) -> Vec<&'static str> {
    // Each field is named: a new one is compared, too.
    let DatastoreConfig {
        name,
        uuid,
        store,
        mount,
        role,
        policies,
        pause_limit,
        peer_timeout,
        answer_limit,
        fuse_threads,
        failover_after,
        peer,
    } = new;
    let all = [
        ("name", *name != old.name),
        ("uuid", *uuid != old.uuid),
        ("store", *store != old.store),
        ("mount", *mount != old.mount),
        ("role", *role != old.role),
        ("pause_limit_ms", *pause_limit != old.pause_limit),
        ("peer_timeout_ms", *peer_timeout != old.peer_timeout),
        ("failover_after_ms", *failover_after != old.failover_after),
        ("answer_limit_ms", *answer_limit != old.answer_limit),
        ("fuse_threads", *fuse_threads != old.fuse_threads),
        ("peer", peer.is_some() != old.peer.is_some()),
        ("witness", new.witness_id() != old.witness_id()),
    ];
    let policies = differing_of_policies(&old.policies, policies);
    let all = all.into_iter().chain(policies);
    all.filter(|it| it.1).map(|it| it.0).collect()
}

fn differing_of_policies(old: &Policies, new: &Policies) -> Vec<(&'static str, bool)> {
    let Policies {
        durability,
        on_peer_loss,
        on_power_loss,
        standby,
        disk_stall_limit,
        flap_wait_max,
        resync,
        scrub_every,
        check_reads,
        trash,
        snapshots,
        snapshot_hooks,
    } = new;
    let all = [
        ("durability", *durability != old.durability),
        ("on_peer_loss", *on_peer_loss != old.on_peer_loss),
        ("on_power_loss", *on_power_loss != old.on_power_loss),
        ("standby", *standby != old.standby),
        ("flap_wait_max_ms", *flap_wait_max != old.flap_wait_max),
        (
            "disk_stall_limit_ms",
            *disk_stall_limit != old.disk_stall_limit,
        ),
        ("check_reads", *check_reads != old.check_reads),
        ("scrub_every", *scrub_every != old.scrub_every),
        ("trash", trash.age != old.trash.age),
        ("trash_bytes", trash.bytes != old.trash.bytes),
        ("snapshots", *snapshots != old.snapshots),
        ("snapshot_hooks", *snapshot_hooks != old.snapshot_hooks),
    ];
    let resync = differing_of_resync(&old.resync, resync);
    all.into_iter().chain(resync).collect()
}

fn differing_of_resync(old: &ResyncLimits, new: &ResyncLimits) -> [(&'static str, bool); 2] {
    let ResyncLimits {
        bytes_per_second,
        pause_above,
    } = *new;
    [
        (
            "resync_bytes_per_second",
            bytes_per_second != old.bytes_per_second,
        ),
        ("resync_pause_above_ms", pause_above != old.pause_above),
    ]
}

fn differing_of_peer(old: &DatastoreConfig, new: &DatastoreConfig) -> Vec<&'static str> {
    let (Some(old), Some(new)) = (&old.peer, &new.peer) else {
        return Vec::new();
    };
    let all = [
        ("address", new.address != old.address),
        ("fingerprint", new.fingerprint != old.fingerprint),
        ("encryption", new.encryption != old.encryption),
    ];
    all.into_iter().filter(|it| it.1).map(|it| it.0).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::num::NonZeroU64;
    use std::path::PathBuf;
    use std::time::Duration;

    use lockstep_fs::InoRanges;
    use lockstep_link::Fingerprint;
    use lockstep_types::settings::{
        CheckReads, Durability, Encryption, OnPeerLoss, OnPowerLoss, Role, ScrubEvery, Standby,
        TrashAge,
    };
    use lockstep_types::{DatastoreUuid, WitnessId};

    use super::super::{DiskStallLimit, FlapWait, PeerConfig};
    use super::*;

    /// A datastore with a peer.
    pub(in super::super) fn config() -> DatastoreConfig {
        let places = ["/store", "/mount"].map(PathBuf::from);
        let uuid = DatastoreUuid::from_bytes([7; 16]);
        DatastoreConfig {
            peer: Some(PeerConfig {
                address: "10.0.0.2:7400".parse().unwrap(),
                fingerprint: Fingerprint::of_certificate(b"peer"),
                encryption: Encryption::On,
                ino_ranges: InoRanges::default(),
                witness: None,
            }),
            ..DatastoreConfig::new("alpha", uuid, places, Role::Primary)
        }
    }

    /// Changes one setting.
    type Edit = fn(&mut DatastoreConfig);

    fn peer(config: &mut DatastoreConfig) -> &mut PeerConfig {
        config.peer.as_mut().unwrap()
    }

    /// For each setting, a change of it alone, and whether a running datastore can follow.
    const EDITS: &[(&str, bool, Edit)] = &[
        ("name", false, |it| {
            it.name = "beta".to_owned();
        }),
        ("uuid", false, |it| {
            it.uuid = DatastoreUuid::from_bytes([8; 16]);
        }),
        ("store", false, |it| {
            it.store = "/other".into();
        }),
        ("mount", false, |it| {
            it.mount = "/other".into();
        }),
        ("role", true, |it| {
            it.role = Role::Secondary;
        }),
        ("durability", false, |it| {
            it.policies.durability = Durability::Always;
        }),
        ("on_peer_loss", true, |it| {
            it.policies.on_peer_loss = OnPeerLoss::Freeze;
        }),
        ("on_power_loss", true, |it| {
            it.policies.on_power_loss = OnPowerLoss::Serve;
        }),
        ("standby", false, |it| {
            it.policies.standby = Standby::Eagain;
        }),
        ("pause_limit_ms", true, |it| {
            it.pause_limit = Duration::from_secs(1);
        }),
        ("flap_wait_max_ms", true, |it| {
            it.policies.flap_wait_max = FlapWait::OFF;
        }),
        ("peer_timeout_ms", true, |it| {
            it.peer_timeout = Duration::from_secs(1);
        }),
        ("failover_after_ms", false, |it| {
            it.failover_after = Some(Duration::from_secs(1));
        }),
        ("answer_limit_ms", true, |it| {
            it.answer_limit = Duration::from_secs(1);
        }),
        ("disk_stall_limit_ms", true, |it| {
            it.policies.disk_stall_limit = DiskStallLimit::new(Some(Duration::from_secs(9)));
        }),
        ("disk_stall_limit_ms", false, |it| {
            it.policies.disk_stall_limit = DiskStallLimit::OFF;
        }),
        ("resync_bytes_per_second", true, |it| {
            it.policies.resync.bytes_per_second = NonZeroU64::new(1 << 20);
        }),
        ("resync_pause_above_ms", true, |it| {
            it.policies.resync.pause_above = Some(Duration::from_millis(20));
        }),
        ("check_reads", false, |it| {
            it.policies.check_reads = CheckReads::On;
        }),
        ("scrub_every", true, |it| {
            it.policies.scrub_every = ScrubEvery::Week;
        }),
        ("trash", true, |it| {
            it.policies.trash.age = TrashAge::Week;
        }),
        ("trash_bytes", true, |it| {
            it.policies.trash.bytes = NonZeroU64::new(1 << 30);
        }),
        ("snapshots", true, |it| {
            it.policies.snapshots.hourly = 24;
        }),
        ("snapshot_hooks", true, |it| {
            it.policies.snapshot_hooks.after = vec!["/thaw".to_owned()];
        }),
        ("fuse_threads", false, |it| {
            it.fuse_threads = 3;
        }),
        ("peer", false, |it| {
            it.peer = None;
        }),
        ("witness", false, |it| {
            peer(it).witness = Some(WitnessId::ETCD);
        }),
        ("peer.address", true, |it| {
            peer(it).address = "10.0.0.3:7400".parse().unwrap();
        }),
        ("peer.fingerprint", false, |it| {
            peer(it).fingerprint = Fingerprint::of_certificate(b"other");
        }),
        ("peer.encryption", false, |it| {
            peer(it).encryption = Encryption::Off;
        }),
    ];

    #[test]
    fn each_setting_can_change_or_is_refused_with_cause_and_cure() {
        for (key, can_change, edit) in EDITS {
            let mut new = config();
            edit(&mut new);
            let names: Vec<_> = differing(&config(), &new)
                .iter()
                .map(|it| format!("{}{}", it.section, it.setting.key))
                .collect();
            assert_eq!(names, [*key]);
            match check(&config(), &new) {
                Ok(changed) => assert!(*can_change && changed.len() == 1, "{key}"),
                Err(refused) => {
                    let text = refused.to_string();
                    assert!(!can_change, "{text}");
                    let begin = format!("{key} of alpha cannot change while the datastore runs: ");
                    assert!(
                        text.starts_with(&begin) && text.contains("\n  cure: "),
                        "{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_setting_is_left_out() {
        let of_peer = settings::PEER.iter().map(|it| format!("peer.{}", it.key));
        let of_datastore = settings::DATASTORE.iter().map(|it| it.key.to_owned());
        for key in of_datastore.chain(of_peer) {
            assert!(EDITS.iter().any(|it| it.0 == key), "{key}");
        }
    }

    #[test]
    fn the_same_value_changes_nothing() {
        assert!(check(&config(), &config()).unwrap().is_empty());
    }
}
