//! What the simulator counts in the real code: which pairs of state and event came.
//!
//! Exists only with the feature `deliberate-bugs`, which only the simulator asks for; without it
//! nothing is compiled. What came is kept by the thread it came on.

use std::fmt::Debug;

#[cfg(feature = "deliberate-bugs")]
thread_local! {
    static CAME: std::cell::RefCell<std::collections::BTreeSet<String>> =
        const { std::cell::RefCell::new(std::collections::BTreeSet::new()) };
}

/// An event came in a state.
#[cfg(feature = "deliberate-bugs")]
pub fn came(event: impl Debug, state: impl Debug) {
    CAME.with_borrow_mut(|came| came.insert(pair(event, state)));
}

/// An event in a state, as it is counted.
#[cfg(feature = "deliberate-bugs")]
pub fn pair(event: impl Debug, state: impl Debug) -> String {
    format!("{event:?} in {state:?}")
}

/// An event came in a state: nobody counts.
#[cfg(not(feature = "deliberate-bugs"))]
#[inline]
pub fn came(_event: impl Debug, _state: impl Debug) {}

/// All pairs that came on this thread since the last call.
#[cfg(feature = "deliberate-bugs")]
pub fn take() -> std::collections::BTreeSet<String> {
    CAME.take()
}
