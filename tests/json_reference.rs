//! `docs/json.md` describes every key that the commands print as JSON, and no other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "json/page.rs"]
mod page;

use std::collections::BTreeSet;
use std::process::Command;

use lockstep_driver::Cleared;
use lockstep_driver::report::{
    AddressDeparture, BlocksDifference, ChangeEntry, ChangeReaderStatus, ChangedRange, ChangesHead,
    ClusterStatus, CopyStatus, DatastoreStatus, DiffBytes, DiffHead, DiffItem, DiffMoment,
    Difference, DiskStallStatus, FailoverTimesStatus, OwnSnapshotStatus, PeerStatus, PoisonStatus,
    ProvedStatus, ResyncPhase, ResyncStatus, ResyncWait, RoleReport, ScrubStatus, SeedStatus,
    ServiceStatus, SettingsStatus, SlowOperationStatus, SnapshotStatus, SpaceStatus, StrayStatus,
    SyncStatus, TimesStatus, TrashEntry, TrashRestored, TrashStatus, VerifiedStatus, VerifyReport,
    WitnessStatus, WorkStatus,
};
use lockstep_fs::adopt::{NotAdopted, Reason};
use lockstep_fs::poison::DiskFailure;
use lockstep_rollback::RollbackSummary;
use lockstepfs::config::{Durability, Encryption, OnPeerLoss, Role, Standby};
use lockstepfs::control::NodeStatus;
use serde_json::Value;

fn times() -> TimesStatus {
    TimesStatus {
        ping_ms: 0,
        peer_timeout_ms: 0,
        pause_limit_ms: None,
        answer_limit_ms: 0,
        disk_stall_limit_ms: Some(30_000),
        failover: Some(FailoverTimesStatus {
            takeover_ms: 0,
            alone_ms: 0,
            lease_ms: 0,
            witness_call_ms: 0,
        }),
    }
}

fn copy() -> CopyStatus {
    CopyStatus {
        marked_in_sync: false,
        complete: true,
        write_verifier: Some(7),
        as_of: Some(String::new()),
        proved: Some(ProvedStatus::default()),
        scrub: Some(ScrubStatus {
            began: Some(String::new()),
            inodes_done: Some(0),
            last_ended: Some(String::new()),
            ..ScrubStatus::default()
        }),
        readers: vec![reader()],
        mixed: false,
        seed: Some(SeedStatus::default()),
        own_snapshots: vec![OwnSnapshotStatus {
            lost_generation: Some(1),
            ..OwnSnapshotStatus::default()
        }],
    }
}

fn reader() -> ChangeReaderStatus {
    ChangeReaderStatus {
        since: Some(String::new()),
        ..ChangeReaderStatus::default()
    }
}

/// The JSON output of `lockstep changes`, as the command puts its parts together.
fn changes() -> Value {
    let entry = ChangeEntry {
        ranges: vec![ChangedRange {
            offset: 0,
            length: 1,
        }],
        ..ChangeEntry::default()
    };
    let mut printed = serde_json::to_value(ChangesHead::default()).unwrap();
    printed["entries"] = serde_json::json!([entry]);
    printed["entries_total"] = 1.into();
    printed
}

/// The JSON output of `lockstep snapshot rollback`, as the command puts its parts together.
fn rolled_back() -> Value {
    let mut printed = serde_json::to_value(RollbackSummary::default()).unwrap();
    printed["before"] = "name".into();
    printed
}

/// The lines of `lockstep snapshot diff --json`: a head, an entry, and a cursor.
fn difference() -> Value {
    let head = DiffHead {
        to: Some(DiffMoment::default()),
        ..DiffHead::default()
    };
    let bytes = DiffBytes {
        offset: 0,
        length: 1,
        zeros: false,
    };
    let item = DiffItem {
        ranges: vec![bytes],
        ..DiffItem::default()
    };
    serde_json::json!([head, item, { "cursor": null }])
}

fn cluster() -> ClusterStatus {
    ClusterStatus {
        address: String::new(),
        here: true,
        moved_ms: 0,
        asked_ms: 0,
        nfs_silent_ms: Some(0),
    }
}

fn resync() -> ResyncStatus {
    ResyncStatus {
        phase: ResyncPhase::Content,
        whole: Some(true),
        files_total: Some(0),
        files_done: 0,
        bytes_total: Some(0),
        bytes_done: 0,
        bytes_sent: 0,
        bytes_per_second: Some(1 << 20),
        left_ms: Some(5000),
        waits_for: Some(ResyncWait::Limit),
    }
}

/// A status in which every optional value is set.
fn status() -> NodeStatus {
    let datastore = DatastoreStatus {
        settings: SettingsStatus {
            name: String::new(),
            uuid: String::new(),
            role: Role::Primary,
            mount: None,
            durability: Durability::Posix,
            on_peer_loss: OnPeerLoss::Continue,
            resync_bytes_per_second: Some(1 << 20),
            resync_pause_above_ms: Some(20),
        },
        sync: SyncStatus {
            state: String::new(),
            service: ServiceStatus::Alone,
            in_sync: false,
            copy: copy(),
            service_since_ms: 0,
            restart_within_ms: Some(900),
            since_ms: 0,
            barrier_since_ms: Some(12_000),
            reason: None,
            started: true,
            disk_stall: Some(DiskStallStatus {
                silent_ms: 0,
                gave_way: false,
            }),
            cluster: Some(cluster()),
        },
        work: WorkStatus {
            generation: 1,
            osn: String::new(),
            writes_in_flight: 0,
            metadata_in_flight: 0,
            kept_bytes: 0,
            waiting_requests: 0,
            paw: 0,
            saw: 0,
            slow_operation: Some(SlowOperationStatus {
                operation: String::new(),
                inode: 0,
                since_ms: 0,
            }),
        },
        poisoned: Some(PoisonStatus {
            reason: String::new(),
            time: String::new(),
        }),
        peer: Some(PeerStatus {
            address: String::new(),
            connected: false,
            encryption: Encryption::On,
            disk_failed: false,
            obstacle: false,
            disk_silent_ms: Some(0),
        }),
        witness: Some(WitnessStatus {
            address: String::new(),
            answers: false,
            protects: false,
            trouble: None,
            unaware: false,
        }),
        times: Some(times()),
        space: Some(SpaceStatus {
            total_bytes: 0,
            available_bytes: 0,
        }),
        resync: Some(resync()),
        stray: Some(StrayStatus {
            names: Vec::new(),
            more: false,
        }),
        verified: Some(VerifiedStatus {
            time: String::new(),
            identical: false,
            differences_total: 0,
            differences: Vec::new(),
            only_touched: false,
            sent_again: 0,
        }),
        trash: Some(TrashStatus {
            oldest: Some(String::new()),
            ..TrashStatus::default()
        }),
    };
    NodeStatus {
        node: String::new(),
        version: String::new(),
        pid: 0,
        fingerprint: None,
        datastores: vec![datastore],
    }
}

fn report() -> VerifyReport {
    let differences = vec![Difference {
        inode: 0,
        path: None,
        what: String::new(),
        blocks: Some(BlocksDifference {
            offset: 0,
            length: 0,
            verdict: String::new(),
            wrong_on: Some(Role::Primary),
            healed: true,
        }),
    }];
    VerifyReport {
        kept_in: Some(String::new()),
        differences,
        ..VerifyReport::default()
    }
}

const fn change_of_role() -> RoleReport {
    RoleReport {
        role: Role::Secondary,
        generation: 2,
        pause_ms: 0,
        address: Some(AddressDeparture {
            left: true,
            waited_ms: 0,
        }),
        as_of: Some(String::new()),
        witness_unaware: false,
        standby: Some(Standby::Erofs),
        unproved: Some(String::new()),
    }
}

fn cleared() -> Cleared {
    Cleared {
        datastore: String::new(),
        role: Role::Secondary,
        failure: DiskFailure {
            reason: String::new(),
            time: String::new(),
            boot: None,
        },
        cache_dropped: false,
        was_in_sync: false,
        content_counts: false,
    }
}

/// The JSON output of `lockstep init`.
fn made() -> Value {
    let root = tempfile::tempdir().unwrap();
    let path = |part: &str| root.path().join(part).display().to_string();
    let (dir, mount, store) = (path("etc"), path("mnt"), path("store"));
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["init", "--json", "--name", "a"])
        .args(["--dir", &dir, "--mount", &mount, "--store", &store])
        .output()
        .unwrap();
    // The mount directory may be immutable, and so cannot be removed.
    let _ = run_chattr(&mount);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The JSON output of `lockstep adopt`.
fn adopted() -> Value {
    let root = tempfile::tempdir().unwrap();
    let path = |part: &str| root.path().join(part).display().to_string();
    let (dir, mount, store) = (path("etc"), path("mnt"), path("store"));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        command.args(arguments).output().unwrap()
    };
    let init = ["init", "--name", "a", "--unmirrored", "--dir", &dir];
    let made = run(&[&init[..], &["--mount", &mount, "--store", &store]].concat());
    assert!(made.status.success(), "{made:?}");
    // The mount directory may be immutable, and so cannot be removed.
    let _ = run_chattr(&mount);
    let config = path("etc/node.toml");
    let output = run(&["adopt", "--json", &mount, "--config", &config]);
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let not_adopted = NotAdopted {
        name: String::new(),
        why: Reason::Came,
    };
    report["not_adopted"] = serde_json::json!([not_adopted]);
    report
}

fn run_chattr(mount: &str) -> std::io::Result<std::process::Output> {
    Command::new("chattr").args(["-i", mount]).output()
}

/// The keys of each section of the page. `tests/cli_witness.rs` checks the sections about the witness, and `tests/seed.rs` that about an import.
fn described() -> Vec<BTreeSet<String>> {
    let sections = page::sections();
    let of_nodes = sections.filter(|section| {
        let is_elsewhere = ["`lockstep witness-", "`lockstep import"];
        !is_elsewhere.iter().any(|it| section.starts_with(it))
            && !section.contains("--witness --json")
    });
    of_nodes.map(page::described_keys).collect()
}

#[test]
fn every_key_is_described_and_no_other() {
    let printed = [
        serde_json::to_value(status()).unwrap(),
        serde_json::to_value(report()).unwrap(),
        changes(),
        serde_json::json!({ "readers": [reader()] }),
        serde_json::json!({ "snapshots": [SnapshotStatus::default()] }),
        difference(),
        rolled_back(),
        serde_json::json!({ "entries": [TrashEntry::default()] }),
        serde_json::to_value(TrashRestored::default()).unwrap(),
        serde_json::json!({ "emptied": 0 }),
        serde_json::to_value(change_of_role()).unwrap(),
        made(),
        adopted(),
        serde_json::to_value(cleared()).unwrap(),
    ];
    let described = described();
    assert_eq!(printed.len(), described.len());
    for (value, described) in printed.iter().zip(described) {
        let mut keys = page::keys_of(value);
        // The section of `lockstep status` describes the keys of this object.
        if value.get("failure").is_some() {
            keys.remove("reason");
            keys.remove("time");
        }
        assert_eq!(keys, described);
    }
}
