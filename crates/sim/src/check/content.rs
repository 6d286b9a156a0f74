//! Judges the content of files, byte by byte and over all bytes of a file.
//!
//! A file is cut at each offset where a call that touched it began or ended, and where a reader saw
//! a change from one write to another. Time is cut at losses. [`register`] judges
//! each piece. [`order`] judges the pieces of one file and epoch together.
//!
//! A loss may leave operations under way (a failed flush). A change that spans such a loss may
//! belong to either side. A look that spans it is not checked.

mod order;
mod register;

use lockstep_types::Ino;

use order::Order;
use register::{Fault, Initial, Life, Lives, Point};

use super::dump::Dump;
use super::timeline::{self, File, Touch, Value};
use super::violation::Violation;
use crate::history::loss::Loss;
use crate::history::{CallId, History};
use crate::op::Mark;

/// Judges all observations of all files. With `last`, judges their final content too.
pub(super) fn check(
    invariant: &'static str,
    history: &History,
    last: Option<&Dump>,
) -> Result<(), Violation> {
    let losses = history.nodes().losses();
    for (ino, mut file) in timeline::files(history) {
        let final_look = last.and_then(|last| timeline::last_look(last, ino));
        file.looks.extend(final_look);
        if let Err((from, to, fault)) = judge_file(&file, &losses) {
            let what = format!("file #{ino}, bytes [{from}, {to}): {}", fault.why);
            return Err(violation(invariant, history, what, &fault, ino, last));
        }
    }
    Ok(())
}

fn violation(
    invariant: &'static str,
    history: &History,
    what: String,
    fault: &Fault,
    ino: Ino,
    last: Option<&Dump>,
) -> Violation {
    let calls = fault.calls.iter().flatten().copied();
    let violation = Violation::new(invariant, what).calls(history, calls);
    match last.and_then(|last| last.bytes(ino)) {
        Some(bytes) if fault.calls.contains(&None) => {
            let answer = crate::history::Answer::read(ino, 0, bytes);
            violation.line(format!("final content: {answer}"))
        }
        _ => violation,
    }
}

/// Judges one file. A fault is returned with the range of bytes that shows it.
fn judge_file(file: &File, losses: &[Loss]) -> Result<(), (u64, u64, Fault)> {
    let cuts = cuts(file);
    let mut initials = vec![Initial::nothing(); cuts.len()];
    for number in 0..=losses.len() {
        let epoch = Epoch::new(file, losses, number);
        epoch.judge(&cuts, &mut initials)?;
    }
    Ok(())
}

/// Returns the offsets at which the file is cut. Each segment runs from one offset to the next. The
/// last segment has no end.
fn cuts(file: &File) -> Vec<u64> {
    let touches = file.changes.iter().chain(&file.looks);
    let ranges = touches.flat_map(|touch| &touch.pieces);
    let mut cuts: Vec<_> = ranges.flat_map(|piece| [piece.0, piece.1]).collect();
    cuts.push(0);
    cuts.retain(|cut| *cut != u64::MAX);
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// A touch as seen in one epoch.
struct Part<'a> {
    touch: &'a Touch,
    invoked: u64,
    over: u64,
    known: u64,
    /// The marks of the returned writes of this epoch that the look saw.
    saw: Vec<Mark>,
}

impl Part<'_> {
    fn point(&self, offset: u64) -> Option<Point> {
        Some(Point {
            value: self.touch.at(offset)?,
            invoked: self.invoked,
            over: self.over,
            known: self.known,
            durable: self.touch.durable,
            deadline: self.touch.deadline,
            call: self.touch.call,
        })
    }

    /// Returns the mark, if the part is a write that returned within this epoch.
    fn whole_write(&self) -> Option<Mark> {
        let mark = |piece: &(u64, u64, Value)| match piece.2 {
            Value::Mark(mark) => Some(mark),
            _ => None,
        };
        let whole = self.over != u64::MAX;
        whole.then(|| self.touch.pieces.iter().find_map(mark))?
    }
}

/// The touches of a file between two losses.
struct Epoch<'a> {
    changes: Vec<Part<'a>>,
    looks: Vec<Part<'a>>,
    /// The loss that ends the epoch.
    end: Option<Loss>,
}

impl<'a> Epoch<'a> {
    fn new(file: &'a File, losses: &[Loss], number: usize) -> Self {
        let (before, after) = losses.split_at(number.min(losses.len()));
        let start = before.last().map_or(0, |loss| loss.at);
        let next = after.first().copied();
        let end = next.map_or(u64::MAX, |loss| loss.at);
        let last_ended = before.iter().rev().find(|loss| loss.ends_open());
        let reaches_in = |touch: &Touch| {
            touch.invoked >= start
                || touch.over > start && last_ended.is_none_or(|loss| touch.invoked >= loss.at)
        };
        let changes = file.changes.iter();
        let changes = changes.filter(|touch| touch.invoked < end && reaches_in(touch));
        let looks = file.looks.iter();
        let looks = looks.filter(|touch| touch.invoked >= start && touch.over <= end);
        let part = |touch: &'a Touch| {
            let inside = touch.invoked >= start && touch.over <= end;
            let over = if inside { touch.over } else { u64::MAX };
            Part {
                touch,
                invoked: touch.invoked.max(start),
                over,
                known: over,
                saw: Vec::new(),
            }
        };
        let mut epoch = Self {
            changes: changes.map(part).collect(),
            looks: looks.map(part).collect(),
            end: next,
        };
        epoch.note_sights();
        epoch
    }

    /// Notes the whole writes that each look saw. Also notes the time from which each write is
    /// known to have acted.
    fn note_sights(&mut self) {
        let mut writes: Vec<Option<&mut Part<'a>>> = Vec::new();
        writes.resize_with(256, || None);
        for part in &mut self.changes {
            if let Some(mark) = part.whole_write()
                && let Some(slot) = writes.get_mut(usize::from(mark.get()))
            {
                *slot = Some(part);
            }
        }
        for look in &mut self.looks {
            for (_, _, value) in &look.touch.pieces {
                let Value::Mark(mark) = value else { continue };
                let slot = writes.get_mut(usize::from(mark.get()));
                if let Some(write) = slot.and_then(Option::as_mut) {
                    write.known = write.known.min(look.over);
                    look.saw.push(*mark);
                }
            }
        }
    }

    /// Judges all segments. Replaces the possible initial values of each segment with those after
    /// the loss at the end.
    fn judge(&self, cuts: &[u64], initials: &mut [Initial]) -> Result<(), (u64, u64, Fault)> {
        let mut order = Order::new();
        let mut lives = Lives::default();
        let (mut changes, mut looks) = (Vec::new(), Vec::new());
        let ends = cuts.iter().skip(1).chain([&u64::MAX]);
        for ((from, to), initial) in cuts.iter().zip(ends).zip(initials) {
            changes.clear();
            changes.extend(self.changes.iter().filter_map(|part| part.point(*from)));
            looks.clear();
            looks.extend(self.looks.iter().filter_map(|part| part.point(*from)));
            let checked = lives.judge(initial, &changes, &looks);
            checked.map_err(|fault| (*from, *to, fault))?;
            note_order(&mut order, &lives.marks);
            let order_noted = self.note_halves(&mut order, *from, &lives.marks);
            order_noted.map_err(|fault| (*from, *to, fault))?;
            if let Some(loss) = self.end {
                *initial = lives.left_by(loss, initial);
            }
        }
        self.judge_order(order)
            .map_err(|fault| (0, u64::MAX, fault))
    }

    /// Notes orders between the writes that one look saw. If a reader saw one write elsewhere, and
    /// at this offset another write that the first write covers too, the other write came later.
    fn note_halves(&self, order: &mut Order, offset: u64, marks: &[Life]) -> Result<(), Fault> {
        for look in self.looks.iter().filter(|look| look.saw.len() > 1) {
            let Some(Value::Mark(here)) = look.touch.at(offset) else {
                continue;
            };
            let is_here = |life: &&Life| life.value == Value::Mark(here);
            let Some(life) = marks.iter().find(is_here) else {
                continue;
            };
            for other in look.saw.iter().filter(|other| **other != here) {
                let covers = |life: &&Life| life.value == Value::Mark(*other);
                match marks.iter().find(covers) {
                    Some(covering) if life.is_initial => {
                        return Err(Fault {
                            why: "half of a write was seen",
                            calls: vec![covering.call, look.touch.call],
                        });
                    }
                    Some(_) if look.saw.contains(&here) => order.add(*other, here),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn judge_order(&self, order: Order) -> Result<(), Fault> {
        let whole = || {
            self.changes
                .iter()
                .filter(|part| part.whole_write().is_some())
        };
        let marks: Vec<_> = whole().filter_map(Part::whole_write).collect();
        let Some(circle) = order.circle(&marks) else {
            return Ok(());
        };
        let in_circle = |part: &&Part<'_>| part.whole_write().is_some_and(|m| circle.contains(&m));
        let writes = whole().filter(in_circle).map(|part| part.touch.call);
        let looks = self.looks.iter();
        let looks = looks.filter(|look| look.saw.iter().any(|mark| circle.contains(mark)));
        Err(Fault {
            why: "these writes came before each other, and none of them was torn by a crash",
            calls: writes
                .chain(looks.map(|look| look.touch.call))
                .collect::<Vec<Option<CallId>>>(),
        })
    }
}

/// Notes the order of whole writes that one byte proves.
fn note_order(order: &mut Order, marks: &[Life]) {
    for first in marks {
        for second in marks {
            if let (Value::Mark(one), Value::Mark(two)) = (first.value, second.value)
                && one != two
                && first.known < second.current
            {
                order.add(one, two);
            }
        }
    }
}
