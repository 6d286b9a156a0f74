//! The value of one byte over time: whether the observations of it are possible.
//!
//! The same calls touched all bytes of a segment, and readers saw the same values in them. So one
//! byte represents the segment. Its values follow each other. A value is *known* to be present by
//! the first return of a call that made or saw it. The value is still *current* at the last
//! invocation of a call that made or saw it. Between the making of a value and the last sight of
//! it, the byte has no other value. Hence the one rule:
//!
//! > Of two values that exclude each other, A and B, one is over before the other begins. If A was
//! > known before B was last current, A came first. If B was also known before A was last current, B
//! > came first. Then no run can have produced both.
//!
//! The rule holds for a mark with all sights of it, because a mark is made once, so its sights
//! belong together. It also holds for a single change or look whose value may have been made more
//! than once (zeros, the end of the file). A look at such a value needs one maker for which the
//! rule holds with all other values.
//!
//! A change that may not have happened is never known unless a call saw it. So such a change
//! accuses no run. A change that could happen up to a time only was known by then, if a call saw it.
//!
//! After a loss (see `history::loss::Loss`) the byte may have any value that it had before or that was on
//! its way, unless a durable value came after that value. Where the file ended, the byte may also
//! be zero, because the length may have survived without the data. The first look shows the value.
//! From then on, the byte has one value. After a loss of power, this value also survives later
//! losses.

use crate::check::timeline::Value;
use crate::history::CallId;
use crate::history::loss::{Cause, Loss};
use crate::op::Mark;

/// A change of the byte, or a look at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// The value that the call made or saw.
    pub value: Value,
    /// Time of the invocation.
    pub invoked: u64,
    /// Time when the call was over. `u64::MAX`, for never, if the call may not have happened.
    pub over: u64,
    /// Time when the effect was known anywhere in the file, if the call acts at one moment as a
    /// whole. Otherwise the same as `over`.
    pub known: u64,
    /// Latest time at which the change became durable.
    pub durable: u64,
    /// The change has no effect after this time.
    pub deadline: u64,
    /// The call. `None` for the final content.
    pub call: Option<CallId>,
}

/// The possible values when an epoch begins: at the start, or after a loss.
#[derive(Clone, Debug)]
pub(super) struct Initial {
    /// Time of the beginning.
    pub at: u64,
    /// Writes whose bytes may be present.
    pub marks: Vec<Mark>,
    /// Whether the byte may be zero.
    pub zero: bool,
    /// Whether the byte may be absent, because the file may end before it.
    pub absent: bool,
    /// Whether the value is on the disk, for every possible value.
    pub is_lasting: bool,
}

impl Initial {
    /// Returns the initial values of a file that was never touched.
    pub const fn nothing() -> Self {
        Self {
            at: 0,
            marks: Vec::new(),
            zero: false,
            absent: true,
            is_lasting: true,
        }
    }

    /// Returns whether the byte may have `value`.
    fn allows(&self, value: Value) -> bool {
        match value {
            Value::Mark(mark) => self.marks.contains(&mark),
            Value::Zero => self.zero,
            Value::Absent => self.absent,
            Value::Cleared => self.zero || self.absent,
            Value::Present => self.zero || !self.marks.is_empty(),
        }
    }
}

/// The life of a value, as far as calls show it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// The value.
    pub value: Value,
    /// Time of the invocation of the value's maker.
    pub begun: u64,
    /// Time from which the value was known to be present.
    pub known: u64,
    /// Time at which the value was last current.
    pub current: u64,
    /// Latest time at which the value became durable.
    pub durable: u64,
    /// If the value was ever there, it was there by then.
    deadline: u64,
    /// Whether the value is one of the initial values.
    pub is_initial: bool,
    /// The maker of the value, or the look itself.
    pub call: Option<CallId>,
    /// The last call that saw the value.
    pub last_seen_by: Option<CallId>,
}

impl Life {
    /// Returns the life of a value that only this call shows.
    const fn of(point: &Point) -> Self {
        Self {
            value: point.value,
            begun: point.invoked,
            known: if point.known < point.over {
                point.known
            } else {
                point.over
            },
            current: point.invoked,
            durable: point.durable,
            deadline: point.deadline,
            is_initial: false,
            call: point.call,
            last_seen_by: point.call,
        }
    }

    /// Returns the life of an initial value that no call has seen yet.
    const fn initial(value: Value, initial: &Initial) -> Self {
        Self {
            value,
            begun: initial.at,
            known: initial.at,
            current: initial.at,
            durable: initial.at,
            deadline: u64::MAX,
            is_initial: true,
            call: None,
            last_seen_by: None,
        }
    }

    /// Returns this life, extended with a look that saw the value.
    fn seen(mut self, look: &Point) -> Self {
        self.known = self.known.min(look.over).min(self.deadline);
        if look.invoked > self.current {
            self.current = look.invoked;
            self.last_seen_by = look.call;
        }
        self
    }

    /// Returns whether the two lives are impossible together.
    fn clashes(&self, other: &Self) -> bool {
        self.known < other.current && other.known < self.current && self.value.excludes(other.value)
    }
}

/// The reason why the observations are impossible.
#[derive(Debug)]
pub(super) struct Fault {
    /// The reason in words.
    pub why: &'static str,
    /// The calls that show the fault. `None` stands for the final content.
    pub calls: Vec<Option<CallId>>,
}

/// The observations of one byte in one epoch.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Values that are made once, with all sights of them.
    pub marks: Vec<Life>,
    /// Changes to values that may be made more than once.
    changes: Vec<Life>,
    /// Looks at such values.
    looks: Vec<Life>,
}

impl Lives {
    /// Judges the changes and looks of one epoch.
    ///
    /// # Errors Returns a fault when no order of the changes and looks is possible.
    pub fn judge(
        &mut self,
        initial: &Initial,
        changes: &[Point],
        looks: &[Point],
    ) -> Result<(), Fault> {
        self.collect(initial, changes, looks)?;
        self.compare()?;
        for look in looks {
            if !matches!(look.value, Value::Mark(_)) && !self.explains(initial, look) {
                return Err(Fault {
                    why: "no change explains the last observation",
                    calls: changes
                        .iter()
                        .map(|change| change.call)
                        .chain([look.call])
                        .collect(),
                });
            }
        }
        Ok(())
    }

    fn collect(
        &mut self,
        initial: &Initial,
        changes: &[Point],
        looks: &[Point],
    ) -> Result<(), Fault> {
        self.marks.clear();
        self.changes.clear();
        self.looks.clear();
        for change in changes {
            let is_mark = matches!(change.value, Value::Mark(_));
            let lives = if is_mark {
                &mut self.marks
            } else {
                &mut self.changes
            };
            lives.push(Life::of(change));
        }
        for look in looks {
            match look.value {
                Value::Mark(_) => self.note_sight(initial, look)?,
                _ => self.looks.push(Life::of(look)),
            }
        }
        Ok(())
    }

    /// Notes that a look saw the bytes of a write.
    fn note_sight(&mut self, initial: &Initial, look: &Point) -> Result<(), Fault> {
        let fault = |why, call| {
            Err(Fault {
                why,
                calls: vec![call, look.call],
            })
        };
        let known = self.marks.iter_mut().find(|life| life.value == look.value);
        match known {
            Some(life) if life.begun > look.over => {
                fault("bytes were seen before they were written", life.call)
            }
            Some(life) => {
                *life = life.seen(look);
                Ok(())
            }
            None if initial.allows(look.value) => {
                self.marks
                    .push(Life::initial(look.value, initial).seen(look));
                Ok(())
            }
            None => fault(
                "bytes were seen that no write put here, or that were gone before the last loss",
                None,
            ),
        }
    }

    /// Compares all values with the values that are made once.
    fn compare(&self) -> Result<(), Fault> {
        for (index, life) in self.marks.iter().enumerate() {
            let other_marks = self.marks.iter().skip(index + 1);
            let mut others = other_marks.chain(&self.changes).chain(&self.looks);
            if let Some(other) = others.find(|other| life.clashes(other)) {
                return Err(Fault {
                    why: "each of two values was there before the other was gone",
                    calls: vec![life.call, life.last_seen_by, other.call, other.last_seen_by],
                });
            }
        }
        Ok(())
    }

    /// Returns whether a look at a value that may be made more than once has a possible maker.
    fn explains(&self, initial: &Initial, look: &Point) -> bool {
        let makes = |made: Value| match look.value {
            Value::Zero => matches!(made, Value::Zero | Value::Cleared),
            Value::Absent => made == Value::Absent,
            _ => matches!(made, Value::Zero | Value::Present),
        };
        let at_start = initial.allows(look.value);
        let initial_life = at_start.then(|| Life::initial(look.value, initial));
        let changes = self
            .changes
            .iter()
            .copied()
            .filter(|life| makes(life.value));
        let marks = self.marks.iter().copied();
        let marks = marks.filter(|_| look.value == Value::Present);
        initial_life
            .into_iter()
            .chain(changes)
            .chain(marks)
            .any(|maker| self.fits(maker, look, look.value))
            || look.value == Value::Zero && self.grown_over(initial, look)
    }

    /// Returns whether `value`, made by `maker`, can have lasted until `look` saw it.
    fn fits(&self, maker: Life, look: &Point, value: Value) -> bool {
        let life = Life { value, ..maker }.seen(look);
        maker.begun <= look.over
            && !self.marks.iter().any(|other| life.clashes(other))
            && !self.changes.iter().any(|other| life.clashes(other))
            && !self.looks.iter().any(|other| life.clashes(other))
    }

    /// Returns whether zeros can come from growth of the file: the file ended before this byte, and
    /// has grown since.
    fn grown_over(&self, initial: &Initial, look: &Point) -> bool {
        let ends = self.changes.iter().copied();
        let ends = ends.filter(|life| life.value == Value::Absent && life.begun <= look.over);
        let at_start = initial
            .absent
            .then(|| Life::initial(Value::Absent, initial));
        let mut ends = at_start.into_iter().chain(ends).filter(|end| {
            // From that time until the look, no write can have put bytes at this offset.
            let life = Life {
                value: Value::Zero,
                ..*end
            }
            .seen(look);
            !self.marks.iter().any(|mark| life.clashes(mark))
        });
        ends.any(|end| {
            let grows = self
                .changes
                .iter()
                .filter(|life| life.value == Value::Present);
            let torn = self.marks.iter().filter(|life| life.known == u64::MAX);
            grows
                .chain(torn)
                .any(|life| life.known >= end.begun && self.fits(*life, look, Value::Zero))
        })
    }

    /// Returns the possible values after the loss that ends this epoch.
    pub fn left_by(&self, loss: Loss, initial: &Initial) -> Initial {
        let at = loss.at;
        let settled = initial.is_lasting && self.marks.iter().any(|life| life.is_initial);
        let old = initial.marks.iter().map(|mark| Value::Mark(*mark));
        let old = old.chain(initial.zero.then_some(Value::Zero));
        let old = old.chain(initial.absent.then_some(Value::Absent));
        let old = old.map(|value| Life::initial(value, initial));
        let old = old.filter(|_| !settled);
        let all = || self.marks.iter().chain(&self.changes);
        let candidates: Vec<_> = old
            .chain(all().copied())
            .filter(|life| !self.is_superseded(life, at))
            .collect();
        Initial {
            at,
            marks: marks_of(&candidates),
            zero: candidates
                .iter()
                .any(|life| matches!(life.value, Value::Zero | Value::Cleared))
                || self.may_have_grown(initial, at),
            absent: candidates.iter().any(|life| life.value == Value::Absent),
            is_lasting: loss.cause == Cause::Power,
        }
    }

    /// Returns whether a durable value came after this life.
    fn is_superseded(&self, life: &Life, at: u64) -> bool {
        let lasting = self.marks.iter().chain(&self.changes);
        lasting
            .filter(|later| later.durable <= at)
            .any(|later| life.known < later.current && later.value.excludes(life.value))
    }

    /// Returns whether the file may have ended before this byte, at a time that no durable write
    /// undid. If so, the loss may have kept a length beyond the byte without the data.
    fn may_have_grown(&self, initial: &Initial, at: u64) -> bool {
        let ends = self
            .changes
            .iter()
            .filter(|life| life.value == Value::Absent);
        let at_start = initial.absent.then_some(initial.at);
        let mut known = ends.map(|life| life.known).chain(at_start);
        known.any(|known| {
            let mut lasting = self.marks.iter().filter(|mark| mark.durable <= at);
            !lasting.any(|mark| known < mark.current)
        })
    }
}

fn marks_of(lives: &[Life]) -> Vec<Mark> {
    let marks = lives.iter().filter_map(|life| match life.value {
        Value::Mark(mark) => Some(mark),
        _ => None,
    });
    marks.collect()
}
