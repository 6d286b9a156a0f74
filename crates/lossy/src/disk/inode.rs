//! One file without its name: the bytes that reads see, and their state on stable storage.
//!
//! Every change of a page or of the length is noted in a [`History`] before it is made. So a power loss can
//! choose any state since the last sync, for each page and for the length separately. This module does not
//! know the room on the disk: the caller checks for room first.

use std::collections::BTreeMap;
use std::ops::Range;

use super::history::History;
use super::loss::Survivors;
use super::pages::{PAGE_BYTES, Page, Pages, index, pages_of, pieces};
use crate::random::Random;

/// Numbers the changes of a disk.
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
    /// The content that reads see.
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

    /// Writes page by page, as long as `room_pages` new pages suffice. Returns the number of written bytes.
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

    /// Cuts or grows the file. A cut frees space that was reserved past the end.
    pub(super) fn set_len(&mut self, length: u64, changes: &mut ChangeCounter) {
        if length <= self.seen.length() {
            self.punch(length..u64::MAX, changes);
        }
        self.put_length(length, changes);
    }

    /// Number of new pages that a range needs to be reserved.
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

    /// Reserves pages of a range in order, at most `room` new pages. Returns whether all pages are reserved
    /// now; otherwise the length stays.
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

    /// Frees the whole pages of a range, and zeroes the rest of the range.
    pub(super) fn punch(&mut self, range: Range<u64>, changes: &mut ChangeCounter) {
        self.clear(range, &Page::Hole, changes);
    }

    /// Zeroes a range and reserves its pages.
    pub(super) fn zero(
        &mut self,
        range: &Range<u64>,
        keep_size: bool,
        changes: &mut ChangeCounter,
    ) {
        self.clear(range.clone(), &Page::Reserved, changes);
        self.reserve(range, keep_size, changes);
    }

    /// Replaces the held whole pages of a range by `gap`, and zeroes the parts of other pages.
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

    /// Makes content and length durable, except for the changes that a failed sync gave up.
    pub(super) fn sync(&mut self) {
        self.pages.retain(|_, history| !history.is_dirty());
        if self.length.as_ref().is_some_and(History::is_dirty) {
            self.length = None;
        }
    }

    /// Fails a sync as Linux does: the unsaved changes are clean from now on, and are not on the disk.
    pub(super) fn fail_sync(&mut self) {
        self.pages.values_mut().for_each(History::give_up);
        if let Some(history) = &mut self.length {
            history.give_up();
        }
    }

    /// Shows the pages that a failed sync gave up as they are on stable storage.
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
        // The file may have been cut since.
        seen.trim();
    }

    /// Loses power: chooses the surviving state, which becomes the seen state.
    pub(super) fn lose_power(&mut self, survivors: Survivors, random: &mut Random) {
        for (number, history) in std::mem::take(&mut self.pages) {
            let page = history.survivor(self.seen.get(number), survivors, random);
            self.seen.replace(number, page);
        }
        if let Some(history) = self.length.take() {
            let length = history.survivor(self.seen.length(), survivors, random);
            self.seen.set_length(length);
        }
        // Needed even if the length was saved: pages that a failed sync gave up may be older than a cut.
        self.seen.trim();
    }

    /// Flips one bit in every state that may ever be seen. Returns false if there is no such byte.
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

    /// Number of pages and lengths that are not on stable storage.
    pub(super) fn unsynced(&self) -> usize {
        self.pages.len() + usize::from(self.length.is_some())
    }

    /// The content on stable storage.
    pub(super) fn kept(&self) -> Pages {
        let mut kept = self.clone();
        // With no survivors nothing is left to chance.
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
