//! The text of a new configuration, read back.

use std::num::NonZeroU64;
use std::time::Duration;

use lockstep_driver::config::{
    DiskStallLimit, FlapWait, ResyncLimits, SnapshotHooks, SnapshotSchedule, TrashPolicy,
};
use lockstep_types::settings::{CheckReads, ScrubEvery, TrashAge};
use lockstep_witness::WitnessConfig;

use super::*;

fn draft() -> ConfigDraft {
    let listen = "10.0.0.1:7400".parse().unwrap();
    ConfigDraft::new(
        "a",
        Path::new("/etc/\"x\""),
        Path::new("/run/a.sock"),
        listen,
    )
}

fn draft_of(datastore: DatastoreConfig) -> ConfigDraft {
    ConfigDraft {
        datastore,
        ..draft()
    }
}

/// Also a setting that a new file leaves out while it has its default.
#[test]
fn every_setting_of_a_draft_is_read_back() {
    let changed = DatastoreConfig {
        role: Role::Secondary,
        policies: Policies {
            durability: Durability::Always,
            on_peer_loss: OnPeerLoss::Freeze,
            on_power_loss: OnPowerLoss::Serve,
            standby: Standby::Wait,
            disk_stall_limit: DiskStallLimit::OFF,
            flap_wait_max: FlapWait::OFF,
            resync: ResyncLimits {
                bytes_per_second: NonZeroU64::new(1 << 20),
                pause_above: Some(Duration::from_millis(20)),
            },
            scrub_every: ScrubEvery::Week,
            check_reads: CheckReads::On,
            trash: TrashPolicy {
                age: TrashAge::TwoWeeks,
                bytes: NonZeroU64::new(5 << 30),
            },
            snapshots: SnapshotSchedule {
                hourly: 24,
                monthly: 12,
                ..SnapshotSchedule::default()
            },
            snapshot_hooks: SnapshotHooks {
                before: ["/etc/lockstep/freeze", "a \"b\""]
                    .map(str::to_owned)
                    .to_vec(),
                after: vec!["/etc/lockstep/thaw".to_owned()],
                limit: Duration::from_millis(101),
            },
        },
        pause_limit: Duration::from_millis(1),
        peer_timeout: Duration::from_millis(201),
        answer_limit: Duration::from_millis(1001),
        fuse_threads: 3,
        ..draft().datastore
    };
    let peer = DraftPeer {
        address: Some("10.0.0.2:7400".parse().unwrap()),
        fingerprint: Some(FINGERPRINT.parse().unwrap()),
        encryption: Encryption::On,
    };
    for datastore in [draft().datastore, changed] {
        let draft = ConfigDraft {
            peer: Some(peer.clone()),
            ..draft_of(datastore.clone())
        };
        let read = read(&draft_text(&draft).unwrap()).unwrap();
        let without_peer = DatastoreConfig {
            peer: None,
            ..read.datastores[0].clone()
        };
        assert_eq!(without_peer, datastore);
    }
}

#[test]
fn a_draft_without_a_known_peer_is_refused_until_it_is_filled_in() {
    let found = problems(&draft_text(&draft()).unwrap());
    let keys: Vec<_> = found.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["address", "fingerprint"]);
}

#[test]
fn a_filled_draft_is_read_back_unchanged() {
    let known = DraftPeer {
        address: Some("10.0.0.2:7400".parse().unwrap()),
        fingerprint: Some(FINGERPRINT.parse().unwrap()),
        encryption: Encryption::Off,
    };
    let draft = ConfigDraft {
        peer: Some(known),
        ..draft_of(DatastoreConfig {
            pause_limit: Duration::from_millis(1234),
            policies: Policies {
                on_power_loss: OnPowerLoss::Serve,
                standby: Standby::Eagain,
                ..Policies::default()
            },
            ..draft().datastore
        })
    };
    let config = read(&draft_text(&draft).unwrap()).unwrap();
    assert_eq!(config.link.unwrap().identity, Path::new("/etc/\"x\""));
    let datastore = &config.datastores[0];
    let without_peer = DatastoreConfig {
        peer: None,
        ..datastore.clone()
    };
    assert_eq!(without_peer, draft.datastore);
    assert_eq!(datastore.peer.as_ref().unwrap().encryption, Encryption::Off);
}

#[test]
fn an_unmirrored_draft_is_read_back_unmirrored() {
    let config = read(
        &draft_text(&ConfigDraft {
            peer: None,
            ..draft()
        })
        .unwrap(),
    )
    .unwrap();
    assert_eq!(config.datastores[0].peer, None);
}

/// A new file without a witness takes the printed section at its end, without another change.
#[test]
fn a_witness_is_read_back_and_can_be_added_at_the_end() {
    let own = WitnessConfig::Own {
        address: "10.0.0.3:7400".parse().unwrap(),
        fingerprint: lockstep_link::Fingerprint::of_certificate(b"witness"),
    };
    let etcd = WitnessConfig::Etcd {
        endpoints: vec![
            "http://10.0.0.3:2379".parse().unwrap(),
            "http://10.0.0.4:2379".parse().unwrap(),
        ],
    };
    for witness in [own, etcd] {
        let with = |witness: Option<WitnessConfig>| {
            let peer = DraftPeer {
                address: Some("10.0.0.2:7400".parse().unwrap()),
                fingerprint: Some(FINGERPRINT.parse().unwrap()),
                ..DraftPeer::default()
            };
            let draft = ConfigDraft {
                peer: Some(peer),
                witness,
                ..draft()
            };
            draft_text(&draft).unwrap()
        };
        let added = with(None) + &witness_section_text(&witness);
        for text in [with(Some(witness.clone())), added] {
            let config = read(&text).unwrap();
            let datastore = &config.datastores[0];
            assert_eq!(config.witness(datastore.uuid), Some(&witness));
            assert_eq!(
                datastore.failover_after,
                Some(settings::FAILOVER_AFTER.default_time())
            );
        }
        assert_eq!(
            read(&with(None)).unwrap().datastores[0].failover_after,
            None
        );
    }
}
