//! A change of bytes with its sums.
//!
//! A change has three steps: [`SumKeeper::carry_out`] finds out what the new sums will be, notes the blocks, makes the change,
//! and stores the sums. A block that is written in part is read before, unless its sum is void or that of zeros.
//!
//! Callers keep two changes of one block apart (`content/before_change.rs`). Changes of different blocks of a file may run at
//! once: each adds its part to the file sum, under the lock of the stripe.

use std::io;

use lockstep_sums::{BlockOffset, BlockSpan, BlockSum, SummedBytes};
use lockstep_types::Ino;
use lockstep_types::backing::BackingFile;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::mutants::{Mutant, is_active};
use smallvec::SmallVec;

use super::change::{BLOCK, NewBytes, block_number, blocks_of, length_of, read_block};
use super::changing::{ChangingBlocks, EntryNumber};
use super::file_sums::CHANGE_BLOCKS;
use super::keeper::{KeptEra, SumKeeper, count};
use super::slot::BlockState;
use crate::error::StoreError;

/// Blocks whose sums a failed change makes void one by one. Of more, the whole file is void.
const VOID_EACH_MAX: usize = 4096;

/// A change that is noted.
struct Begun {
    entry: EntryNumber,
    states: NewStates,
}

/// The states of blocks after a change.
#[expect(clippy::large_enum_variant, reason = "a write costs no allocation")]
enum NewStates {
    /// Those of the blocks that are written, from this one on.
    Written(u32, SmallVec<[BlockState; CHANGE_BLOCKS]>),
    /// All blocks of the change become zeros, but for those that are cut in part.
    Zeros(PartialStates),
}

/// The states of the blocks that a change covers in part.
type PartialStates = SmallVec<[(u32, BlockState); 2]>;

/// Changes.
impl SumKeeper {
    /// Makes a change of the bytes of a file by `change`, and changes the sums with it. Only `change` fails.
    pub fn carry_out(
        &self,
        ino: Ino,
        new: &NewBytes<'_>,
        content: &dyn BackingFile,
        change: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let era = self.era.read();
        let Some(era) = era.as_ref().filter(|era| !era.is_over()) else {
            return change();
        };
        let begun = self.begin(era, ino, new, content).unwrap_or_else(|error| {
            self.give_up(era, ino, &error);
            None
        });
        let made = change();
        if let Some(Begun { entry, states }) = begun {
            let stored = match &made {
                Ok(()) => self.store(era, ino, new, &states),
                Err(_) => self.void(era, ino, new, content),
            };
            if let Err(error) = stored {
                self.give_up(era, ino, &error);
            }
            era.changing.remove(entry);
        }
        made
    }

    /// Notes the blocks of a change, and makes their new sums. `None` if the bytes stay.
    fn begin(
        &self,
        era: &KeptEra,
        ino: Ino,
        new: &NewBytes<'_>,
        content: &dyn BackingFile,
    ) -> Result<Option<Begun>, StoreError> {
        let place = era.place(&self.files);
        let blocks = new.blocks();
        let mut olds = PartialStates::new();
        {
            // The sums of a new file begin with its first growth, also by bytes that no change writes: they are zeros, not void.
            let mut stripe = self.stripe(ino).lock();
            let sums = stripe.get_or_begin(place, ino, content)?;
            for block in BlockSpan::of(&new.range()).partial().map(block_number) {
                olds.push((block, sums.state(place, block)?));
            }
        }
        if blocks.is_empty() {
            return Ok(None);
        }
        let changing = ChangingBlocks {
            ino,
            blocks,
            makes_zeros: matches!(new, NewBytes::Zeros { .. }),
        };
        let Some(entry) = era.changing.note(&changing, &era.key) else {
            // Without a note no sum of the file may stand through the change.
            count(&self.counts.given_up);
            self.void_file(era, ino)?;
            return Ok(None);
        };
        let edges = PartialBlocks {
            keeper: self,
            era,
            ino,
            new,
            content,
        };
        for (block, state) in &mut olds {
            *state = edges.state(*block, *state);
        }
        let states = match *new {
            NewBytes::Data { offset, data } => written(era, (offset, data), content, &olds),
            NewBytes::Zeros { .. } | NewBytes::Same => NewStates::Zeros(olds),
        };
        Ok(Some(Begun { entry, states }))
    }

    /// Stores the sums of a change that was made.
    fn store(
        &self,
        era: &KeptEra,
        ino: Ino,
        new: &NewBytes<'_>,
        states: &NewStates,
    ) -> Result<(), StoreError> {
        let place = era.place(&self.files);
        let mut stripe = self.stripe(ino).lock();
        let Some(sums) = stripe.get(place, ino)? else {
            return Ok(());
        };
        match states {
            NewStates::Written(first, states) => sums.put(place, *first, states),
            NewStates::Zeros(partial) => {
                let whole = BlockSpan::of(&new.range()).whole;
                let whole = block_number(whole.start)..block_number(whole.end);
                if !whole.is_empty() {
                    sums.zero(place, &whole)?;
                }
                let mut partial = partial.iter();
                partial.try_for_each(|(block, state)| sums.put(place, *block, &[*state]))
            }
        }
    }

    /// The change has failed: nothing is known of its blocks.
    fn void(
        &self,
        era: &KeptEra,
        ino: Ino,
        new: &NewBytes<'_>,
        content: &dyn BackingFile,
    ) -> Result<(), StoreError> {
        let place = era.place(&self.files);
        let blocks = new.blocks();
        // Behind the content are no bytes.
        let end = blocks_of(length_of(content, ino)?);
        let (void, cut) = (
            blocks.start..blocks.end.min(end),
            end.max(blocks.start)..blocks.end,
        );
        if void.len() > VOID_EACH_MAX {
            return self.void_file(era, ino);
        }
        let mut stripe = self.stripe(ino).lock();
        let Some(sums) = stripe.get(place, ino)? else {
            return Ok(());
        };
        if !void.is_empty() {
            sums.put(place, void.start, &vec![None; void.len()])?;
        }
        if !cut.is_empty() {
            sums.zero(place, &cut)?;
        }
        Ok(())
    }

    /// Makes all sums of a file void, as they cannot be kept.
    pub(super) fn give_up(&self, era: &KeptEra, ino: Ino, error: &StoreError) {
        count(&self.counts.given_up);
        tracing::warn!(%ino, %error, "the sums of a file are void");
        if let Err(error) = self.void_file(era, ino) {
            tracing::error!(%ino, %error, "the sums of all files are void");
            era.end();
        }
    }

    fn void_file(&self, era: &KeptEra, ino: Ino) -> Result<(), StoreError> {
        let mut stripe = self.stripe(ino).lock();
        stripe.forget(ino);
        era.place(&self.files).files.clear_slot(ino)
    }

    /// The content of a freed inode is about to be removed: its sums go first. A content of the same number begins without.
    pub fn removed(&self, ino: Ino) {
        let era = self.era.read();
        let Some(era) = era.as_ref().filter(|era| !era.is_over()) else {
            // Those of an earlier era say nothing, and take room.
            let removed = self.files.clear_slot(ino);
            if let Err(error) = removed.and_then(|()| self.files.remove(ino)) {
                tracing::warn!(%ino, %error, "old sums of a removed file stay");
            }
            return;
        };
        let mut stripe = self.stripe(ino).lock();
        match stripe.remove(era.place(&self.files), ino) {
            Ok(true) => {}
            Ok(false) => {
                count(&self.counts.left_sums);
                tracing::error!(%ino, "the sum of a removed file was not that of its blocks");
            }
            Err(error) => {
                drop(stripe);
                self.give_up(era, ino, &error);
            }
        }
    }
}

/// The new states of blocks that are written. `partial` has those of the blocks that are written in part. Bytes that have their sums
/// with them are not hashed again.
fn written(
    era: &KeptEra,
    (offset, data): (u64, SummedBytes<'_>),
    content: &dyn BackingFile,
    partial: &PartialStates,
) -> NewStates {
    let first = block_number(offset / BLOCK);
    let start = BlockOffset::of(offset);
    let known = data.sums(&era.key, start).unwrap_or_default();
    let shift = usize::from(is_active(Mutant::SumOfOtherBytes) && start != BlockOffset::START);
    let pieces = lockstep_sums::pieces(start, data.bytes()).enumerate();
    let mut partial = partial.iter();
    let state = |(block, (number, piece)): (u32, (usize, &[u8]))| {
        if piece.len() < BLOCK_BYTES {
            return partial.next().and_then(|(_, state)| *state);
        }
        if is_active(Mutant::SumOfOldBlock) {
            let old = read_block(content, block).unwrap_or([0; BLOCK_BYTES]);
            return Some(era.key.block(&old));
        }
        Some(match known.get(number - shift) {
            Some(sum) => BlockSum::from_bytes(*sum),
            None => BlockSum::from(era.key.piece(piece)),
        })
    };
    let states = (first..=u32::MAX).zip(pieces).map(state).collect();
    NewStates::Written(first, states)
}

/// The blocks that a change writes in part.
struct PartialBlocks<'a> {
    keeper: &'a SumKeeper,
    era: &'a KeptEra,
    ino: Ino,
    new: &'a NewBytes<'a>,
    content: &'a dyn BackingFile,
}

impl PartialBlocks<'_> {
    /// The state of a block after the change, whose state before is `old`.
    fn state(&self, block: u32, old: BlockState) -> BlockState {
        if is_active(Mutant::SumNotRecomputed) {
            return old;
        }
        let mut bytes = match old {
            Some(sum) => self.known_bytes(block, sum)?,
            None if self.covers_content(block) => [0; BLOCK_BYTES],
            None => return None,
        };
        self.new.lay_over(block, &mut bytes);
        Some(self.era.key.block(&bytes))
    }

    /// The bytes of a block before the change; `None` if they are not those of the sum.
    fn known_bytes(&self, block: u32, sum: BlockSum) -> Option<[u8; BLOCK_BYTES]> {
        if sum.is_zeros() {
            return Some([0; BLOCK_BYTES]);
        }
        let bytes = read_block(self.content, block).ok()?;
        let fits = self.era.key.block(&bytes) == sum;
        if !fits {
            count(&self.keeper.counts.mismatches);
            let ino = self.ino;
            tracing::error!(%ino, block, "the bytes of a block do not fit their sum");
        }
        fits.then_some(bytes)
    }

    /// Whether the change writes all bytes that the file has in a block.
    fn covers_content(&self, block: u32) -> bool {
        let bytes = self.new.range();
        let starts_before = bytes.start <= u64::from(block) * BLOCK;
        starts_before
            && matches!(self.new, NewBytes::Data { .. })
            && length_of(self.content, self.ino).is_ok_and(|length| length <= bytes.end)
    }
}
