//! The pairs of state and event that a run of the simulator has reached in the product's code.
//!
//! Recording exists only with the feature `mutants`, which only the simulator enables. Without the feature,
//! [`record_transition`] does nothing. Each thread keeps the pairs that it has recorded.

use std::fmt::Debug;

#[cfg(feature = "mutants")]
thread_local! {
    static RECORDED: std::cell::RefCell<std::collections::BTreeSet<String>> =
        const { std::cell::RefCell::new(std::collections::BTreeSet::new()) };
}

/// Records that `event` occurred in `state`.
#[cfg(feature = "mutants")]
pub fn record_transition(event: impl Debug, state: impl Debug) {
    RECORDED.with_borrow_mut(|recorded| recorded.insert(transition(event, state)));
}

/// Records nothing.
#[cfg(not(feature = "mutants"))]
#[inline]
pub fn record_transition(_event: impl Debug, _state: impl Debug) {}

/// The recorded name of an event in a state.
#[cfg(feature = "mutants")]
pub fn transition(event: impl Debug, state: impl Debug) -> String {
    format!("{event:?} in {state:?}")
}

/// Takes all pairs that this thread has recorded since the last call.
#[cfg(feature = "mutants")]
pub fn take_transitions() -> std::collections::BTreeSet<String> {
    RECORDED.take()
}
