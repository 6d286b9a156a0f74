//! The frame codec against random and altered bytes.

use std::sync::Arc;

use lockstep_sums::{SumKey, SumSecret};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::sums::{FrameKey, KEYED_STEP_BYTES};

/// Header and payload of a received frame.
type OpenedFrame = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
struct Message {
    header: Vec<u8>,
    payload: Vec<u8>,
    offset: u64,
}

impl Message {
    fn seal(&self, sealer: &mut Sealer, out: &mut Vec<u8>) {
        let payload = Payload::at(self.offset, &self.payload);
        let sums = sealer.seal(out, &self.header, payload).unwrap();
        if !self.payload.is_empty() {
            out.extend_from_slice(&self.payload);
            let Hash128(sum) = sums.sum(&sealer.hashing().hash(payload));
            out.extend_from_slice(&sum);
        }
    }
}

fn method(keyed: bool) -> SumMethod {
    if keyed {
        SumMethod::Keyed(FrameKey::new([7; 32]))
    } else {
        SumMethod::Blocks(sum_key())
    }
}

fn sum_key() -> Arc<SumKey> {
    Arc::new(SumKey::new(&SumSecret::new([7; 32])))
}

fn message() -> impl Strategy<Value = Message> {
    let bytes = prop_oneof![0..10_000usize, KEYED_STEP_BYTES - 2..3 * KEYED_STEP_BYTES];
    let header = vec(any::<u8>(), 0..300);
    let place = prop_oneof![Just(0), 0..2 * BLOCK_BYTES as u64];
    (header, bytes, any::<u8>(), place).prop_map(|(header, bytes, seed, offset)| Message {
        header,
        offset,
        payload: (0..=u8::MAX)
            .cycle()
            .skip(seed.into())
            .take(bytes)
            .collect(),
    })
}

/// Opens all frames of `stream`, fed in pieces of `step` bytes.
fn open_all(
    mut opener: Opener,
    stream: &[u8],
    step: usize,
) -> Result<Vec<OpenedFrame>, FrameError> {
    let (mut frames, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        match opener.open(&stream[start..end])? {
            OpenProgress::Need(more) if start + more > stream.len() => return Ok(frames),
            OpenProgress::Need(_) => end = (end + step).min(stream.len()),
            OpenProgress::Frame(span) => {
                let frame = opener.frame(&span, &stream[start..end]).unwrap();
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
        let (mut sealer, mut stream) = (Sealer::new(method(keyed)), Vec::new());
        for message in &messages {
            message.seal(&mut sealer, &mut stream);
        }
        let frames = open_all(Opener::new(method(keyed)), &stream, step).unwrap();
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
        message.seal(&mut Sealer::new(method(keyed)), &mut stream);
        let length = stream.len();
        stream[at.index(length)] ^= flip;
        let outcome = open_all(Opener::new(method(keyed)), &stream, length);
        prop_assert!(outcome.is_err());
    }

    #[test]
    fn a_shortened_frame_is_never_accepted(message in message(), cut: prop::sample::Index) {
        let mut stream = Vec::new();
        message.seal(&mut Sealer::new(method(false)), &mut stream);
        stream.truncate(cut.index(stream.len()));
        let step = stream.len().max(1);
        let frames = open_all(Opener::new(method(false)), &stream, step);
        prop_assert_eq!(frames, Ok(Vec::new()));
    }

    #[test]
    fn random_bytes_are_refused_within_the_bounds(bytes in vec(any::<u8>(), 0..600), magic: bool) {
        let mut bytes = bytes;
        if magic {
            bytes.splice(0..0, MAGIC);
        }
        match Opener::new(method(false)).open(&bytes) {
            Ok(OpenProgress::Need(more)) => prop_assert!(more > bytes.len() && more <= FRAME_BYTES_MAX),
            Ok(OpenProgress::Frame(_)) => prop_assert!(false, "random bytes taken for a frame"),
            Err(_) => {}
        }
    }
}

fn small(header: &[u8]) -> Message {
    Message {
        header: header.to_vec(),
        payload: b"data".to_vec(),
        offset: 0,
    }
}

#[test]
fn keyed_frames_cannot_be_repeated_or_reordered() {
    let mut sealer = Sealer::new(method(true));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    small(b"one").seal(&mut sealer, &mut first);
    small(b"two").seal(&mut sealer, &mut second);
    for stream in [[&first[..], &first], [&second, &first]] {
        let stream = stream.concat();
        let outcome = open_all(Opener::new(method(true)), &stream, stream.len());
        assert_eq!(outcome, Err(FrameError::Sum));
    }
    let other = Opener::new(SumMethod::Keyed(FrameKey::new([8; 32])));
    assert_eq!(open_all(other, &first, 999), Err(FrameError::Sum));
}

#[test]
fn a_payload_cannot_take_the_place_of_another() {
    let mut sealer = Sealer::new(method(true));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    small(b"one").seal(&mut sealer, &mut first);
    let other = Message {
        header: b"two".to_vec(),
        payload: b"dada".to_vec(),
        offset: 0,
    };
    other.seal(&mut sealer, &mut second);
    let moved = 4 + SUM_BYTES;
    let at = first.len() - moved;
    first.truncate(at);
    first.extend_from_slice(&second[second.len() - moved..]);
    let outcome = open_all(Opener::new(method(true)), &first, first.len());
    assert_eq!(outcome, Err(FrameError::Payload));
}

#[test]
fn sums_without_a_key_are_xxh3_of_what_they_cover() {
    let (mut stream, message) = (Vec::new(), small(b"h"));
    message.seal(&mut Sealer::new(method(false)), &mut stream);
    let (rest, payload_sum) = stream.split_last_chunk().unwrap();
    let piece = sum_key().piece(&message.payload);
    assert_eq!(xxh3(&piece.to_le_bytes()), *payload_sum);
    let head = &rest[..rest.len() - message.payload.len()];
    let (covered, sum) = head.split_last_chunk().unwrap();
    assert_eq!(xxh3(covered), *sum);
}

fn xxh3(bytes: &[u8]) -> [u8; SUM_BYTES] {
    twox_hash::XxHash3_128::oneshot(bytes).to_le_bytes()
}

#[test]
fn bounds_hold_on_both_sides() {
    let mut out = Vec::new();
    let mut sealer = Sealer::new(method(false));
    let header = vec![0; HEADER_BYTES_MAX + 1];
    let large = vec![0; PAYLOAD_BYTES_MAX + 1];
    for (header, payload) in [(&header[..], &[][..]), (&[], &large)] {
        assert!(sealer.seal(&mut out, header, Payload::of(payload)).is_err());
        assert!(out.is_empty());
        let span = FrameSpan {
            header_bytes: header.len(),
            payload_bytes: payload.len(),
            payload_start: BlockOffset::START,
        };
        Opener::new(method(false)).open(&span.prefix()).unwrap_err();
    }
}

#[test]
fn the_largest_frame_passes() {
    let message = Message {
        header: vec![1; HEADER_BYTES_MAX],
        payload: vec![2; PAYLOAD_BYTES_MAX],
        offset: 1,
    };
    let mut stream = Vec::new();
    message.seal(&mut Sealer::new(method(false)), &mut stream);
    assert_eq!(stream.len(), FRAME_BYTES_MAX);
    let frames = open_all(Opener::new(method(false)), &stream, 1 << 16).unwrap();
    assert_eq!(frames, [(message.header, message.payload)]);
}

#[test]
fn a_payload_begins_within_a_block() {
    let span = FrameSpan {
        header_bytes: 0,
        payload_bytes: 1,
        payload_start: BlockOffset::of(4095),
    };
    let mut prefix = span.prefix();
    assert_eq!(FrameSpan::parse(&prefix), Ok(span));
    prefix[12..16].copy_from_slice(&4096u32.to_le_bytes());
    let crc = crc32fast::hash(&prefix[..PREFIX_FIELD_BYTES]).to_le_bytes();
    prefix[PREFIX_FIELD_BYTES..].copy_from_slice(&crc);
    let place = FrameError::PayloadPlace { place: 4096 };
    assert_eq!(FrameSpan::parse(&prefix), Err(place));
}
