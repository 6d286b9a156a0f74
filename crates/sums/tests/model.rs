//! Sums that are kept over random edits, against sums made anew from the content.

use std::collections::BTreeMap;
use std::ops::Range;

use lockstep_sums::{BlockOffset, BlockSpan, BlockSum, FileSum, SumKey, SumSecret, pieces};
use lockstep_types::limits::BLOCK_BYTES;
use proptest::collection::vec;
use proptest::prelude::*;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes of the largest file of the model.
const BYTES_MAX: usize = 6 * BLOCK_BYTES;

#[derive(Clone, Debug)]
enum Edit {
    Write(usize, Vec<u8>),
    Punch(Range<usize>),
    Resize(usize),
    Copy(Range<usize>, usize),
}

/// A place in the file; often at a border of blocks, or a byte beside one.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![
        (0..=6usize, 0..3usize).prop_map(|(block, beside)| (block * BLOCK_BYTES + beside)
            .saturating_sub(1)
            .min(BYTES_MAX)),
        0..=BYTES_MAX,
    ]
}

fn range() -> impl Strategy<Value = Range<usize>> {
    (place(), place()).prop_map(|(one, other)| one.min(other)..one.max(other))
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        3 => (range(), 0..4u8).prop_map(|(range, byte)| Edit::Write(range.start, vec![byte; range.len()])),
        1 => range().prop_map(Edit::Punch),
        1 => place().prop_map(Edit::Resize),
        1 => (range(), place()).prop_map(|(from, to)| Edit::Copy(from, to)),
    ]
}

/// A file with its sums, which follow each edit as a store does it: the sums of whole blocks from the new bytes, the others
/// from bytes that are read back.
#[derive(Default)]
struct SummedFile {
    bytes: Vec<u8>,
    blocks: BTreeMap<u64, BlockSum>,
    sum: FileSum,
}

impl SummedFile {
    fn apply(&mut self, key: &SumKey, edit: &Edit) {
        match edit {
            Edit::Write(at, data) => self.write(key, *at, data),
            Edit::Punch(range) => {
                let end = range.end.min(self.bytes.len());
                if let Some(punched) = self.bytes.get_mut(range.start..end) {
                    punched.fill(0);
                    self.change_to_zeros(key, range.start as u64..range.end as u64);
                }
            }
            Edit::Resize(size) => {
                self.bytes.resize(*size, 0);
                self.change_to_zeros(key, *size as u64..u64::MAX);
            }
            Edit::Copy(from, to) => {
                let copied = self.bytes.get(from.clone()).unwrap_or_default().to_vec();
                self.write(key, *to, &copied);
            }
        }
    }

    fn write(&mut self, key: &SumKey, at: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = at + data.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        if let Some(changed) = self.bytes.get_mut(at..end) {
            changed.copy_from_slice(data);
        }
        let span = BlockSpan::of(&(at as u64..end as u64));
        let whole = pieces(BlockOffset::of(at as u64), data)
            .filter(|piece| piece.len() == BLOCK_BYTES)
            .map(|piece| BlockSum::from(key.piece(piece)));
        for (number, sum) in span.whole.clone().zip(whole) {
            self.put(key, number, sum);
        }
        self.read_back(key, &span);
    }

    fn change_to_zeros(&mut self, key: &SumKey, bytes: Range<u64>) {
        let span = BlockSpan::of(&bytes);
        let kept: Vec<u64> = self
            .blocks
            .range(span.whole.clone())
            .map(|(number, _)| *number)
            .collect();
        for number in kept {
            self.put(key, number, BlockSum::ZEROS);
        }
        self.read_back(key, &span);
    }

    fn read_back(&mut self, key: &SumKey, span: &BlockSpan) {
        for number in span.partial() {
            self.put(key, number, key.block(block_of(&self.bytes, number)));
        }
    }

    fn put(&mut self, key: &SumKey, number: u64, new: BlockSum) {
        let old = if new.is_zeros() {
            self.blocks.remove(&number)
        } else {
            self.blocks.insert(number, new)
        };
        self.sum.replace(key, number, old.unwrap_or_default(), new);
    }
}

fn block_of(bytes: &[u8], number: u64) -> &[u8] {
    let start = usize::try_from(number * BLOCK).unwrap_or(usize::MAX);
    let end = start.saturating_add(BLOCK_BYTES).min(bytes.len());
    bytes.get(start..end).unwrap_or_default()
}

fn made_anew(key: &SumKey, bytes: &[u8]) -> (BTreeMap<u64, BlockSum>, FileSum) {
    let sums = (0..).zip(bytes.chunks(BLOCK_BYTES).map(|block| key.block(block)));
    let blocks: BTreeMap<u64, BlockSum> = sums.filter(|(_, sum)| !sum.is_zeros()).collect();
    let sum = FileSum::of(key, blocks.clone());
    (blocks, sum)
}

proptest! {
    #[test]
    fn kept_sums_are_those_of_the_content(edits in vec(edit(), 1..30), secret: [u8; 32]) {
        let key = SumKey::new(&SumSecret::new(secret));
        let mut file = SummedFile::default();
        for edit in &edits {
            file.apply(&key, edit);
            let (blocks, sum) = made_anew(&key, &file.bytes);
            prop_assert_eq!(&file.blocks, &blocks, "after {:?}", edit);
            prop_assert_eq!(file.sum, sum, "after {:?}", edit);
        }
        file.apply(&key, &Edit::Resize(0));
        prop_assert!(file.blocks.is_empty());
        prop_assert_eq!(file.sum, FileSum::ZEROS);
    }

    /// The other node may get the same bytes in other cuts: a resync sends blocks.
    #[test]
    fn equal_content_has_equal_sums(edits in vec(edit(), 1..20), cut in 1..3 * BLOCK_BYTES) {
        let key = SumKey::new(&SumSecret::new([3; 32]));
        let (mut ours, mut theirs) = (SummedFile::default(), SummedFile::default());
        for edit in &edits {
            ours.apply(&key, edit);
        }
        theirs.apply(&key, &Edit::Resize(ours.bytes.len()));
        for (number, piece) in ours.bytes.chunks(cut).enumerate() {
            theirs.apply(&key, &Edit::Write(number * cut, piece.to_vec()));
        }
        prop_assert_eq!(&ours.blocks, &theirs.blocks);
        prop_assert_eq!(ours.sum, theirs.sum);
    }

    #[test]
    fn another_byte_is_another_sum(bytes in vec(any::<u8>(), 1..BYTES_MAX), at: prop::sample::Index, flip in 1u8..) {
        let key = SumKey::new(&SumSecret::new([4; 32]));
        let (_, before) = made_anew(&key, &bytes);
        let mut other = bytes.clone();
        other[at.index(bytes.len())] ^= flip;
        prop_assert_ne!(made_anew(&key, &other).1, before);
    }
}
