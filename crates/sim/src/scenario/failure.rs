//! The failure of a schedule, and the conversion of a panic into a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lockstep_types::mutants::{Mutant, activate};

/// A violated requirement, with everything that led to it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The violated requirement, in words.
    pub what: String,
    /// The earlier faults, with their times.
    pub faults: Vec<String>,
    /// The requests and answers of the clients, and the events of the nodes.
    pub history: String,
}

impl Failure {
    /// Returns the kind of the failure: the part of the message before the first number or name.
    pub fn kind(&self) -> &str {
        let mut parts = self
            .what
            .split([':', '#', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
        parts.next().unwrap_or_default()
    }
}

/// Runs `body`, with a mutant if `mutant` names one. Converts a panic into an error.
pub fn catch_panic<T>(
    mutant: Option<Mutant>,
    body: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    activate(mutant);
    let result = catch_unwind(AssertUnwindSafe(body));
    activate(None);
    result.unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic))))
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let owned = || panic.downcast_ref::<String>().cloned();
    text.or_else(owned).unwrap_or_else(|| "?".to_owned())
}
