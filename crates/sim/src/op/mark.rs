//! The bytes of writes, made so that each byte read identifies the write from which it came.
//!
//! Each write to a file has a mark, 1 to 255, given once per file. A byte is the mark shifted by an
//! amount. The amount depends on the file and on the line (64 bytes) in which the byte lies. So a
//! byte found at an offset can come from exactly one mark. Bytes from another file or from another
//! line read as random marks. A zero byte comes from no write. It is in a hole, or the end of the
//! file moved over it.
//!
//! Invariant: [`runs`] returns one run, of the right mark, for bytes that [`fill`] made.

use std::fmt;
use std::num::NonZeroU8;

use lockstep_types::Ino;

/// Number of bytes over which the shift stays the same.
const LINE_BYTES: u64 = 64;
/// Number of marks.
const MARKS: u8 = 255;

/// The mark of a write, different from the marks of all other writes to the same file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(NonZeroU8);

impl Mark {
    /// Returns the mark `raw`, or `None` for zero, because no write has the mark zero.
    pub const fn new(raw: u8) -> Option<Self> {
        match NonZeroU8::new(raw) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// Returns the number of the mark.
    pub const fn get(self) -> u8 {
        self.0.get()
    }

    /// Returns the byte that stands for this mark.
    fn byte(self, shift: u8) -> u8 {
        let moved = (u16::from(self.get() - 1) + u16::from(shift)) % u16::from(MARKS);
        u8::try_from(moved + 1).unwrap_or(MARKS)
    }

    /// Returns the mark for which `byte` stands.
    fn of_byte(byte: u8, shift: u8) -> Option<Self> {
        let moved = u16::from(byte.checked_sub(1)?) + u16::from(MARKS) - u16::from(shift);
        Self::new(u8::try_from(moved % u16::from(MARKS) + 1).unwrap_or(MARKS))
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mark {}", self.0)
    }
}

/// Bytes that came from one write, or from no write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset in the file of the first byte.
    pub from: u64,
    /// Offset after the last byte.
    pub to: u64,
    /// The mark of the write from which the bytes came. `None` for zeros.
    pub mark: Option<Mark>,
}

/// Returns the shift of the marks of a line, less than [`MARKS`].
fn shift(ino: Ino, offset: u64) -> u8 {
    let mut mixed = (offset / LINE_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ino.get();
    mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    u8::try_from((mixed >> 33) % u64::from(MARKS)).unwrap_or(0)
}

/// Returns the length of the part of a line that begins at `offset`, in bytes.
const fn rest_of_line(offset: u64) -> u64 {
    LINE_BYTES - offset % LINE_BYTES
}

/// Returns the bytes that the write with `mark` puts at `offset`.
pub fn fill(ino: Ino, mark: Mark, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    let mut at = offset;
    while bytes.len() < length {
        let rest = usize::try_from(rest_of_line(at)).unwrap_or(usize::MAX);
        let end = length.min(bytes.len().saturating_add(rest));
        bytes.resize(end, mark.byte(shift(ino, at)));
        at += rest_of_line(at);
    }
    bytes
}

/// Returns the sources of `bytes`, found at `offset`. The runs are sorted and have no gaps, and
/// neighbouring runs have different marks.
pub fn runs(ino: Ino, offset: u64, bytes: &[u8]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut at = offset;
    let mut left = bytes;
    while let Some(&first) = left.first() {
        let rest = usize::try_from(rest_of_line(at)).unwrap_or(usize::MAX);
        let (line, next) = left.split_at(rest.min(left.len()));
        let differing = line.iter().fold(0, |found, byte| found | (byte ^ first));
        let shift = shift(ino, at);
        if differing == 0 {
            add(
                &mut runs,
                at,
                line.len() as u64,
                Mark::of_byte(first, shift),
            );
        } else {
            for (index, byte) in (at..).zip(line) {
                add(&mut runs, index, 1, Mark::of_byte(*byte, shift));
            }
        }
        at += line.len() as u64;
        left = next;
    }
    runs
}

fn add(runs: &mut Vec<Run>, from: u64, length: u64, mark: Option<Mark>) {
    match runs.last_mut() {
        Some(last) if last.mark == mark => last.to = from + length,
        _ => runs.push(Run {
            from,
            to: from + length,
            mark,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ino(raw: u64) -> Ino {
        Ino::new(raw).unwrap()
    }

    fn mark(raw: u8) -> Mark {
        Mark::new(raw).unwrap()
    }

    #[test]
    fn every_byte_tells_its_write() {
        for raw in 1..=255 {
            for offset in [0, 1, 63, 64, 4095, 1 << 20] {
                let bytes = fill(ino(7), mark(raw), offset, 3);
                let expected = Run {
                    from: offset,
                    to: offset + 3,
                    mark: Some(mark(raw)),
                };
                assert_eq!(runs(ino(7), offset, &bytes), [expected]);
            }
        }
    }

    #[test]
    fn runs_are_cut_where_the_write_changes() {
        let mut bytes = fill(ino(2), mark(9), 100, 5000);
        bytes[1000..1003].copy_from_slice(&fill(ino(2), mark(8), 1100, 3));
        bytes[4999] = 0;
        let found: Vec<_> = runs(ino(2), 100, &bytes)
            .iter()
            .map(|run| (run.from, run.to, run.mark.map(Mark::get)))
            .collect();
        let expected = [
            (100, 1100, Some(9)),
            (1100, 1103, Some(8)),
            (1103, 5099, Some(9)),
            (5099, 5100, None),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn bytes_out_of_place_do_not_read_as_their_write() {
        let bytes = fill(ino(2), mark(9), 0, 4096);
        for (other, offset) in [(2, 4096), (3, 0)] {
            let hits = runs(ino(other), offset, &bytes)
                .iter()
                .filter(|run| run.mark == Some(mark(9)))
                .count();
            assert!(hits < 8, "{hits}");
        }
    }
}
