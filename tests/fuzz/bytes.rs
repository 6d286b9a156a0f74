//! Random bytes, and given bytes after a random accident.

use lockstep_testbed::chance::Chance;

/// Values at which lengths, counts and offsets go wrong.
const EDGES: [u64; 22] = [
    0,
    1,
    2,
    255,
    4095,
    4096,
    4097,
    65_535,
    65_536,
    1 << 20,
    (1 << 20) + 1,
    (1 << 20) + 4096,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (16 << 40) - 4096,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 4096,
    u64::MAX - 1,
    u64::MAX,
];

/// A number of any magnitude; values at the edges are more frequent.
pub fn number(chance: &mut Chance) -> u64 {
    match chance.within(0..4) {
        0 => *chance.pick(&EDGES),
        1 => chance.within(0..100),
        2 => chance.any() >> chance.within(0..64),
        _ => chance
            .pick(&EDGES)
            .wrapping_add(chance.within(0..5))
            .wrapping_sub(2),
    }
}

/// A number below `bound`, which is not zero.
pub fn index(chance: &mut Chance, bound: usize) -> usize {
    usize::try_from(chance.within(0..bound as u64)).unwrap()
}

/// Up to `longest` random bytes, mostly few.
pub fn random(chance: &mut Chance, longest: usize) -> Vec<u8> {
    let longest = if chance.percent(90) {
        longest.min(300)
    } else {
        longest
    };
    let length = index(chance, longest + 1);
    (0..length).map(|_| byte(chance)).collect()
}

fn byte(chance: &mut Chance) -> u8 {
    chance.any().to_le_bytes()[0]
}

/// Start and end of a piece of `bytes`, which are not empty.
fn piece(chance: &mut Chance, bytes: &[u8]) -> (usize, usize) {
    let start = index(chance, bytes.len());
    let longest = (bytes.len() - start).min(*chance.pick(&[1, 8, 64, 600, 5000]));
    (start, start + 1 + index(chance, longest))
}

/// Applies one accident and returns its kind. The bytes may be the same afterwards.
pub fn mutate(chance: &mut Chance, bytes: &mut Vec<u8>) -> &'static str {
    if bytes.is_empty() {
        *bytes = random(chance, 100);
        return "filled";
    }
    let (start, end) = piece(chance, bytes);
    match chance.within(0..10) {
        0..3 => {
            bytes[start] ^= 1 << chance.within(0..8);
            "a bit flipped"
        }
        3 => {
            bytes[start] = *chance.pick(&[0, 1, 0x7f, 0x80, 0xff]);
            "a byte replaced"
        }
        4 => {
            bytes.truncate(start);
            "cut"
        }
        5 => {
            let more = random(chance, 10_000);
            bytes.extend(more);
            "extended"
        }
        6 => {
            bytes[start..end].fill(0);
            "zeroed"
        }
        7 => {
            bytes[start..end].fill_with(|| byte(chance));
            "made random"
        }
        8 => {
            let (from, _) = piece(chance, bytes);
            for at in 0..(end - start).min(bytes.len() - from.max(start)) {
                bytes.swap(start + at, from + at);
            }
            "pieces exchanged"
        }
        _ => {
            let (edge, width) = (number(chance).to_le_bytes(), *chance.pick(&[2, 4, 8]));
            for (to, from) in bytes[start..].iter_mut().zip(&edge[..width]) {
                *to = *from;
            }
            "a number replaced"
        }
    }
}

/// Applies one to three accidents.
pub fn mutate_often(chance: &mut Chance, bytes: &mut Vec<u8>) {
    for _ in 0..chance.within(1..4) {
        mutate(chance, bytes);
    }
}
