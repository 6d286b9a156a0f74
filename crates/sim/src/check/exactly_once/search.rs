//! The search for an order of steps that explains the observations, in the manner of Wing and Gong.
//! It is a depth-first search over the steps that may come next. It never examines the same
//! situation twice.
//!
//! A step may come next if no other certain unplaced step was over before it began. To keep the
//! tree small, the search makes as few choices as possible:
//!
//! - A step that can change nothing (a look, a refusal, a change of content) is placed as soon as
//!   the model agrees with it. Such a step does not restrict any other step.
//! - A step that has nothing in common with any other step that may still come before it is also
//!   placed at once.
//! - A step that may not have happened is placed only when a step may come next with which it has
//!   something in common. If it were placed earlier, no step would show a difference.
//!
//! Before a loss, the search chooses one moment at which the log is cut. The cut may be at any
//! point where every step that must be durable is placed. The steps after the cut must still
//! explain the observations until the loss. Then the model returns to the cut. A step that may not
//! have happened, and was placed behind the cut, may be placed again. It may as well have happened
//! before, without an observation. Until the cut is chosen, the order of all steps is a choice,
//! because the order decides which steps may be lost.
//!
//! A step that may not have happened, and that must be over when a program is let in, is placed at that moment at the latest,
//! or never.
//!
//! Invariant: a situation consists of the placed steps, the state of the model, and the state of
//! the model at the cut. The possible continuations depend on nothing else, but for the uncertain steps that a loss has
//! removed.

use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, DefaultHasher};

use lockstep_types::{Attr, Errno, Ino, MetaRequest, NodeKind};

use super::ending;
use super::namespace::{Namespace, mix};
use super::situation::{Choice, Cut, Fork, Status, Stuck, Verdict};
use super::step::{Expected, Sight, Step, What};
use super::touches::Touches;
use crate::check::dump::Dump;
use crate::history::CallId;
use crate::history::loss::Loss;

/// Numbers of uncertain steps that may be placed, one search after the other. Most histories need
/// few uncertain steps. A search finds such an order sooner without the other uncertain steps.
const LIMITS: [usize; 9] = [0, 1, 2, 3, 5, 8, 13, 21, usize::MAX];

/// The work of a search, and its limit.
#[derive(Debug, Default)]
struct Effort {
    /// Number of times that a step was tried or compared.
    work: Cell<u64>,
    /// Number of uncertain steps that may be placed.
    limit: usize,
    /// Whether the limit excluded an uncertain step.
    was_limited: bool,
}

/// A search.
pub(super) struct Search<'a> {
    steps: Vec<Step<'a>>,
    /// Steps that may not have happened.
    uncertain: Vec<usize>,
    losses: Vec<Loss>,
    last: &'a Dump,
    model: Namespace,
    is_placed: Vec<bool>,
    /// The steps placed (`true`) and removed again by a loss (`false`), oldest first.
    order: Vec<(usize, bool)>,
    status: Status,
    met: HashSet<(u64, u64), BuildHasherDefault<DefaultHasher>>,
    stuck: Stuck,
    /// An inode that differs from the store at the end, when all steps are placed.
    differing: Option<Ino>,
    effort: Effort,
}

impl<'a> Search<'a> {
    /// Returns a search for an order of `steps`, sorted by invocation, that ends in `last`.
    pub fn new(steps: Vec<Step<'a>>, last: &'a Dump) -> Self {
        let certain = steps.iter().filter(|step| step.is_certain).count();
        let uncertain = steps
            .iter()
            .enumerate()
            .filter(|(_, step)| !step.is_certain);
        let losses = steps.iter().filter_map(|step| match step.what {
            What::Loss(loss) => Some(loss),
            _ => None,
        });
        let model = Namespace::new();
        let status = Status {
            placed: 0,
            left: certain,
            first: 0,
            digest: 0,
            cut: None,
            losses: 0,
            uncertain: 0,
            settled: 0,
            undurable: 0,
            moment: model.now(),
        };
        let mut search = Self {
            uncertain: uncertain.map(|(index, _)| index).collect(),
            losses: losses.collect(),
            is_placed: vec![false; steps.len()],
            steps,
            last,
            model,
            order: Vec::new(),
            status,
            met: HashSet::default(),
            stuck: Stuck {
                left: usize::MAX,
                ..Stuck::default()
            },
            differing: None,
            effort: Effort::default(),
        };
        search.status.undurable = search.count_undurable();
        search
    }

    /// Searches. Tries and compares steps at most about `bound` times.
    pub fn run(&mut self, bound: u64) -> Verdict {
        let start = self.status;
        for limit in LIMITS {
            self.effort.limit = limit;
            self.effort.was_limited = false;
            self.met.clear();
            let verdict = self.run_limited(bound);
            let is_final = !matches!(verdict, Verdict::Unexplained(_)) || !self.effort.was_limited;
            if is_final {
                return verdict;
            }
            self.back_to(start);
        }
        Verdict::Undecided
    }

    fn run_limited(&mut self, bound: u64) -> Verdict {
        let mut forks: Vec<Fork> = Vec::new();
        loop {
            self.place_all_that_need_no_choice();
            if self.is_explained() {
                return Verdict::Explained;
            }
            if self.effort.work.get() > bound {
                return Verdict::Undecided;
            }
            let choices = self.choices();
            forks.push(Fork {
                status: self.status,
                choices,
                next: 0,
            });
            if !self.backtrack(&mut forks) {
                return Verdict::Unexplained(self.stuck.clone());
            }
        }
    }

    /// Takes the next untried choice of the last fork that has one.
    fn backtrack(&mut self, forks: &mut Vec<Fork>) -> bool {
        while let Some(fork) = forks.last_mut() {
            self.back_to(fork.status);
            match fork.choices.get(fork.next) {
                Some(choice) => {
                    fork.next += 1;
                    self.choose(*choice);
                    return true;
                }
                None => forks.pop(),
            };
        }
        false
    }

    fn back_to(&mut self, status: Status) {
        while self.order.len() > status.placed
            && let Some((index, was_placed)) = self.order.pop()
        {
            self.mark(index, !was_placed);
        }
        self.model.back_to(status.moment);
        self.status = status;
    }

    fn mark(&mut self, index: usize, is_placed: bool) {
        if let Some(mark) = self.is_placed.get_mut(index) {
            *mark = is_placed;
        }
    }

    /// Returns the certain steps that may come next.
    fn frontier(&self) -> Vec<usize> {
        let mut found = Vec::new();
        let mut first_over = u64::MAX;
        for (index, step) in self.steps.iter().enumerate().skip(self.status.first) {
            if step.invoked > first_over {
                break;
            }
            if step.is_certain && !self.is_placed(index) {
                found.push(index);
                first_over = first_over.min(step.over);
            }
        }
        found.retain(|index| self.step(*index).invoked <= first_over);
        found
    }

    fn is_placed(&self, index: usize) -> bool {
        self.is_placed.get(index).copied().unwrap_or(true)
    }

    fn step(&self, index: usize) -> Step<'a> {
        match self.steps.get(index) {
            Some(step) => *step,
            None => unreachable!("steps are named by their index"),
        }
    }

    /// Returns the uncertain steps that may come next and whose effect another step would show.
    fn uncertain_frontier(&self, frontier: &[usize]) -> Vec<usize> {
        let overs = frontier.iter().map(|index| self.step(*index).over);
        let first_over = overs.min().unwrap_or(u64::MAX);
        let may_come =
            |index: &usize| self.step(*index).invoked <= first_over && self.may_happen(*index);
        let waiting = self.uncertain.iter().copied().filter(may_come);
        let settled = self.settled_by(frontier);
        let (mut found, mut waiting): (Vec<_>, Vec<_>) =
            waiting.partition(|index| self.step(*index).over <= settled);
        let noticing = frontier.iter().chain(&found);
        let mut noticed: Vec<_> = noticing.map(|index| self.touches(*index)).collect();
        // At the end, the inode that differs from the store shows the effect.
        let at_end = self.differing.filter(|_| frontier.is_empty());
        noticed.extend(at_end.map(Touches::of_node));
        while let Some(by) = noticed.pop() {
            let (meeting, others): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|index| self.touches(*index).meet(&by));
            waiting = others;
            noticed.extend(meeting.iter().map(|index| self.touches(*index)));
            found.extend(meeting);
        }
        found
    }

    /// Returns whether an uncertain step may still be placed. A step that a loss has removed may as well have happened before the
    /// loss, without an observation.
    fn may_happen(&self, index: usize) -> bool {
        let is_in_time = || self.step(index).over > self.status.settled;
        let was_removed = || self.order.contains(&(index, false));
        !self.is_placed(index) && (is_in_time() || was_removed())
    }

    /// Returns the time up to which one of the steps that may come next settles the uncertain steps.
    fn settled_by(&self, frontier: &[usize]) -> u64 {
        let steps = frontier.iter().map(|index| self.step(*index));
        let settling = steps.filter(|step| matches!(step.what, What::Settled));
        settling.map(|step| step.over).max().unwrap_or(0)
    }

    fn touches(&self, index: usize) -> Touches<'a> {
        self.effort.work.set(self.effort.work.get() + 1);
        Touches::of(&self.model, &self.step(index).what)
    }

    /// Returns whether a step has nothing in common with any step that may still come before it.
    fn is_alone(&self, index: usize) -> bool {
        let step = self.step(index);
        if self.has_loss_to_come() && self.status.cut.is_none() {
            return false;
        }
        let later = self.steps.iter().enumerate().skip(self.status.first);
        let later = later.take_while(|(_, other)| other.invoked <= step.over);
        let certain = later.filter(|(_, other)| other.is_certain);
        let uncertain = self.uncertain.iter().copied();
        let uncertain = uncertain.filter(|other| self.step(*other).invoked <= step.over);
        let mut others = certain.map(|(other, _)| other).chain(uncertain);
        let own = self.touches(index);
        let hinders = |other| self.is_loss(other) || self.touches(other).meet(&own);
        !others.any(|other| other != index && !self.is_placed(other) && hinders(other))
    }

    fn is_loss(&self, index: usize) -> bool {
        matches!(self.step(index).what, What::Loss(_))
    }

    fn place_all_that_need_no_choice(&mut self) {
        loop {
            let mut progress = false;
            for index in self.frontier() {
                if self.needs_no_choice(index) && self.fits(index) {
                    self.place(index);
                    progress = true;
                }
            }
            if !progress {
                return;
            }
        }
    }

    fn needs_no_choice(&self, index: usize) -> bool {
        let step = self.step(index);
        match step.what {
            What::Loss(_) => false,
            What::Settled => {
                let mut uncertain = self.uncertain.iter().copied();
                let meets = |index| self.may_happen(index) && self.step(index).over <= step.over;
                !uncertain.any(meets)
            }
            _ => step.changes_nothing() || self.is_alone(index),
        }
    }

    /// Returns the choices to try in this situation. Returns none if the search met the situation
    /// before.
    fn choices(&mut self) -> Vec<Choice> {
        let cut = self.status.cut.map_or(0, |cut| mix(cut.digest) | 1);
        let counts = (self.status.losses << 32) | self.status.uncertain as u64;
        let held = self.model.digest() ^ cut.rotate_left(17) ^ mix(counts);
        if !self.met.insert((self.status.digest, held)) {
            return Vec::new();
        }
        let mut frontier = self.frontier();
        let mut uncertain = self.uncertain_frontier(&frontier);
        if self.status.uncertain >= self.effort.limit {
            self.effort.was_limited |= !uncertain.is_empty();
            uncertain.clear();
        }
        frontier.sort_by_key(|index| self.step(*index).over);
        let mut choices = Vec::new();
        for index in frontier.iter().copied().chain(uncertain) {
            let before = self.model.now();
            if !self.awaits_cut(index) && self.fits(index) {
                choices.push(Choice::Place(index));
            }
            self.model.back_to(before);
        }
        if choices.is_empty() {
            self.note_stuck(&frontier);
        }
        if self.may_cut() {
            choices.push(Choice::Cut);
        }
        choices
    }

    fn has_loss_to_come(&self) -> bool {
        usize::try_from(self.status.losses).is_ok_and(|done| done < self.losses.len())
    }

    fn may_cut(&self) -> bool {
        self.has_loss_to_come() && self.status.cut.is_none() && self.status.undurable == 0
    }

    /// Returns whether a step is known to come behind the next cut, and that cut is not chosen yet.
    fn awaits_cut(&self, index: usize) -> bool {
        let next = usize::try_from(self.status.losses).ok();
        let next = next.and_then(|next| self.losses.get(next));
        let lost_at = self.step(index).lost_at;
        self.status.cut.is_none() && lost_at.is_some() && lost_at == next.map(|loss| loss.at)
    }

    fn choose(&mut self, choice: Choice) {
        match choice {
            Choice::Cut => {
                self.status.cut = Some(Cut {
                    moment: self.model.now(),
                    digest: self.model.digest(),
                    placed: self.order.len(),
                });
            }
            Choice::Place(index) => {
                let fits = self.fits(index);
                debug_assert!(fits, "a step that fitted once fits again");
                self.place(index);
            }
        }
    }

    /// Notes that a step is placed. The model already has its effect.
    fn place(&mut self, index: usize) {
        let step = self.step(index);
        self.mark(index, true);
        self.order.push((index, true));
        if self.must_last(&step) {
            self.status.undurable -= 1;
        }
        self.status.left -= usize::from(step.is_certain);
        self.status.uncertain += usize::from(!step.is_certain);
        self.status.digest ^= mix(index as u64 + 1);
        match step.what {
            What::Loss(_) => self.lose(),
            What::Settled => self.status.settled = self.status.settled.max(step.over),
            _ => {}
        }
        while self
            .steps
            .get(self.status.first)
            .is_some_and(|step| !step.is_certain || self.is_placed(self.status.first))
        {
            self.status.first += 1;
        }
        self.status.moment = self.model.now();
        self.status.placed = self.order.len();
    }

    fn lose(&mut self) {
        if let Some(cut) = self.status.cut.take() {
            self.model.revert_to(cut.moment);
            self.free_uncertain(cut.placed);
        }
        self.status.losses += 1;
        self.status.undurable = self.count_undurable();
    }

    /// Removes the uncertain steps that were placed behind a cut.
    fn free_uncertain(&mut self, from: usize) {
        let behind: Vec<_> = self
            .order
            .iter()
            .skip(from)
            .map(|(index, _)| *index)
            .collect();
        for index in behind {
            if !self.step(index).is_certain {
                self.mark(index, false);
                self.order.push((index, false));
                self.status.digest ^= mix(index as u64 + 1);
                if self.step(index).over != u64::MAX {
                    self.status.digest ^= mix(!(index as u64));
                }
            }
        }
    }

    /// Returns whether the next loss must not undo a step.
    fn must_last(&self, step: &Step<'_>) -> bool {
        let next = usize::try_from(self.status.losses).ok();
        let next = next.and_then(|next| self.losses.get(next));
        next.is_some_and(|loss| {
            let lasts = step.is_certain && step.over <= loss.at && loss.at < step.seen_until;
            step.durable <= loss.at || lasts
        })
    }

    fn count_undurable(&self) -> usize {
        let steps = self.steps.iter().enumerate();
        steps
            .filter(|(index, step)| !self.is_placed(*index) && self.must_last(step))
            .count()
    }

    /// Returns whether all steps are placed and the model equals the store at the end.
    fn is_explained(&mut self) -> bool {
        if self.status.left > 0 {
            return false;
        }
        let Some((ino, difference)) = ending::difference(&self.model, self.last) else {
            return true;
        };
        self.differing = Some(ino);
        if self.stuck.left > 0 {
            self.stuck = Stuck {
                left: 0,
                calls: Vec::new(),
                notes: vec![difference],
            };
        }
        false
    }

    fn note_stuck(&mut self, frontier: &[usize]) {
        if self.status.left >= self.stuck.left {
            return;
        }
        let mut notes = Vec::new();
        for index in frontier {
            if let What::Change(request, _) = self.step(*index).what {
                let before = self.model.now();
                let result = self.model.apply(request).result;
                self.model.back_to(before);
                let call = self.step(*index).call.map_or(0, CallId::index);
                notes.push(format!("call {call} would have been answered {result:?}"));
            }
        }
        let calls = frontier.iter().filter_map(|index| self.step(*index).call);
        self.stuck = Stuck {
            left: self.status.left,
            calls: calls.collect(),
            notes,
        };
    }

    /// Returns whether a step fits at this point. If so, the model has its effect afterwards,
    /// except the effect of a loss.
    fn fits(&mut self, index: usize) -> bool {
        self.effort.work.set(self.effort.work.get() + 1);
        match self.step(index).what {
            What::Loss(_) | What::Settled => true,
            What::Sight(sight) => self.shows(sight),
            What::Change(request, expected) => {
                let before = self.model.now();
                let fits = self.answers(request, expected);
                if !fits {
                    self.model.back_to(before);
                }
                fits
            }
        }
    }

    /// Returns whether the model answers a change as expected.
    fn answers(&mut self, request: &MetaRequest, expected: Expected<'_>) -> bool {
        let before = self.model.now();
        let effect = self.model.apply(request);
        match expected {
            Expected::Success => effect.result.is_ok(),
            Expected::Attr(attr) => effect.result == Ok(Some(attr.ino)) && self.has(attr),
            Expected::Refusal(Errno::Stale) if effect.met_dead => {
                self.model.back_to(before);
                true
            }
            Expected::Refusal(errno) => effect.result == Err(errno),
            // It is useless to place a step that changes nothing.
            Expected::Anything => self.model.now() != before,
        }
    }

    /// Returns whether an inode has these attributes. The root's mode and owner are not in the
    /// model.
    fn has(&self, attr: &Attr) -> bool {
        self.model.node(attr.ino).is_some_and(|node| {
            let shown = (attr.mode, attr.uid, attr.gid);
            node.kind == attr.kind
                && node.nlink == attr.nlink
                && node.rdev == attr.rdev
                && (attr.ino == Ino::ROOT || (node.mode, node.uid, node.gid) == shown)
        })
    }

    fn is_dead(&self, ino: Ino) -> bool {
        self.model.node(ino).is_none_or(|node| node.nlink == 0)
    }

    /// Returns whether the model agrees with a sight.
    fn shows(&self, sight: Sight<'_>) -> bool {
        match sight {
            Sight::Entry(parent, name, found) => self.model.entry(parent, name) == found,
            Sight::Attr(attr) => self.has(attr),
            Sight::Entries(directory, entries) => {
                let mut seen: Vec<_> = entries
                    .iter()
                    .map(|entry| (&entry.name, entry.ino))
                    .collect();
                seen.sort_unstable();
                self.model.entries(directory).eq(seen)
            }
            Sight::Xattr(ino, name, Some(value)) => self.model.xattr(ino, name) == Some(value),
            Sight::Xattr(ino, name, None) => {
                self.model.xattr(ino, name).is_none() || self.is_dead(ino)
            }
            Sight::Target(ino, target) => self
                .model
                .node(ino)
                .is_some_and(|node| node.target == target),
            Sight::File(ino) => {
                let node = self.model.node(ino);
                node.is_some_and(|node| node.kind == NodeKind::File)
            }
            Sight::Gone(ino) => self.is_dead(ino),
        }
    }
}
