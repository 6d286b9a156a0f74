//! The situations of the search for an order of steps, and the results of the search. The file
//! holds data only.

use super::namespace::Moment;
use crate::history::CallId;

/// The situation in which the search placed the most steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Stuck {
    /// Number of certain steps that were not placed.
    pub left: usize,
    /// The calls that could have come next and did not fit.
    pub calls: Vec<CallId>,
    /// The misfits, in words.
    pub notes: Vec<String>,
}

/// The result of a search.
#[derive(Debug)]
pub(super) enum Verdict {
    /// There is an order.
    Explained,
    /// There is no order.
    Unexplained(Stuck),
    /// The search reached its bound without a result.
    Undecided,
}

/// A choice at a fork.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    /// Place this step.
    Place(usize),
    /// Cut the log.
    Cut,
}

/// The part of a situation that is cheap to copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    /// Length of the order.
    pub placed: usize,
    /// Number of certain steps not yet placed.
    pub left: usize,
    /// All steps before this index are placed, or uncertain.
    pub first: usize,
    /// Combined hash of the placed steps.
    pub digest: u64,
    /// The point at which the next loss cuts the log.
    pub cut: Option<Cut>,
    /// Number of losses placed.
    pub losses: u64,
    /// Number of uncertain steps that were placed.
    pub uncertain: usize,
    /// An uncertain step that was over by this time is not placed any more.
    pub settled: u64,
    /// Number of unplaced steps that the next loss must not undo.
    pub undurable: usize,
    /// The moment of the model.
    pub moment: Moment,
}

/// The point at which a loss cuts the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// The moment of the cut.
    pub moment: Moment,
    /// The model's digest at the cut.
    pub digest: u64,
    /// Length of the order at the cut.
    pub placed: usize,
}

/// A situation with several possible continuations.
pub(super) struct Fork {
    /// The situation.
    pub status: Status,
    /// The choices.
    pub choices: Vec<Choice>,
    /// Number of choices that were tried.
    pub next: usize,
}
