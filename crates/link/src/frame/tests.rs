//! The codec against random and mutated bytes.

use lockstep_types::hash::block_hashes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Header and payload of a received frame.
type Opened = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
struct Message {
    header: Vec<u8>,
    offset: u64,
    payload: Vec<u8>,
}

impl Message {
    fn hashes(&self) -> Vec<BlockHash> {
        block_hashes(self.offset, &self.payload).collect()
    }

    fn seal(&self, sealer: &mut Sealer, out: &mut Vec<u8>) {
        sealer
            .seal(out, &self.header, &self.hashes(), &self.payload)
            .unwrap();
        out.extend_from_slice(&self.payload);
    }
}

fn key(keyed: bool) -> Option<FrameKey> {
    keyed.then(|| FrameKey::new([7; 32]))
}

fn message() -> impl Strategy<Value = Message> {
    (
        vec(any::<u8>(), 0..300),
        0u64..20_000,
        vec(any::<u8>(), 0..10_000),
    )
        .prop_map(|(header, offset, payload)| Message {
            header,
            offset,
            payload,
        })
}

/// Opens all frames of `stream`, fed in pieces of `step` bytes, and verifies their payloads.
fn open_all(
    mut opener: Opener,
    stream: &[u8],
    offsets: &[u64],
    step: usize,
) -> Result<Vec<Opened>, FrameError> {
    let (mut frames, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        match opener.open(&stream[start..end])? {
            Progress::Need(more) if start + more > stream.len() => return Ok(frames),
            Progress::Need(_) => end = (end + step).min(stream.len()),
            Progress::Frame(span) => {
                let frame = span.split(&stream[start..end]).unwrap();
                frame.verify_payload(offsets.get(frames.len()).copied().unwrap_or(0))?;
                frames.push((frame.header.to_vec(), frame.payload.to_vec()));
                start += span.frame_bytes();
            }
        }
    }
}

proptest! {
    #[test]
    fn frames_come_out_as_they_went_in(
        messages in vec(message(), 1..5),
        keyed: bool,
        step in 1usize..5000,
    ) {
        let (mut sealer, mut stream) = (Sealer::new(key(keyed)), Vec::new());
        for message in &messages {
            message.seal(&mut sealer, &mut stream);
        }
        let offsets: Vec<_> = messages.iter().map(|message| message.offset).collect();
        let frames = open_all(Opener::new(key(keyed)), &stream, &offsets, step).unwrap();
        let sent: Vec<_> = messages.into_iter().map(|m| (m.header, m.payload)).collect();
        prop_assert_eq!(frames, sent);
    }

    #[test]
    fn a_changed_frame_is_never_accepted(
        message in message(),
        keyed: bool,
        at: prop::sample::Index,
        flip in 1u8..,
    ) {
        let mut stream = Vec::new();
        message.seal(&mut Sealer::new(key(keyed)), &mut stream);
        let length = stream.len();
        stream[at.index(length)] ^= flip;
        let outcome = open_all(Opener::new(key(keyed)), &stream, &[message.offset], length);
        prop_assert!(outcome.is_err());
    }

    #[test]
    fn a_shortened_frame_is_never_accepted(message in message(), cut: prop::sample::Index) {
        let mut stream = Vec::new();
        message.seal(&mut Sealer::new(None), &mut stream);
        stream.truncate(cut.index(stream.len()));
        let step = stream.len().max(1);
        let frames = open_all(Opener::new(None), &stream, &[message.offset], step);
        prop_assert_eq!(frames, Ok(Vec::new()));
    }

    #[test]
    fn random_bytes_are_refused_within_the_bounds(bytes in vec(any::<u8>(), 0..600), magic: bool) {
        let mut bytes = bytes;
        if magic {
            bytes.splice(0..0, MAGIC);
        }
        match Opener::new(None).open(&bytes) {
            Ok(Progress::Need(more)) => prop_assert!(more > bytes.len() && more <= FRAME_BYTES_MAX),
            Ok(Progress::Frame(_)) => prop_assert!(false, "random bytes taken for a frame"),
            Err(_) => {}
        }
    }
}

fn small(header: &[u8]) -> Message {
    Message {
        header: header.to_vec(),
        offset: 0,
        payload: b"data".to_vec(),
    }
}

#[test]
fn keyed_frames_cannot_be_repeated_or_reordered() {
    let mut sealer = Sealer::new(key(true));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    small(b"one").seal(&mut sealer, &mut first);
    small(b"two").seal(&mut sealer, &mut second);
    for stream in [[&first[..], &first], [&second, &first]] {
        let stream = stream.concat();
        let outcome = open_all(Opener::new(key(true)), &stream, &[0, 0], stream.len());
        assert_eq!(outcome, Err(FrameError::Sum));
    }
    let other = Opener::new(Some(FrameKey::new([8; 32])));
    assert_eq!(open_all(other, &first, &[0], 999), Err(FrameError::Sum));
}

#[test]
fn the_sum_without_a_key_is_the_frame_hash() {
    let mut head = Vec::new();
    Sealer::new(None).seal(&mut head, b"h", &[], &[]).unwrap();
    let (covered, sum) = head.split_last_chunk().unwrap();
    assert_eq!(FrameHash::of(covered), FrameHash(*sum));
}

#[test]
fn bounds_hold_on_both_sides() {
    let mut out = Vec::new();
    let mut sealer = Sealer::new(None);
    let header = vec![0; HEADER_BYTES_MAX + 1];
    let payload = vec![0; PAYLOAD_BYTES_MAX + 1];
    let hashes: Vec<_> = block_hashes(0, &payload).collect();
    let cases = [
        (&header[..], &[][..], &[][..]),
        (&[], &hashes, &payload),
        (&[], &[], &payload[..1]),
        (&[], &hashes[..3], &payload[..BLOCK_BYTES]),
        (&[], &hashes[..1], &payload[..=BLOCK_BYTES]),
    ];
    for (header, hashes, payload) in cases {
        sealer.seal(&mut out, header, hashes, payload).unwrap_err();
        assert!(out.is_empty());
    }
    for lengths in [[header.len(), 0, 0], [0, 0, payload.len()], [0, 0, 1]] {
        let [header_bytes, hashes, payload_bytes] = lengths;
        let span = FrameSpan {
            header_bytes,
            hashes,
            payload_bytes,
        };
        Opener::new(None).open(&span.prefix()).unwrap_err();
    }
}

#[test]
fn the_largest_frame_passes() {
    let message = Message {
        header: vec![1; HEADER_BYTES_MAX],
        offset: 4095,
        payload: vec![2; PAYLOAD_BYTES_MAX],
    };
    assert_eq!(message.hashes().len(), HASHES_MAX);
    let mut stream = Vec::new();
    message.seal(&mut Sealer::new(None), &mut stream);
    assert_eq!(stream.len(), FRAME_BYTES_MAX);
    let frames = open_all(Opener::new(None), &stream, &[4095], 1 << 16).unwrap();
    assert_eq!(frames, [(message.header, message.payload)]);
}

#[test]
fn verification_wants_one_hash_for_each_block() {
    let payload = [5; 100];
    let of_whole = [BlockHash::of(&payload).0];
    verify_payload(0, &payload, HashList(&of_whole)).unwrap();
    let crossing = verify_payload(4090, &payload, HashList(&of_whole));
    assert_eq!(crossing, Err(FrameError::Payload { block: 0 }));
    let none = verify_payload(0, &payload, HashList(&[]));
    assert!(matches!(none, Err(FrameError::HashCount { .. })));
}
