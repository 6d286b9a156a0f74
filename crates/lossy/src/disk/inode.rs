//! One file without its name: what reads see of it, and what of that is on stable storage.
//!
//! Every change of a page or of the length is noted in a [`History`] before it is made, so that a
//! power loss can choose any state since the last sync, for each page and for the length by itself.
//! It knows nothing of the room on the disk: who calls has looked whether there is enough.

use std::collections::BTreeMap;
use std::ops::Range;

use super::history::History;
use super::loss::Survivors;
use super::pages::{PAGE_BYTES, Page, Pages, index, pages_of, pieces};
use crate::random::Random;

/// Counts the changes of a disk; each has its own number.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangeCounter(u64);

impl ChangeCounter {
    pub(super) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    pub(super) fn last(&self) -> u64 {
        self.0
    }
}

/// A file.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    seen: Pages,
    pages: BTreeMap<u64, History<Page>>,
    length: Option<History<u64>>,
}

impl Inode {
    /// What reads see.
    pub(super) fn seen(&self) -> &Pages {
        &self.seen
    }

    fn put(&mut self, number: u64, page: Page, changes: &mut ChangeCounter) {
        if self.seen.get(number).is_same_gap(&page) {
            return;
        }
        let left = self.seen.replace(number, page);
        let change = changes.next();
        match self.pages.get_mut(&number) {
            Some(history) => history.add(left, change),
            None => drop(self.pages.insert(number, History::new(left, change))),
        }
    }

    fn put_length(&mut self, length: u64, changes: &mut ChangeCounter) {
        let left = self.seen.length();
        if left == length {
            return;
        }
        self.seen.set_length(length);
        let change = changes.next();
        match &mut self.length {
            Some(history) => history.add(left, change),
            None => self.length = Some(History::new(left, change)),
        }
    }

    fn grow(&mut self, end: u64, changes: &mut ChangeCounter) {
        if end > self.seen.length() {
            self.put_length(end, changes);
        }
    }

    /// Writes, page by page, as long as no more than `room_pages` pages more are needed. Returns
    /// how many bytes were written.
    pub(super) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        room_pages: u64,
        changes: &mut ChangeCounter,
    ) -> usize {
        let full = self.seen.count().saturating_add(room_pages);
        let mut rest = data;
        for piece in pieces(offset..offset + data.len() as u64) {
            if self.seen.count() >= full && !self.seen.is_held(piece.number) {
                break;
            }
            let (now, later) = rest.split_at(piece.within.len());
            let page = self.seen.get(piece.number).with(piece.within.start, now);
            self.put(piece.number, page, changes);
            rest = later;
        }
        let written = data.len() - rest.len();
        if written > 0 {
            self.grow(offset + written as u64, changes);
        }
        written
    }

    /// Cuts or grows. A cut gives back what was reserved past the end.
    pub(super) fn set_len(&mut self, length: u64, changes: &mut ChangeCounter) {
        if length <= self.seen.length() {
            self.punch(length..u64::MAX, changes);
        }
        self.put_length(length, changes);
    }

    /// How many pages more a range needs to be reserved.
    pub(super) fn missing_pages(&self, range: &Range<u64>) -> u64 {
        let pages = pages_of(range);
        let held = self.seen.count_in(&pages);
        pages.end.saturating_sub(pages.start).saturating_sub(held)
    }

    /// Reserves the pages of a range.
    pub(super) fn reserve(
        &mut self,
        range: &Range<u64>,
        keep_size: bool,
        changes: &mut ChangeCounter,
    ) {
        for number in pages_of(range) {
            if !self.seen.is_held(number) {
                self.put(number, Page::Reserved, changes);
            }
        }
        if !keep_size {
            self.grow(range.end, changes);
        }
    }

    /// Reserves pages of a range, in their order, as long as there is room for so many. Whether all are reserved now;
    /// otherwise the length stays.
    pub(super) fn reserve_some(
        &mut self,
        range: &Range<u64>,
        keep_size: bool,
        room: u64,
        changes: &mut ChangeCounter,
    ) -> bool {
        if self.missing_pages(range) <= room {
            self.reserve(range, keep_size, changes);
            return true;
        }
        let missing = pages_of(range).filter(|number| !self.seen.is_held(*number));
        let missing: Vec<u64> = missing.take(index(room)).collect();
        for number in missing {
            self.put(number, Page::Reserved, changes);
        }
        false
    }

    /// Frees the whole pages of a range, and makes zeros of the rest of it.
    pub(super) fn punch(&mut self, range: Range<u64>, changes: &mut ChangeCounter) {
        self.clear(range, &Page::Hole, changes);
    }

    /// Makes zeros of a range and reserves its pages.
    pub(super) fn zero(
        &mut self,
        range: &Range<u64>,
        keep_size: bool,
        changes: &mut ChangeCounter,
    ) {
        self.clear(range.clone(), &Page::Reserved, changes);
        self.reserve(range, keep_size, changes);
    }

    /// Puts `gap` in the place of the whole pages of a range that are held, and zeros in the others.
    fn clear(&mut self, range: Range<u64>, gap: &Page, changes: &mut ChangeCounter) {
        for number in self.seen.held_in(pages_of(&range)) {
            let start = range.start.max(number * PAGE_BYTES) - number * PAGE_BYTES;
            let end = (range.end - number * PAGE_BYTES).min(PAGE_BYTES);
            let page = if end - start == PAGE_BYTES {
                gap.clone()
            } else {
                self.seen
                    .get(number)
                    .with_zeros(&(index(start)..index(end)))
            };
            self.put(number, page, changes);
        }
    }

    /// Content and length are on stable storage now, but for what a failed sync has given up.
    pub(super) fn sync(&mut self) {
        self.pages.retain(|_, history| !history.is_dirty());
        if self.length.as_ref().is_some_and(History::is_dirty) {
            self.length = None;
        }
    }

    /// A sync that fails as in Linux: what it should have saved counts as clean from now on, and
    /// is not on the disk.
    pub(super) fn fail_sync(&mut self) {
        self.pages.values_mut().for_each(History::lose_track);
        if let Some(history) = &mut self.length {
            history.lose_track();
        }
    }

    /// The pages that a failed sync has given up are seen as stable storage has them.
    pub(super) fn drop_lost_pages(&mut self) {
        let seen = &mut self.seen;
        self.pages.retain(|&number, history| {
            if let Some(kept) = history.synced()
                && !history.is_dirty()
            {
                seen.replace(number, kept.clone());
            }
            history.is_dirty()
        });
        // They may have been cut since.
        seen.trim();
    }

    /// Power is lost: chooses what is left, which from now on is what is seen.
    pub(super) fn lose_power(&mut self, survivors: Survivors, random: &mut Random) {
        for (number, history) in std::mem::take(&mut self.pages) {
            let page = history.survivor(self.seen.get(number), survivors, random);
            self.seen.replace(number, page);
        }
        if let Some(history) = self.length.take() {
            let length = history.survivor(self.seen.length(), survivors, random);
            self.seen.set_length(length);
        }
        // Also when the length was saved: pages that a failed sync gave up may be from before a cut.
        self.seen.trim();
    }

    /// Turns one bit over in every state that may ever be seen; false when no byte lies there.
    pub(super) fn flip(&mut self, offset: u64, bit: u32) -> bool {
        let (number, at) = (offset / PAGE_BYTES, index(offset % PAGE_BYTES));
        if offset >= self.seen.length() {
            return false;
        }
        let mut page = self.seen.get(number);
        let flipped = page.flip(at, bit);
        self.seen.replace(number, page);
        if let Some(history) = self.pages.get_mut(&number) {
            for earlier in history.each_earlier() {
                earlier.flip(at, bit);
            }
        }
        flipped
    }

    /// Pages and lengths that are not on stable storage.
    pub(super) fn unsynced(&self) -> usize {
        self.pages.len() + usize::from(self.length.is_some())
    }

    /// What is on stable storage.
    pub(super) fn kept(&self) -> Pages {
        let mut kept = self.clone();
        // Nothing is left to chance when nothing survives.
        kept.lose_power(Survivors::Nothing, &mut Random::new(0));
        kept.seen
    }

    /// The number of the first change that is not on stable storage.
    pub(super) fn first_change(&self) -> Option<u64> {
        let pages = self.pages.values().map(History::first_change);
        let length = self.length.iter().map(History::first_change);
        pages.chain(length).min()
    }
}
