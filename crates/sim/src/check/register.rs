//! The value of one byte over time: whether what was seen of it can have been.
//!
//! The bytes of a segment were touched by the same calls and seen with the same values, so one stands
//! for all. Its values follow each other; each is *known* to be there by the first return of a call
//! that made or saw it, and is still *current* at the last invocation of a call that made or saw it.
//! Between the making of a value and the last sight of it nothing else is there. Hence the one rule:
//!
//! > Of two values that exclude each other, A and B, one is over before the other begins. If A was
//! > known before B was last current, A came first; if also B was known before A was last current,
//! > B came first: nothing can have brought both.
//!
//! This holds for a mark with all that saw it (made once, so its sights belong together), and for a
//! single change or look whose value may have been made more than once (zeros, the end of the file).
//! A look at such a value needs one maker for which the rule holds with all others.
//!
//! A change that may or may not have happened is never known unless seen, and so accuses nobody.
//!
//! After a loss (see `history::Loss`) any value may be there that was there before, or was on its
//! way, unless something durable came after it; where the file ended it may also have zeros, a
//! length having lasted without the data. Which of them it is shows at the first look; from then on it
//! is one value, and after a loss of power one that lasts.

use super::timeline::Value;
use crate::history::{CallId, Cause, Loss};
use crate::workload::Mark;

/// A change of the byte, or a look at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// What it made or saw.
    pub value: Value,
    /// When it was invoked.
    pub invoked: u64,
    /// When it was over; never, if it may not have happened.
    pub over: u64,
    /// When its effect was known, anywhere in the file, if it acts at once as a whole: else `over`.
    pub known: u64,
    /// When at the latest it was durable.
    pub durable: u64,
    /// The call; `None` for the final content.
    pub call: Option<CallId>,
}

/// What may be there when an epoch begins: at the start, or after a loss.
#[derive(Clone, Debug)]
pub(super) struct Initial {
    /// When.
    pub at: u64,
    /// Writes whose bytes may be there.
    pub marks: Vec<Mark>,
    /// Whether zeros may.
    pub zero: bool,
    /// Whether nothing may: the file may end before.
    pub absent: bool,
    /// Whether it is on the disk, whichever it is.
    pub is_lasting: bool,
}

impl Initial {
    /// A file that was never touched.
    pub const fn nothing() -> Self {
        Self {
            at: 0,
            marks: Vec::new(),
            zero: false,
            absent: true,
            is_lasting: true,
        }
    }

    /// Whether `value` may be there.
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

/// The life of a value, as far as it shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// The value.
    pub value: Value,
    /// When its maker was invoked.
    pub begun: u64,
    /// When it was known to be there.
    pub known: u64,
    /// When it was last current.
    pub current: u64,
    /// When at the latest it was durable.
    pub durable: u64,
    /// Whether it is one of the initial values.
    pub is_initial: bool,
    /// Its maker, or the look itself.
    pub call: Option<CallId>,
    /// Who last saw it.
    pub last_seen_by: Option<CallId>,
}

impl Life {
    /// The life of a value that only this call shows.
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
            is_initial: false,
            call: point.call,
            last_seen_by: point.call,
        }
    }

    /// The life of an initial value that nobody has seen yet.
    const fn initial(value: Value, initial: &Initial) -> Self {
        Self {
            value,
            begun: initial.at,
            known: initial.at,
            current: initial.at,
            durable: initial.at,
            is_initial: true,
            call: None,
            last_seen_by: None,
        }
    }

    /// This life, with a look that saw the value.
    const fn seen(mut self, look: &Point) -> Self {
        if look.over < self.known {
            self.known = look.over;
        }
        if look.invoked > self.current {
            self.current = look.invoked;
            self.last_seen_by = look.call;
        }
        self
    }

    /// Whether the two cannot both have been.
    fn clashes(&self, other: &Self) -> bool {
        self.known < other.current && other.known < self.current && self.value.excludes(other.value)
    }
}

/// Why what was seen cannot have been.
#[derive(Debug)]
pub(super) struct Fault {
    /// In words.
    pub why: &'static str,
    /// Who shows it; `None` stands for the final content.
    pub calls: Vec<Option<CallId>>,
}

/// What one epoch shows of one byte.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Values that are made once, with all that saw them.
    pub marks: Vec<Life>,
    /// Changes to values that may be made more than once.
    changes: Vec<Life>,
    /// Looks at such values.
    looks: Vec<Life>,
}

impl Lives {
    /// Judges the changes and looks of one epoch.
    ///
    /// # Errors
    /// When no order of them can have been.
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
                    why: "nothing explains what was seen here last",
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

    /// Notes that the bytes of a write were seen.
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

    /// Compares all values with those that are made once.
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

    /// Whether a look at a value that may be made more than once has a possible maker.
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

    /// Whether `value`, made by `maker`, can have lasted until `look` saw it.
    fn fits(&self, maker: Life, look: &Point, value: Value) -> bool {
        let life = Life { value, ..maker }.seen(look);
        maker.begun <= look.over
            && !self.marks.iter().any(|other| life.clashes(other))
            && !self.changes.iter().any(|other| life.clashes(other))
            && !self.looks.iter().any(|other| life.clashes(other))
    }

    /// Whether zeros can come from the file having ended before this byte and having grown since.
    fn grown_over(&self, initial: &Initial, look: &Point) -> bool {
        let ends = self.changes.iter().copied();
        let ends = ends.filter(|life| life.value == Value::Absent && life.begun <= look.over);
        let at_start = initial
            .absent
            .then(|| Life::initial(Value::Absent, initial));
        let mut ends = at_start.into_iter().chain(ends).filter(|end| {
            // From then on until the look no write can have put bytes here.
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

    /// What may be there after the loss that ends this epoch.
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

    /// Whether something durable came after.
    fn is_superseded(&self, life: &Life, at: u64) -> bool {
        let lasting = self.marks.iter().chain(&self.changes);
        lasting
            .filter(|later| later.durable <= at)
            .any(|later| life.known < later.current && later.value.excludes(life.value))
    }

    /// Whether the file may have ended before this byte at a time that no durable write undid: the
    /// loss may then have kept a length beyond it without the data.
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
