//! The two columns of a table of region marks, which hold the marks of numbered intervals.
//!
//! A table has room for the marks of two intervals, the one that a barrier is about to end and the following one. More of them
//! may live for a while: a node may not have heard of the end of a barrier, or a session may begin between two steps of one. Then
//! a column holds the marks of several intervals.
//!
//! Invariant: a column is emptied only once everything up to its youngest interval is stable on both nodes. A column that gets a
//! younger interval keeps the marks that it has.

use crate::interval::Interval;

/// One of the two columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// The one that an empty table fills first.
    First,
    /// The other one.
    Second,
}

impl Column {
    /// Both columns.
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];
}

/// The youngest interval of each column that has marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MarkColumns {
    first: Option<Interval>,
    second: Option<Interval>,
}

impl MarkColumns {
    /// The columns that an earlier process has left: the youngest interval of each.
    pub const fn left(first: Option<Interval>, second: Option<Interval>) -> Self {
        Self { first, second }
    }

    /// Whether no column has marks.
    pub const fn are_empty(&self) -> bool {
        self.first.is_none() && self.second.is_none()
    }

    /// The youngest interval of a column; `None` for an empty one.
    pub const fn youngest(&self, column: Column) -> Option<Interval> {
        match column {
            Column::First => self.first,
            Column::Second => self.second,
        }
    }

    fn set(&mut self, column: Column, youngest: Option<Interval>) {
        match column {
            Column::First => self.first = youngest,
            Column::Second => self.second = youngest,
        }
    }

    /// The column for a mark of an interval. The column keeps its other marks.
    pub fn place(&mut self, interval: Interval) -> Column {
        let (column, youngest) = match (self.first, self.second) {
            (None, Some(second)) if interval <= second => (Column::Second, second),
            (None, _) => (Column::First, interval),
            (Some(first), None) if interval <= first => (Column::First, first),
            (Some(_), None) => (Column::Second, interval),
            (Some(first), Some(second)) => {
                let (older, newer) = if first < second {
                    ((Column::First, first), (Column::Second, second))
                } else {
                    ((Column::Second, second), (Column::First, first))
                };
                // An interval that neither column knows joins the older marks.
                match interval {
                    it if it <= older.1 => older,
                    it if it <= newer.1 => newer,
                    it => (older.0, it),
                }
            }
        };
        self.set(column, Some(youngest));
        column
    }

    /// The columns that a barrier empties, which has made everything up to `through` stable on both nodes.
    #[must_use]
    pub fn drop_through(&mut self, through: Interval) -> Vec<Column> {
        let is_over = |column: &Column| self.youngest(*column).is_some_and(|it| it <= through);
        let over: Vec<Column> = Column::BOTH.into_iter().filter(is_over).collect();
        for column in &over {
            self.set(*column, None);
        }
        over
    }

    /// The columns that may have marks of intervals after `base`.
    pub fn after(&self, base: Interval) -> impl Iterator<Item = Column> + use<> {
        let youngest = Column::BOTH.map(|column| (column, self.youngest(column)));
        let is_after =
            move |(_, youngest): &(Column, Option<Interval>)| youngest.is_some_and(|it| it > base);
        youngest
            .into_iter()
            .filter(is_after)
            .map(|(column, _)| column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64) -> Interval {
        Interval::new(number)
    }

    #[test]
    fn two_intervals_have_a_column_each() {
        let mut columns = MarkColumns::default();
        let first = columns.place(at(1));
        let second = columns.place(at(2));
        assert_ne!(first, second);
        assert_eq!(columns.place(at(1)), first);
        assert_eq!(columns.place(at(2)), second);
        assert_eq!(columns.drop_through(at(1)), [first]);
        assert_eq!(columns.place(at(3)), first);
        assert_eq!(columns.after(at(2)).collect::<Vec<_>>(), [first]);
    }

    #[test]
    fn a_third_interval_joins_the_oldest_and_keeps_it() {
        let mut columns = MarkColumns::default();
        let first = columns.place(at(1));
        let second = columns.place(at(2));
        assert_eq!(columns.place(at(3)), first);
        // The word that interval 1 is over comes late: its marks stay with those of interval 3.
        assert_eq!(columns.drop_through(at(1)), []);
        assert_eq!(columns.drop_through(at(2)), [second]);
        assert_eq!(columns.after(at(2)).collect::<Vec<_>>(), [first]);
        assert_eq!(columns.drop_through(at(3)), [first]);
    }

    #[test]
    fn a_late_mark_stays_as_long_as_its_interval() {
        let mut columns = MarkColumns::default();
        let first = columns.place(at(4));
        assert_eq!(columns.place(at(2)), first);
        let second = columns.place(at(6));
        assert_eq!(columns.place(at(5)), second);
        assert_eq!(columns.place(at(3)), first);
    }
}
