//! The questions of change readers, over a socket.

use super::*;

pub fn fake_question() -> ChangesQuestion {
    ChangesQuestion {
        reader: "nightly".to_owned(),
        since: Some("1.42-1".to_owned()),
        ranges: true,
    }
}

pub fn fake_changes() -> [ChangesPart; 3] {
    let entry = ChangeEntry {
        change: "changed".to_owned(),
        path: "a/b".to_owned(),
        path_hex: Some("612f62".to_owned()),
        inode: Some(7),
        size: Some(70_000),
        attributes: true,
        ranges: vec![ChangedRange {
            offset: 65_536,
            length: 4464,
        }],
    };
    let head = ChangesHead {
        point: "1.43-2".to_owned(),
        since: Some("1.42-1".to_owned()),
        everything: None,
        reason: None,
    };
    [
        ChangesPart::Head(head),
        ChangesPart::Entries(vec![entry.clone(), entry]),
        ChangesPart::Entries(Vec::new()),
    ]
}

#[test]
fn an_answer_to_a_change_reader_arrives_part_by_part() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let mut ask = |name: &str| {
        let mut parts = Vec::new();
        let outcome = client.changes(name, &fake_question(), &mut |part| {
            parts.push(part);
            Ok::<(), ControlError>(())
        });
        (parts, outcome)
    };
    let (parts, outcome) = ask("alpha");
    assert_eq!(parts, fake_changes());
    outcome.unwrap();
    // The answer that ends early is an error, also behind entries.
    let error = ask("nonsense").1.unwrap_err().to_string();
    assert!(error.contains("\"nonsense\""), "{error}");
}

#[test]
fn each_command_about_change_readers_arrives_and_is_answered() {
    let (_directory, path, _server) = running();
    let mut client = ControlClient::connect(&path).unwrap();
    let mut command = |command| client.change_readers("alpha", &command);
    assert_eq!(command(ReaderCommand::List).unwrap(), [fake_reader()]);
    let (reader, point) = ("nightly".to_owned(), "1.42-1".to_owned());
    let confirm = ReaderCommand::Confirm { reader, point };
    assert_eq!(command(confirm).unwrap().len(), 2);
    let reader = "nightly".to_owned();
    let error = command(ReaderCommand::Remove { reader }).unwrap_err();
    assert!(matches!(error, ControlError::Changes(_)), "{error}");
}
