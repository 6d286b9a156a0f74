//! Commands about the trash, over a socket.

use lockstep_driver::report::{RestoreQuestion, TrashEntry, TrashPage, TrashRestored};

use super::*;

fn fake_page() -> TrashPage {
    TrashPage {
        entries: vec![TrashEntry {
            inode: 9,
            path: "a/\u{fffd}".to_owned(),
            path_hex: Some("612fff".to_owned()),
            kind: "file".to_owned(),
            size: 5000,
            deleted: "2026-11-30T12:00:00Z".to_owned(),
            deleted_secs: 1_795_953_600,
            osn: "1.42".to_owned(),
        }],
        next: Some(10),
    }
}

fn fake_question() -> RestoreQuestion {
    RestoreQuestion {
        path: b"a/\xff".to_vec(),
        inode: Some(9),
        at: Some(-5),
        since: Some(-7),
        to: Some(b"b".to_vec()),
    }
}

fn fake_restored() -> TrashRestored {
    TrashRestored {
        path: "b".to_owned(),
        restored: 3,
        skipped: vec!["b/c".to_owned()],
        skipped_total: 1,
    }
}

pub fn fake_status() -> TrashStatus {
    TrashStatus {
        entries: 7,
        bytes: 4096,
        bytes_max: 1 << 30,
        oldest: Some("2026-11-30T12:00:00Z".to_owned()),
        keeps: "7d".to_owned(),
    }
}

pub fn answer(name: &str, command: &TrashCommand) -> Result<TrashAnswer, CommandFailure> {
    assert_eq!(name, "alpha");
    match command {
        TrashCommand::List { from: 5 } => Ok(TrashAnswer::Page(fake_page())),
        TrashCommand::Restore(question) if *question == fake_question() => {
            Ok(TrashAnswer::Restored(fake_restored()))
        }
        TrashCommand::Empty { before: Some(-9) } => Ok(TrashAnswer::Emptied(4)),
        TrashCommand::Empty { before: None } => Err(no_datastore(name)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_command_about_the_trash_arrives_and_is_answered() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let mut command = |command| client.trash("alpha", &command);
    let page = command(TrashCommand::List { from: 5 }).unwrap();
    assert_eq!(page, TrashAnswer::Page(fake_page()));
    let restored = command(TrashCommand::Restore(fake_question())).unwrap();
    assert_eq!(restored, TrashAnswer::Restored(fake_restored()));
    let before = Some(-9);
    let emptied = command(TrashCommand::Empty { before }).unwrap();
    assert_eq!(emptied, TrashAnswer::Emptied(4));
    let error = command(TrashCommand::Empty { before: None }).unwrap_err();
    assert!(matches!(error, ControlError::Trash(_)), "{error}");
}
