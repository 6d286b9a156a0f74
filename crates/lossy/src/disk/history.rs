//! All states of one thing on the disk (a page, a length) since its last state on stable storage. A power
//! loss may leave any of them.
//!
//! Invariants: the first state is on stable storage. There are at most [`STATES_MAX`] states. Beyond that
//! limit every second state is forgotten, which removes choices from a power loss but never adds one. The
//! owner of the thing holds the present state.

use super::loss::Survivors;
use crate::random::Random;

/// Most remembered states of one thing.
const STATES_MAX: usize = 16;

/// A state, and the number of the change that made the state.
#[derive(Clone, Debug)]
struct State<T> {
    made_by: u64,
    state: T,
}

/// The earlier states of a thing.
#[derive(Clone, Debug)]
pub(super) struct History<T> {
    earlier: Vec<State<T>>,
    /// The change that made the present state.
    made_by: u64,
    /// Whether a sync will put the present state on stable storage. False after a failed sync: Linux then
    /// treats the page as clean.
    dirty: bool,
}

impl<T: Clone> History<T> {
    /// The history of a thing that leaves its state on stable storage by a change.
    pub(super) fn new(synced: T, change: u64) -> Self {
        let synced = State {
            made_by: 0,
            state: synced,
        };
        Self {
            earlier: vec![synced],
            made_by: change,
            dirty: true,
        }
    }

    /// The thing leaves another state by a change.
    pub(super) fn add(&mut self, left: T, change: u64) {
        let left = State {
            made_by: self.made_by,
            state: left,
        };
        self.earlier.push(left);
        self.made_by = change;
        self.dirty = true;
        if self.earlier.len() > STATES_MAX {
            let mut number = 0;
            self.earlier.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
    }

    /// Whether a sync would put the present state on stable storage.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// A sync has failed.
    pub(super) fn give_up(&mut self) {
        self.dirty = false;
    }

    /// The state on stable storage.
    pub(super) fn synced(&self) -> Option<&T> {
        self.earlier.first().map(|synced| &synced.state)
    }

    /// All states but the present one, for damage.
    pub(super) fn each_earlier(&mut self) -> impl Iterator<Item = &mut T> {
        self.earlier.iter_mut().map(|earlier| &mut earlier.state)
    }

    /// Returns the state that a power loss leaves. `present` is the present state.
    pub(super) fn survivor(&self, present: T, survivors: Survivors, random: &mut Random) -> T {
        let by_number = |limit: u64| {
            let in_time = self.earlier.iter().rev().find(|old| old.made_by <= limit);
            in_time.map(|old| old.state.clone())
        };
        let found = match survivors {
            Survivors::Nothing => self.synced().cloned(),
            Survivors::Everything | Survivors::Until(_) if self.is_kept_by(survivors) => None,
            Survivors::Everything => by_number(u64::MAX),
            Survivors::Until(limit) => by_number(limit),
            Survivors::Mixed { percent } if random.percent(percent.into()) => None,
            Survivors::Mixed { .. } => self.any(random),
        };
        found.unwrap_or(present)
    }

    /// Whether survivors that are chosen by number keep the present state.
    fn is_kept_by(&self, survivors: Survivors) -> bool {
        self.dirty && survivors.reach(self.made_by)
    }

    /// Returns a random state; `None` is the present state.
    fn any(&self, random: &mut Random) -> Option<T> {
        let number = random.below(self.earlier.len() as u64 + 1);
        let earlier = self.earlier.get(usize::try_from(number).ok()?)?;
        Some(earlier.state.clone())
    }

    /// The number of the first change that is not on stable storage.
    pub(super) fn first_change(&self) -> u64 {
        self.earlier.get(1).map_or(self.made_by, |old| old.made_by)
    }
}
