//! The findings of a check, for people.

use std::fmt;

use crate::history::{CallId, History};

/// An invariant that does not hold, and the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    invariant: &'static str,
    what: String,
    evidence: Vec<String>,
}

impl Violation {
    /// Returns a violation of `invariant`. `what` describes the violation in a sentence.
    pub(super) fn new(invariant: &'static str, what: String) -> Self {
        Self {
            invariant,
            what,
            evidence: Vec::new(),
        }
    }

    /// Adds a line of evidence.
    pub(super) fn line(mut self, line: String) -> Self {
        self.evidence.push(line);
        self
    }

    /// Adds calls as evidence, in their order, each once.
    pub(super) fn calls(
        mut self,
        history: &History,
        calls: impl IntoIterator<Item = CallId>,
    ) -> Self {
        let mut calls: Vec<_> = calls.into_iter().collect();
        calls.sort_unstable();
        calls.dedup();
        self.evidence
            .extend(calls.into_iter().map(|id| history.calls().show(id)));
        self
    }

    /// Returns the name of the invariant, which is the name of its file.
    pub const fn invariant(&self) -> &'static str {
        self.invariant
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)?;
        self.evidence
            .iter()
            .try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl std::error::Error for Violation {}
