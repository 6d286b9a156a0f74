//! A header holds one message, and a failure is shown as its text.

use super::*;

#[test]
fn a_header_holds_one_message_and_nothing_else() {
    let envelope = Envelope {
        datastore: DatastoreUuid::from_bytes([7; 16]),
        generation: Generation::FIRST,
        done_below: Osn::ZERO,
        message: Message::Ping {
            disk_silent_ms: 0,
            resync: None,
        },
    };
    let mut bytes = envelope.encode().unwrap();
    assert_eq!(Envelope::decode(&bytes).unwrap(), envelope);
    bytes.push(0);
    let error = Envelope::decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("1 bytes follow it"), "{error}");
    assert!(Envelope::decode(&bytes[..bytes.len() - 2]).is_err());
}

/// On the wire a failure is its text.
#[test]
fn a_failure_takes_no_bytes_but_its_text() {
    let text = "there is no such inode".to_owned();
    let failure = RequestFailure(text.clone());
    assert_eq!(
        postcard::to_allocvec(&failure).unwrap(),
        postcard::to_allocvec(&text).unwrap()
    );
}
