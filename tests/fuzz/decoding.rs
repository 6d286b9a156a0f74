//! Reading messages: bytes that are no message are refused, a message is the same after it is written again, and no
//! length in a message makes the reader reserve memory for bytes that have not arrived.

use lockstep_link::frame::HEADER_BYTES_MAX;
use lockstep_repl::message::Envelope;
use lockstep_testbed::chance::Chance;
use lockstep_types::DatastoreUuid;

use crate::bytes;
use crate::memory::largest_piece;
use crate::messages::{self, PeerState};
use crate::run::cases;

/// The largest allocation that a length field alone may cause.
const RESERVED_BYTES_MAX: usize = 1 << 20;

#[test]
fn a_header_is_refused_or_decodes_to_the_same_message() {
    cases(
        "decoding::a_header_is_refused_or_decodes_to_the_same_message",
        40_000,
        |chance| {
            let header = header(chance);
            let (largest, decoded) = largest_piece(|| Envelope::decode(&header));
            assert!(
                largest <= RESERVED_BYTES_MAX + 16 * header.len(),
                "{largest} bytes for {}",
                header.len()
            );
            match decoded {
                Ok(envelope) => {
                    let again = Envelope::decode(&envelope.encode().unwrap());
                    assert_eq!(again.unwrap(), envelope);
                }
                Err(error) => assert!(error.to_string().contains("given up and opened again")),
            }
        },
    );
}

fn header(chance: &mut Chance) -> Vec<u8> {
    if chance.percent(5) {
        return bytes::random(chance, HEADER_BYTES_MAX);
    }
    let known = PeerState::of(chance, DatastoreUuid::from_bytes([7; 16]));
    let message = messages::any(chance, &known);
    let envelope = messages::envelope(chance, &known, message);
    let mut header = envelope.encode().unwrap();
    let whole = Envelope::decode(&header);
    assert_eq!(whole.unwrap(), envelope, "whole");
    if chance.percent(80) {
        bytes::mutate_often(chance, &mut header);
    }
    header
}

/// Bytes after a message are not part of the protocol.
#[test]
fn a_header_with_more_than_a_message_is_refused() {
    cases(
        "decoding::a_header_with_more_than_a_message_is_refused",
        500,
        |chance| {
            let known = PeerState::of(chance, DatastoreUuid::from_bytes([7; 16]));
            let message = messages::any(chance, &known);
            let envelope = messages::envelope(chance, &known, message);
            let mut header = envelope.encode().unwrap();
            header.push(chance.any().to_le_bytes()[0]);
            assert!(Envelope::decode(&header).is_err(), "{envelope:?}");
        },
    );
}
