//! Requests over the control socket to a fake node.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use lockstep_driver::report::{
    AddressDeparture, BlocksDifference, ChangeEntry, ChangeReaderStatus, ChangedRange, ChangesHead,
    ChangesPart, ChangesQuestion, ClusterStatus, CommandFailure, CopyStatus, DatastoreStatus,
    DiffPart, DiffQuestion, Difference, DiskStallStatus, FailoverTimesStatus, OwnSnapshotStatus,
    PeerStatus, PoisonStatus, ProvedStatus, ReaderCommand, ResyncPhase, ResyncStatus, ResyncWait,
    RoleReport, ScrubStatus, SeedStatus, ServiceStatus, SettingsStatus, SlowOperationStatus,
    SnapshotCommand, SnapshotStatus, SpaceStatus, StrayStatus, SyncStatus, TimesStatus,
    TrashAnswer, TrashCommand, TrashStatus, VerifiedStatus, VerifyMode, VerifyProgress,
    VerifyReport, WitnessStatus, WorkStatus,
};

use lockstep_fs::export::{ExportSummary, Lost};
use lockstep_fs::seed::{SeedProgress, SeedSummary};

use super::*;
use crate::config::{Durability, Encryption, OnPeerLoss, Role, Standby};

mod changes;
mod snapshots;
mod trash;

use changes::{fake_changes, fake_question};
use snapshots::{fake_snapshot, held_by};

struct FakeNode;

const fn fake_times() -> TimesStatus {
    TimesStatus {
        ping_ms: 250,
        peer_timeout_ms: 3000,
        pause_limit_ms: Some(10_000),
        answer_limit_ms: 60_000,
        disk_stall_limit_ms: Some(30_000),
        failover: Some(FailoverTimesStatus {
            takeover_ms: 1500,
            alone_ms: 750,
            lease_ms: 1200,
            witness_call_ms: 751,
        }),
    }
}

fn fake_peer() -> PeerStatus {
    PeerStatus {
        address: "10.0.0.2:7400".to_owned(),
        connected: false,
        encryption: Encryption::Off,
        disk_failed: true,
        obstacle: true,
        disk_silent_ms: Some(40_000),
    }
}

fn copy_in_sync() -> CopyStatus {
    CopyStatus {
        marked_in_sync: true,
        complete: true,
        write_verifier: Some(7),
        as_of: Some("2025-11-20T02:13:05Z".to_owned()),
        proved: Some(ProvedStatus {
            through: "1.42".to_owned(),
            time: "2025-11-20T02:13:06Z".to_owned(),
        }),
        scrub: Some(ScrubStatus {
            began: Some("2025-11-20T02:13:07Z".to_owned()),
            inodes_done: Some(12),
            last_ended: Some("2025-11-19T02:13:07Z".to_owned()),
            differences_total: 3,
            healed_total: 2,
            unproved_blocks: 1,
        }),
        readers: vec![fake_reader()],
        mixed: true,
        seed: Some(SeedStatus {
            time: "2025-11-20T02:13:03Z".to_owned(),
            osn: "3.16".to_owned(),
        }),
        own_snapshots: vec![OwnSnapshotStatus {
            name: "lost-3".to_owned(),
            time: "2025-11-20T02:13:04Z".to_owned(),
            osn: "3.17".to_owned(),
            exact: true,
            lost_generation: Some(3),
        }],
    }
}

fn fake_reader() -> ChangeReaderStatus {
    ChangeReaderStatus {
        name: "nightly".to_owned(),
        since: Some("1.42-0123456789abcdef".to_owned()),
        registered: "2025-11-19T02:13:07Z".to_owned(),
        heard_ms: 60_000,
        marks_lost: true,
    }
}

fn slow_operation() -> SlowOperationStatus {
    SlowOperationStatus {
        operation: "fallocate".to_owned(),
        inode: 12,
        since_ms: 37_000,
    }
}

fn cluster() -> ClusterStatus {
    ClusterStatus {
        address: "10.0.0.10".to_owned(),
        here: true,
        moved_ms: 60_000,
        asked_ms: 800,
        nfs_silent_ms: Some(0),
    }
}

fn fake_work() -> WorkStatus {
    WorkStatus {
        generation: 2,
        osn: "2.77".to_owned(),
        writes_in_flight: 3,
        metadata_in_flight: 4,
        kept_bytes: 1 << 20,
        waiting_requests: 3,
        paw: 5,
        saw: 6,
        slow_operation: Some(slow_operation()),
    }
}

fn fake_verified() -> VerifiedStatus {
    VerifiedStatus {
        time: "2025-11-20T21:46:00Z".to_owned(),
        identical: false,
        differences_total: 2,
        differences: vec!["/a: size".to_owned()],
        only_touched: true,
        sent_again: 2,
    }
}

fn fake_status() -> NodeStatus {
    let mirrored = DatastoreStatus {
        settings: SettingsStatus {
            name: "alpha".to_owned(),
            uuid: "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001".to_owned(),
            role: Role::Secondary,
            mount: None,
            durability: Durability::Always,
            on_peer_loss: OnPeerLoss::Freeze,
            resync_bytes_per_second: Some(1 << 20),
            resync_pause_above_ms: Some(20),
        },
        sync: SyncStatus {
            state: "out of sync".to_owned(),
            service: ServiceStatus::None,
            in_sync: false,
            copy: copy_in_sync(),
            service_since_ms: 0,
            restart_within_ms: Some(900),
            since_ms: 1234,
            barrier_since_ms: Some(12_000),
            reason: Some("the peer does not answer".to_owned()),
            started: false,
            disk_stall: Some(DiskStallStatus {
                silent_ms: 31_000,
                gave_way: true,
            }),
            cluster: Some(cluster()),
        },
        work: fake_work(),
        poisoned: Some(PoisonStatus {
            reason: "cannot sync".to_owned(),
            time: "2025-11-20T21:46:00Z".to_owned(),
        }),
        peer: Some(fake_peer()),
        witness: Some(WitnessStatus {
            address: "10.0.0.3:7400".to_owned(),
            answers: true,
            protects: true,
            trouble: Some("it is away".to_owned()),
            unaware: false,
        }),
        times: Some(fake_times()),
        space: Some(SpaceStatus {
            total_bytes: 100,
            available_bytes: 40,
        }),
        resync: Some(ResyncStatus {
            phase: ResyncPhase::Content,
            whole: Some(true),
            files_total: Some(30),
            files_done: 20,
            bytes_total: Some(3 << 30),
            bytes_done: 2 << 30,
            bytes_sent: 1 << 20,
            bytes_per_second: Some(1 << 20),
            left_ms: Some(5000),
            waits_for: Some(ResyncWait::Limit),
        }),
        stray: Some(StrayStatus {
            names: vec!["left".to_owned()],
            more: true,
        }),
        verified: Some(fake_verified()),
        trash: Some(trash::fake_status()),
    };
    let single = DatastoreStatus {
        sync: SyncStatus {
            reason: None,
            started: true,
            ..mirrored.sync.clone()
        },
        peer: None,
        poisoned: None,
        witness: None,
        times: None,
        space: None,
        resync: None,
        stray: None,
        verified: None,
        trash: None,
        ..mirrored.clone()
    };
    NodeStatus {
        node: "a".to_owned(),
        version: "0.1.0".to_owned(),
        pid: 7,
        fingerprint: Some("SHA256:00".to_owned()),
        datastores: vec![mirrored, single],
    }
}

fn fake_report() -> VerifyReport {
    VerifyReport {
        identical: false,
        inodes_compared: 10,
        bytes_compared: 4096,
        differences_total: 1,
        differences: vec![Difference {
            inode: 9,
            path: Some("/dir/file".to_owned()),
            what: "content of block 3".to_owned(),
            blocks: Some(BlocksDifference {
                offset: 12_288,
                length: 4096,
                verdict: "wrong_bytes".to_owned(),
                wrong_on: Some(Role::Secondary),
                healed: true,
            }),
        }],
        healed_total: 1,
        unproved_blocks: 3,
        kept_in: Some(".lockstep/bad-blocks".to_owned()),
    }
}

impl ControlService for FakeNode {
    fn status(&self) -> NodeStatus {
        fake_status()
    }

    fn verify(
        &self,
        name: &str,
        mode: VerifyMode,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, CommandFailure> {
        if name != "alpha" {
            return Err(no_datastore(name));
        }
        assert_eq!(mode, VerifyMode::Repair);
        progress(VerifyProgress {
            inodes_compared: 5,
            inodes_total: Some(10),
            bytes_compared: 1,
        });
        Ok(fake_report())
    }

    fn changes(
        &self,
        name: &str,
        question: &ChangesQuestion,
        take: &mut dyn FnMut(ChangesPart) -> bool,
    ) -> Result<(), CommandFailure> {
        assert_eq!(*question, fake_question());
        for part in fake_changes() {
            assert!(take(part));
        }
        if name == "alpha" {
            Ok(())
        } else {
            Err(no_datastore(name))
        }
    }

    fn snapshots(
        &self,
        name: &str,
        command: &SnapshotCommand,
    ) -> Result<Vec<SnapshotStatus>, CommandFailure> {
        assert_eq!(name, "alpha");
        match command {
            SnapshotCommand::List => Ok(vec![fake_snapshot()]),
            SnapshotCommand::ListSpace => Ok(vec![fake_snapshot(), fake_snapshot()]),
            SnapshotCommand::Create { name, hooks: true } if name == "a" => Ok(Vec::new()),
            SnapshotCommand::Create { name, hooks: false } if name == "a" => {
                Ok(vec![fake_snapshot()])
            }
            SnapshotCommand::Rename { name, to } if (&**name, &**to) == ("a", "b") => {
                Ok(vec![fake_snapshot(), fake_snapshot()])
            }
            SnapshotCommand::Delete { name } => Err(no_datastore(name)),
            SnapshotCommand::Hold { name, hold } if name == "a" => Ok(vec![held_by(hold.clone())]),
            SnapshotCommand::Release { name, hold } if name == "a" => {
                Ok(vec![held_by(format!("not {hold}"))])
            }
            other => panic!("{other:?}"),
        }
    }

    fn trash(&self, name: &str, command: &TrashCommand) -> Result<TrashAnswer, CommandFailure> {
        trash::answer(name, command)
    }

    fn snapshot_diff(
        &self,
        name: &str,
        question: &DiffQuestion,
        take: &mut dyn FnMut(DiffPart) -> bool,
    ) -> Result<(), CommandFailure> {
        snapshots::fake_diff(name, question, take)
    }

    fn change_readers(
        &self,
        name: &str,
        command: &ReaderCommand,
    ) -> Result<Vec<ChangeReaderStatus>, CommandFailure> {
        match command {
            ReaderCommand::List => Ok(vec![fake_reader()]),
            ReaderCommand::Confirm { reader, point } => {
                assert_eq!((reader.as_str(), point.as_str()), ("nightly", "1.42-1"));
                Ok(vec![fake_reader(), fake_reader()])
            }
            ReaderCommand::Remove { reader } => {
                assert_eq!(reader, "nightly");
                Err(no_datastore(name))
            }
        }
    }

    fn export(
        &self,
        name: &str,
        question: &ExportQuestion,
        report: &mut dyn FnMut(&Lost),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<ExportSummary, CommandFailure> {
        snapshots::answer_export(name, question, report, goes_on)
    }

    fn export_seed(
        &self,
        name: &str,
        question: &ExportQuestion,
        progress: &mut dyn FnMut(SeedProgress),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<SeedSummary, CommandFailure> {
        snapshots::answer_export_seed(name, question, progress, goes_on)
    }

    fn change_role(&self, name: &str, change: RoleCommand) -> Result<RoleReport, CommandFailure> {
        if name != "alpha" {
            return Err(no_datastore(name));
        }
        Ok(fake_change(change))
    }

    fn follow_address(&self, name: &str, address: IpAddr, has_nfs: bool) {
        assert!(has_nfs);
        let told = (name.to_owned(), address);
        assert_eq!(told, ("alpha".to_owned(), "2001:db8::10".parse().unwrap()));
    }
}

fn no_datastore(name: &str) -> CommandFailure {
    CommandFailure::new(
        format!("there is no datastore {name:?}"),
        "name one that `lockstep status` shows",
    )
}

/// A report that differs with each change.
fn fake_change(change: RoleCommand) -> RoleReport {
    let (role, generation) = match change {
        RoleCommand::HandOver {
            accepts_differences,
        } => (Role::Secondary, 8 + u64::from(accepts_differences)),
        RoleCommand::Promote { accepts_loss } => (Role::Primary, 3 + u64::from(accepts_loss)),
        RoleCommand::Demote => (Role::Secondary, 5),
    };
    RoleReport {
        role,
        generation,
        pause_ms: 12,
        address: Some(AddressDeparture {
            left: true,
            waited_ms: 7,
        }),
        as_of: Some("2025-11-20T02:13:05Z".to_owned()),
        witness_unaware: false,
        standby: Some(Standby::Wait),
        unproved: Some("slow".to_owned()),
    }
}

fn running() -> (tempfile::TempDir, PathBuf, ControlServer) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sock");
    let server = ControlServer::start(&path, Arc::new(FakeNode)).unwrap();
    (directory, path, server)
}

#[test]
fn status_arrives_as_it_was_given() {
    let (_directory, path, _server) = running();
    assert_eq!(
        ControlClient::connect(&path).unwrap().status().unwrap(),
        fake_status()
    );
}

#[test]
fn an_address_arrives_as_it_was_given() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    client
        .follow_address("alpha", "2001:db8::10".parse().unwrap(), true)
        .unwrap();
}

#[test]
fn an_unknown_word_of_a_newer_node_is_reported() {
    let mut reply: proto::StatusReply = wire::convert(fake_status()).unwrap();
    reply.datastores[0].role = "witness".to_owned();
    let error = wire::node_status(reply).unwrap_err().to_string();
    assert!(error.contains("`witness`"), "{error}");
}

#[test]
fn a_node_that_stops_before_its_answer_is_one_that_does_not_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let stops = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = std::io::Read::read(&mut stream, &mut [0; 16]);
    });
    let answer = ControlClient::connect(&path).and_then(|mut client| client.status());
    let error = answer.unwrap_err();
    assert!(matches!(error, ControlError::Unreachable { .. }), "{error}");
    stops.join().unwrap();
}

#[test]
fn an_older_node_shows_only_running_datastores_and_content() {
    let mut reply: proto::StatusReply = wire::convert(fake_status()).unwrap();
    reply.datastores[0].started = None;
    reply.datastores[0].resync.as_mut().unwrap().phase = None;
    let status = wire::node_status(reply).unwrap();
    let datastore = &status.datastores[0];
    assert!(datastore.sync.started);
    assert_eq!(datastore.resync.unwrap().phase, ResyncPhase::Content);
}

#[test]
fn status_survives_json() {
    let json = serde_json::to_string(&fake_status()).unwrap();
    assert!(json.contains("\"role\":\"secondary\""), "{json}");
    assert_eq!(
        serde_json::from_str::<NodeStatus>(&json).unwrap(),
        fake_status()
    );
}

#[test]
fn a_comparison_tells_progress_and_then_its_outcome() {
    let (_directory, path, _server) = running();
    let mut steps = Vec::new();
    let mut client = ControlClient::connect(&path).unwrap();
    let report = client
        .verify("alpha", VerifyMode::Repair, &mut |step| steps.push(step))
        .unwrap();
    assert_eq!(report, fake_report());
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0].inodes_total, Some(10));
}

#[test]
fn a_comparison_that_cannot_be_made_says_why() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let error = client
        .verify("nonsense", VerifyMode::Memory, &mut |_| ())
        .unwrap_err();
    assert!(matches!(error, ControlError::Verify(_)));
    let text = error.to_string();
    assert!(
        text.contains("\"nonsense\"") && text.contains("cure:"),
        "{text}"
    );
}

#[test]
fn each_change_of_the_role_arrives_and_is_answered() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    for change in [
        RoleCommand::HandOver {
            accepts_differences: false,
        },
        RoleCommand::HandOver {
            accepts_differences: true,
        },
        RoleCommand::Promote {
            accepts_loss: false,
        },
        RoleCommand::Promote { accepts_loss: true },
        RoleCommand::Demote,
    ] {
        let report = client.change_role("alpha", change).unwrap();
        assert_eq!(report, fake_change(change), "{change:?}");
    }
}

#[test]
fn a_change_of_the_role_that_fails_says_why() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let error = client
        .change_role("nonsense", RoleCommand::Demote)
        .unwrap_err();
    assert!(matches!(error, ControlError::ChangeRole(_)));
    let text = error.to_string();
    assert!(
        text.contains("\"nonsense\"") && text.contains("cure:"),
        "{text}"
    );
}

/// The request of a command that is newer than the node.
#[test]
fn an_unknown_change_of_the_role_is_no_change() {
    assert_eq!(wire::role_change(None), None);
}

#[test]
fn two_nodes_on_one_socket_are_refused() {
    let (_directory, path, server) = running();
    let second = ControlServer::start(&path, Arc::new(FakeNode));
    assert!(matches!(second, Err(ControlError::InUse { .. })));
    drop(server);
    assert!(ControlServer::start(&path, Arc::new(FakeNode)).is_ok());
}

#[test]
fn a_stopped_node_is_not_reached_and_the_error_says_what_to_do() {
    let (_directory, path, server) = running();
    drop(server);
    assert!(!path.exists());
    let error = ControlClient::connect(&path).unwrap_err().to_string();
    assert!(
        error.contains("No such file") && error.contains("lockstep node"),
        "{error}"
    );
}

#[test]
fn a_client_notices_that_the_node_has_gone() {
    let (_directory, path, server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    drop(server);
    assert!(client.status().is_err());
}
