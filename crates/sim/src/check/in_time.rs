//! Nodes get in sync within a bounded time. After the last fault is over, the nodes need no more
//! than this time, after any earlier events.

use std::time::Duration;

use lockstep_repl::state::State;

use super::violation::Violation;

/// Judges the states of nodes after a time `waited` without faults. A node that does not run has no
/// state.
pub fn check(
    waited: Duration,
    limit: Duration,
    states: [Option<State>; 2],
) -> Result<(), Violation> {
    if waited <= limit || states == [Some(State::Synced), Some(State::SecondarySynced)] {
        return Ok(());
    }
    let [primary, secondary] = states;
    let what = format!("not in sync {limit:?} after the last fault: {primary:?}, {secondary:?}");
    Err(Violation::new("in_time", what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_some_time_and_no_more() {
        let limit = Duration::from_secs(60);
        let out = [Some(State::OutOfSync), None];
        let within = [Some(State::Synced), Some(State::SecondarySynced)];
        assert_eq!(check(limit, limit, out), Ok(()));
        assert_eq!(check(limit * 2, limit, within), Ok(()));
        let violation = check(limit * 2, limit, out).unwrap_err().to_string();
        assert!(violation.contains("OutOfSync"), "{violation}");
    }
}
