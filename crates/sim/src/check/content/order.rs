//! The order of the writes to one file, derived from all its bytes.
//!
//! A write that returned acted at one moment as a whole. It held its range until both nodes had the
//! complete write (rule P4), and so did every read. So the order of two writes that one byte proves
//! holds for every other byte of the two writes. A circle in this order is impossible. It means
//! that each of two overlapping writes won somewhere, or that a read saw half of a write.
//!
//! Writes that never returned are left out, because a crash may have torn them.

use crate::op::Mark;

/// Number of words of a row.
const WORDS: usize = 4;

/// The known order of the writes of one file and epoch.
#[derive(Debug)]
pub(super) struct Order {
    /// One row per mark, one bit per mark that came later.
    later: Vec<[u64; WORDS]>,
}

/// Returns the position of a mark's bit.
fn bit(mark: Mark) -> (usize, u64) {
    (usize::from(mark.get() / 64), 1 << (mark.get() % 64))
}

impl Order {
    /// Returns an order in which nothing is known yet.
    pub fn new() -> Self {
        Self {
            later: vec![[0; WORDS]; 256],
        }
    }

    /// Notes that `first` came before `second`.
    pub fn add(&mut self, first: Mark, second: Mark) {
        let (word, bit) = bit(second);
        let row = self.later.get_mut(usize::from(first.get()));
        if let Some(word) = row.and_then(|row| row.get_mut(word)) {
            *word |= bit;
        }
    }

    fn row(&self, mark: Mark) -> [u64; WORDS] {
        let row = self.later.get(usize::from(mark.get()));
        row.copied().unwrap_or_default()
    }

    fn is_before(&self, first: Mark, second: Mark) -> bool {
        let (word, bit) = bit(second);
        self.row(first)
            .get(word)
            .is_some_and(|word| word & bit != 0)
    }

    /// Returns the marks of a circle in the order, if there is one.
    pub fn circle(mut self, marks: &[Mark]) -> Option<Vec<Mark>> {
        for middle in marks {
            let beyond = self.row(*middle);
            for first in marks {
                if self.is_before(*first, *middle)
                    && let Some(row) = self.later.get_mut(usize::from(first.get()))
                {
                    row.iter_mut()
                        .zip(beyond)
                        .for_each(|(word, more)| *word |= more);
                }
            }
        }
        let start = marks.iter().find(|mark| self.is_before(**mark, **mark))?;
        let both = |mark: &&Mark| self.is_before(*start, **mark) && self.is_before(**mark, *start);
        Some(marks.iter().filter(both).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_and_a_line_is_none() {
        let marks: Vec<_> = [1, 64, 200, 255]
            .into_iter()
            .filter_map(Mark::new)
            .collect();
        let line = |order: &mut Order| {
            marks
                .windows(2)
                .for_each(|pair| order.add(pair[0], pair[1]));
        };
        let mut order = Order::new();
        line(&mut order);
        assert_eq!(order.circle(&marks), None);
        let mut order = Order::new();
        line(&mut order);
        order.add(marks[2], marks[1]);
        assert_eq!(order.circle(&marks), Some(marks[1..3].to_vec()));
    }
}
