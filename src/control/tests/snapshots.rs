//! Commands about snapshots, over a socket.

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

#[test]
fn each_command_about_snapshots_arrives_and_is_answered() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let mut command = |command| client.snapshots("alpha", &command);
    let [name, to] = ["a", "b"].map(str::to_owned);
    assert_eq!(command(SnapshotCommand::List).unwrap(), [fake_snapshot()]);
    assert_eq!(command(SnapshotCommand::ListSpace).unwrap().len(), 2);
    let create = SnapshotCommand::Create { name: name.clone() };
    assert_eq!(command(create).unwrap(), []);
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
