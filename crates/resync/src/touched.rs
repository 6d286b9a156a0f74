//! The places that a resync has touched, and that no comparison has seen since.
//!
//! The places stay until they are proved to be equal ([`TouchedPlaces::proved_below`]): a resync that loses
//! its connection proves them later.

use std::collections::BTreeMap;
use std::ops::Range;

use lockstep_fs::store::ChangedRegions;
use lockstep_types::Ino;

/// Most numbers of inodes that are compared at once.
const NUMBERS_MAX: u64 = 256;
/// Most inodes that are named one by one, with the runs of their bytes; more become all inodes.
const NAMED_MAX: usize = 256 << 10;

/// See the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TouchedPlaces {
    /// Inodes, with their bytes.
    inodes: BTreeMap<Ino, ChangedRegions>,
    /// All inodes from this number on, with all their bytes.
    from: Option<u64>,
    /// The records of all inodes from this number on.
    records_from: Option<u64>,
    /// An earlier part of the same resync has touched places that are not among these.
    goes_on: bool,
}

/// The first of the touched places.
#[derive(Debug, PartialEq, Eq)]
pub struct FirstTouched {
    /// Inodes with numbers in this range.
    pub numbers: Range<u64>,
    /// All of them are touched. Otherwise those with bytes are, perhaps with none.
    pub has_all: bool,
    /// The touched bytes; `None`: all bytes.
    pub bytes: Option<BTreeMap<Ino, ChangedRegions>>,
}

impl FirstTouched {
    /// Whether an inode was touched.
    pub fn has(&self, ino: Ino) -> bool {
        let named = self.bytes.as_ref();
        let is_named = || named.is_none_or(|named| named.contains_key(&ino));
        self.numbers.contains(&ino.get()) && (self.has_all || is_named())
    }

    /// The number of touched inodes below `end`, of `all` inodes there.
    pub fn count_below(&self, end: u64, all: u64) -> u64 {
        match &self.bytes {
            Some(named) if !self.has_all => {
                named.keys().take_while(|ino| ino.get() < end).count() as u64
            }
            _ => all,
        }
    }

    /// The next touched bytes of a file from `at` on, before `end`.
    pub fn next_bytes(&self, ino: Ino, at: u64, end: u64) -> Option<Range<u64>> {
        let run = match &self.bytes {
            None => Some(at..end),
            Some(named) => named.get(&ino)?.next(at),
        };
        let run = run.map(|run| run.start..run.end.min(end))?;
        (!run.is_empty()).then_some(run)
    }
}

impl TouchedPlaces {
    pub(crate) fn new(
        inodes: BTreeMap<Ino, ChangedRegions>,
        from: Option<u64>,
        goes_on: bool,
    ) -> Self {
        Self {
            inodes,
            from,
            records_from: None,
            goes_on,
        }
    }

    /// The same places, and all records.
    pub(crate) fn with_all_records(self) -> Self {
        let records_from = Some(1);
        Self {
            records_from,
            ..self
        }
    }

    /// Whether no place is left.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.all_from().is_none()
    }

    /// The number from which on all inodes are touched.
    pub fn all_from(&self) -> Option<u64> {
        self.from.into_iter().chain(self.records_from).min()
    }

    /// The inodes that are named one by one.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.inodes.keys().copied()
    }

    /// The number of inodes that are named one by one, and are not among [`Self::all_from`].
    pub fn named(&self) -> u64 {
        let all_from = self.all_from().unwrap_or(u64::MAX);
        self.inodes().take_while(|ino| ino.get() < all_from).count() as u64
    }

    /// Adds the places of the next part of a resync. `knows_earlier`: these have the places of every earlier part.
    pub fn add(&mut self, more: Self, knows_earlier: bool) {
        if more.goes_on && !knows_earlier {
            self.from = Some(1);
        }
        self.from = self.from.into_iter().chain(more.from).min();
        self.records_from = self.records_from.into_iter().chain(more.records_from).min();
        for (ino, regions) in more.inodes {
            let touched = self.inodes.entry(ino).or_default();
            for run in regions.iter() {
                touched.insert(&run);
            }
        }
        let runs: usize = self.inodes.values().map(ChangedRegions::runs).sum();
        if self.inodes.len() + runs > NAMED_MAX {
            self.from = Some(1);
        }
        if let Some(from) = self.from {
            self.inodes.retain(|ino, _| ino.get() < from);
        }
    }

    /// The first inodes, without those after them; `None` if none is left.
    pub fn first(&self) -> Option<FirstTouched> {
        let named = self.inodes().next().map(Ino::get);
        let start = named.into_iter().chain(self.all_from()).min()?;
        if self.from.is_some_and(|from| from <= start) {
            return Some(FirstTouched {
                numbers: start..u64::MAX,
                has_all: true,
                bytes: None,
            });
        }
        let has_all = self.records_from.is_some_and(|from| from <= start);
        let numbers = start..self.end_of_first(start, has_all);
        let among = self.inodes.iter();
        let among = among.take_while(|(ino, _)| numbers.contains(&ino.get()));
        let bytes = among.map(|(ino, bytes)| (*ino, bytes.clone())).collect();
        Some(FirstTouched {
            numbers,
            has_all,
            bytes: Some(bytes),
        })
    }

    /// The end of the first inodes, of which no more than [`NUMBERS_MAX`] are named.
    fn end_of_first(&self, start: u64, has_all: bool) -> u64 {
        let from = self.from.unwrap_or(u64::MAX);
        if has_all {
            let mut beyond = (0..).zip(self.inodes());
            let beyond = beyond.find(|(number, _)| *number == NUMBERS_MAX);
            return beyond.map_or(u64::MAX, |(_, ino)| ino.get()).min(from);
        }
        let end = start.saturating_add(NUMBERS_MAX);
        let end = end.min(self.all_from().unwrap_or(u64::MAX));
        let last = self.inodes().take_while(|ino| ino.get() < end).last();
        last.map_or(start, Ino::get).saturating_add(1)
    }

    /// The inodes below this number are equal on both nodes.
    pub fn proved_below(&mut self, number: u64) {
        while let Some(first) = self.inodes.first_entry()
            && first.key().get() < number
        {
            first.remove();
        }
        for from in [&mut self.from, &mut self.records_from] {
            *from = from.map(|from| from.max(number));
            from.take_if(|from| *from == u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes are noted in parts of this size.
    const PART: u64 = 64 << 10;

    fn ino(number: u64) -> Ino {
        Ino::new(number).unwrap()
    }

    fn regions(run: &Range<u64>) -> ChangedRegions {
        let mut regions = ChangedRegions::default();
        regions.insert(run);
        regions
    }

    fn named(numbers: &[u64]) -> TouchedPlaces {
        let inodes = numbers
            .iter()
            .map(|number| (ino(*number), regions(&(0..PART))));
        TouchedPlaces::new(inodes.collect(), None, false)
    }

    fn numbers(touched: &TouchedPlaces) -> Option<Range<u64>> {
        touched.first().map(|first| first.numbers)
    }

    #[test]
    fn inodes_close_to_each_other_are_compared_at_once_until_all_are_proved() {
        let mut touched = named(&[3, 7, 258, 259, 9000]);
        assert_eq!(numbers(&touched), Some(3..259));
        assert_eq!(touched.first(), touched.first(), "a lost connection");
        touched.proved_below(8);
        assert_eq!(numbers(&touched), Some(258..260));
        touched.proved_below(260);
        assert_eq!(numbers(&touched), Some(9000..9001));
        touched.proved_below(9001);
        assert!(touched.is_empty() && touched.first().is_none());
    }

    #[test]
    fn the_inodes_from_a_number_on_follow_those_before() {
        let mut touched = named(&[3, 90]);
        touched.add(TouchedPlaces::new(BTreeMap::new(), Some(50), false), true);
        assert_eq!(numbers(&touched), Some(3..4));
        touched.proved_below(4);
        assert_eq!(numbers(&touched), Some(50..u64::MAX));
        let first = touched.first().unwrap();
        assert!(first.has(ino(50)) && !first.has(ino(49)));
        assert_eq!(first.next_bytes(ino(60), 5, 9), Some(5..9));
        touched.proved_below(300);
        assert_eq!((touched.all_from(), touched.named()), (Some(300), 0));
        touched.proved_below(u64::MAX);
        assert!(touched.is_empty());
    }

    /// An inode that has changed while the connection was lost is compared again.
    #[test]
    fn a_later_part_adds_to_what_is_left() {
        let mut touched = named(&[3, 4]);
        touched.proved_below(4);
        let bytes = || regions(&(4 * PART..6 * PART));
        let more = BTreeMap::from([(ino(3), bytes()), (ino(4), bytes())]);
        touched.add(TouchedPlaces::new(more, None, true), true);
        let first = touched.first().unwrap();
        let next = |number: u64, at: u64| first.next_bytes(ino(number), at, 5 * PART);
        assert_eq!(next(3, 0), Some(4 * PART..5 * PART));
        assert_eq!(next(3, 5 * PART), None);
        assert_eq!(next(4, 0), Some(0..PART));
        assert_eq!(next(4, PART), Some(4 * PART..5 * PART));
        assert_eq!(first.numbers, 3..5);
        assert!(first.has(ino(4)) && !first.has(ino(5)));
    }

    /// Too many records have changed to name them. No byte is touched beside the named ones.
    #[test]
    fn all_records_are_compared_with_the_named_bytes() {
        let numbers_of_named: Vec<u64> = (2..=600).step_by(2).collect();
        let mut touched = named(&numbers_of_named).with_all_records();
        assert_eq!((touched.all_from(), touched.named()), (Some(1), 0));
        let first = touched.first().unwrap();
        assert_eq!(first.numbers, 1..514, "256 of them are named");
        assert!(first.has(ino(1)) && first.has(ino(3)) && !first.has(ino(514)));
        assert_eq!(first.next_bytes(ino(3), 0, PART), None);
        assert_eq!(first.next_bytes(ino(4), 0, PART), Some(0..PART));
        touched.proved_below(200);
        assert_eq!(numbers(&touched), Some(200..u64::MAX));
        touched.proved_below(u64::MAX);
        assert!(touched.is_empty());
    }

    #[test]
    fn places_of_which_nothing_is_known_any_more_are_all_places() {
        let mut touched = TouchedPlaces::default();
        touched.add(TouchedPlaces::new(BTreeMap::new(), None, true), false);
        assert_eq!(touched.all_from(), Some(1));
    }
}
