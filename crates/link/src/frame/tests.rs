//! The frame codec against random and altered bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Header and payload of a received frame.
type OpenedFrame = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
struct Message {
    header: Vec<u8>,
    payload: Vec<u8>,
}

impl Message {
    fn seal(&self, sealer: &mut Sealer, out: &mut Vec<u8>) {
        let sums = sealer.seal(out, &self.header, self.payload.len()).unwrap();
        if !self.payload.is_empty() {
            out.extend_from_slice(&self.payload);
            let Hash128(sum) = sums.sum(&sealer.hashing().hash(&self.payload));
            out.extend_from_slice(&sum);
        }
    }
}

fn key(keyed: bool) -> Option<FrameKey> {
    keyed.then(|| FrameKey::new([7; 32]))
}

fn message() -> impl Strategy<Value = Message> {
    let bytes = prop_oneof![0..10_000usize, HASH_STEP_BYTES - 2..3 * HASH_STEP_BYTES];
    (vec(any::<u8>(), 0..300), bytes, any::<u8>()).prop_map(|(header, bytes, seed)| Message {
        header,
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
                let frame = span.split(&stream[start..end]).unwrap();
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
        let frames = open_all(Opener::new(key(keyed)), &stream, step).unwrap();
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
        let outcome = open_all(Opener::new(key(keyed)), &stream, length);
        prop_assert!(outcome.is_err());
    }

    #[test]
    fn a_shortened_frame_is_never_accepted(message in message(), cut: prop::sample::Index) {
        let mut stream = Vec::new();
        message.seal(&mut Sealer::new(None), &mut stream);
        stream.truncate(cut.index(stream.len()));
        let step = stream.len().max(1);
        let frames = open_all(Opener::new(None), &stream, step);
        prop_assert_eq!(frames, Ok(Vec::new()));
    }

    #[test]
    fn random_bytes_are_refused_within_the_bounds(bytes in vec(any::<u8>(), 0..600), magic: bool) {
        let mut bytes = bytes;
        if magic {
            bytes.splice(0..0, MAGIC);
        }
        match Opener::new(None).open(&bytes) {
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
        let outcome = open_all(Opener::new(key(true)), &stream, stream.len());
        assert_eq!(outcome, Err(FrameError::Sum));
    }
    let other = Opener::new(Some(FrameKey::new([8; 32])));
    assert_eq!(open_all(other, &first, 999), Err(FrameError::Sum));
}

#[test]
fn a_payload_cannot_take_the_place_of_another() {
    let mut sealer = Sealer::new(key(true));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    small(b"one").seal(&mut sealer, &mut first);
    let other = Message {
        header: b"two".to_vec(),
        payload: b"dada".to_vec(),
    };
    other.seal(&mut sealer, &mut second);
    let moved = 4 + SUM_BYTES;
    let at = first.len() - moved;
    first.truncate(at);
    first.extend_from_slice(&second[second.len() - moved..]);
    let outcome = open_all(Opener::new(key(true)), &first, first.len());
    assert_eq!(outcome, Err(FrameError::Payload));
}

#[test]
fn sums_without_a_key_are_xxh3_of_what_they_cover() {
    let (mut stream, message) = (Vec::new(), small(b"h"));
    message.seal(&mut Sealer::new(None), &mut stream);
    let (rest, payload_sum) = stream.split_last_chunk().unwrap();
    assert_eq!(xxh3(&message.payload), *payload_sum);
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
    let mut sealer = Sealer::new(None);
    let header = vec![0; HEADER_BYTES_MAX + 1];
    for (header, payload_bytes) in [(&header[..], 0), (&[], PAYLOAD_BYTES_MAX + 1)] {
        assert!(sealer.seal(&mut out, header, payload_bytes).is_err());
        assert!(out.is_empty());
        let span = FrameSpan {
            header_bytes: header.len(),
            payload_bytes,
        };
        Opener::new(None).open(&span.prefix()).unwrap_err();
    }
}

#[test]
fn the_largest_frame_passes() {
    let message = Message {
        header: vec![1; HEADER_BYTES_MAX],
        payload: vec![2; PAYLOAD_BYTES_MAX],
    };
    let mut stream = Vec::new();
    message.seal(&mut Sealer::new(None), &mut stream);
    assert_eq!(stream.len(), FRAME_BYTES_MAX);
    let frames = open_all(Opener::new(None), &stream, 1 << 16).unwrap();
    assert_eq!(frames, [(message.header, message.payload)]);
}
