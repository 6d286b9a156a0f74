//! Commands about snapshots, over a socket.

use lockstep_driver::report::{DiffBegin, DiffBytes, DiffHead, DiffItem, DiffMoment};
use lockstep_fs::export::{ExportSummary, Lost};
use lockstep_fs::seed::{SeedProgress, SeedSummary};

use super::*;

pub fn fake_snapshot() -> SnapshotStatus {
    SnapshotStatus {
        name: "before".to_owned(),
        osn: "1.42".to_owned(),
        time: "2026-11-30T12:00:00Z".to_owned(),
        kind: "user".to_owned(),
        state: "settled".to_owned(),
        local: true,
        holds: vec!["backup".to_owned()],
        alone_bytes: Some(8192),
        alone_records: None,
    }
}

/// A snapshot that one hold keeps.
pub fn held_by(hold: String) -> SnapshotStatus {
    SnapshotStatus {
        holds: vec![hold],
        ..fake_snapshot()
    }
}

/// The places of an export, as the fake node expects them.
fn fake_export() -> ExportQuestion {
    let place = |name: &str| ExportPlace::of(&std::env::temp_dir().join(name)).unwrap();
    ExportQuestion {
        at: "before".to_owned(),
        dest: place("copy"),
        manifest: Some(place("list")),
    }
}

pub fn fake_loss() -> Lost {
    let [name, what, cause] = ["a", "owner", "no such user"].map(str::to_owned);
    Lost { name, what, cause }
}

/// The answer of the fake node to an export.
pub fn answer_export(
    name: &str,
    question: &ExportQuestion,
    report: &mut dyn FnMut(&Lost),
    goes_on: &dyn Fn() -> bool,
) -> Result<ExportSummary, CommandFailure> {
    assert_eq!(*question, fake_export());
    report(&fake_loss());
    assert!(goes_on(), "the client is there");
    if name != "alpha" {
        return Err(no_datastore(name));
    }
    Ok(ExportSummary {
        names: 3,
        lost: 1,
        is_torn: true,
        ..ExportSummary::default()
    })
}

#[test]
fn an_export_tells_its_losses_and_its_outcome() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let mut told = Vec::new();
    let mut report = |lost: &Lost| told.push(lost.clone());
    let summary = client.export("alpha", fake_export(), &mut report).unwrap();
    assert_eq!((summary.names, summary.lost, summary.is_torn), (3, 1, true));
    assert_eq!(told, [fake_loss()]);
    let error = client.export("beta", fake_export(), &mut |_| {});
    assert!(matches!(error, Err(ControlError::Export(_))), "{error:?}");
}

const SEED_PROGRESS: SeedProgress = SeedProgress {
    files: 1,
    bytes: 2,
    files_total: 3,
    bytes_total: 4,
};
const SEED: SeedSummary = SeedSummary {
    inodes: 5,
    files: 3,
    bytes: 4096,
};

/// The answer of the fake node to the export of a seed.
pub fn answer_export_seed(
    name: &str,
    question: &ExportQuestion,
    progress: &mut dyn FnMut(SeedProgress),
    goes_on: &dyn Fn() -> bool,
) -> Result<SeedSummary, CommandFailure> {
    let expected = ExportQuestion {
        manifest: None,
        ..fake_export()
    };
    assert_eq!(*question, expected);
    // The second one comes too early to be told.
    progress(SEED_PROGRESS);
    progress(SEED_PROGRESS);
    assert!(goes_on(), "the client is there");
    if name == "alpha" {
        Ok(SEED)
    } else {
        Err(no_datastore(name))
    }
}

#[test]
fn the_export_of_a_seed_tells_its_progress_and_its_outcome() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let mut told = Vec::new();
    let mut progress = |done| told.push(done);
    let summary = client.export_seed("alpha", fake_export(), &mut progress);
    assert_eq!(summary.unwrap(), SEED);
    assert_eq!(told, [SEED_PROGRESS]);
    let error = client.export_seed("beta", fake_export(), &mut |_| {});
    assert!(matches!(error, Err(ControlError::Export(_))), "{error:?}");
}

#[test]
fn each_command_about_snapshots_arrives_and_is_answered() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let mut command = |command| client.snapshots("alpha", &command);
    let [name, to] = ["a", "b"].map(str::to_owned);
    assert_eq!(command(SnapshotCommand::List).unwrap(), [fake_snapshot()]);
    assert_eq!(command(SnapshotCommand::ListSpace).unwrap().len(), 2);
    for hooks in [true, false] {
        let name = name.clone();
        let made = command(SnapshotCommand::Create { name, hooks }).unwrap();
        assert_eq!(made.is_empty(), hooks);
    }
    let rename = SnapshotCommand::Rename {
        name: name.clone(),
        to,
    };
    assert_eq!(command(rename).unwrap().len(), 2);
    let hold = "c".to_owned();
    let [same_name, same_hold] = [name.clone(), hold.clone()];
    let list = command(SnapshotCommand::Hold {
        name: same_name,
        hold: same_hold,
    });
    assert_eq!(list.unwrap()[0].holds, ["c"]);
    let same_name = name.clone();
    let released = command(SnapshotCommand::Release {
        name: same_name,
        hold,
    });
    assert_eq!(released.unwrap()[0].holds, ["not c"]);
    let error = command(SnapshotCommand::Delete { name }).unwrap_err();
    assert!(matches!(error, ControlError::Snapshots(_)), "{error}");
}

fn fake_question() -> DiffQuestion {
    DiffQuestion {
        begin: DiffBegin::Moments {
            from: "a".to_owned(),
            to: Some("b".to_owned()),
        },
        ranges: true,
        entries_max: Some(7),
        accepts_torn: true,
    }
}

fn fake_parts() -> [DiffPart; 3] {
    let item = DiffItem {
        change: "renamed".to_owned(),
        path: "b".to_owned(),
        path_hex: Some("62".to_owned()),
        old_path: Some("a".to_owned()),
        old_path_hex: Some("61".to_owned()),
        inode: 9,
        kind: "file".to_owned(),
        size: Some(5000),
        attributes: vec!["size".to_owned(), "ctime".to_owned()],
        xattrs: true,
        ranges: vec![DiffBytes {
            offset: 4096,
            length: 904,
            zeros: true,
        }],
        continued: true,
    };
    let from = DiffMoment {
        name: "a".to_owned(),
        osn: "1.42".to_owned(),
        time: "2026-11-30T12:00:00Z".to_owned(),
    };
    let to = Some(DiffMoment {
        name: "b".to_owned(),
        ..from.clone()
    });
    [
        DiffPart::Head(DiffHead { from, to }),
        DiffPart::Page {
            items: vec![item.clone(), item],
            cursor: Some("00ff".to_owned()),
        },
        DiffPart::Page {
            items: Vec::new(),
            cursor: None,
        },
    ]
}

pub fn fake_diff(
    name: &str,
    question: &DiffQuestion,
    take: &mut dyn FnMut(DiffPart) -> bool,
) -> Result<(), CommandFailure> {
    if let DiffBegin::Cursor(cursor) = &question.begin {
        assert_eq!(cursor, "00ff");
        return Err(no_datastore(name));
    }
    assert_eq!((name, question), ("alpha", &fake_question()));
    for part in fake_parts() {
        assert!(take(part));
    }
    Ok(())
}

#[test]
fn a_difference_arrives_part_by_part() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let mut parts = Vec::new();
    let outcome = client.snapshot_diff("alpha", &fake_question(), &mut |part| {
        parts.push(part);
        Ok::<(), ControlError>(())
    });
    outcome.unwrap();
    assert_eq!(parts, fake_parts());
    let rest = DiffQuestion {
        begin: DiffBegin::Cursor("00ff".to_owned()),
        ..fake_question()
    };
    let refused = client.snapshot_diff("alpha", &rest, &mut |_| Ok::<(), ControlError>(()));
    let error = refused.unwrap_err();
    assert!(matches!(error, ControlError::Snapshots(_)), "{error}");
}
