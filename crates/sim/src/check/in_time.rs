//! In sync within a bounded time: when no fault is left, the nodes need no more than that to get in sync,
//! whatever came before.

use std::time::Duration;

use lockstep_repl::state::State;

use super::violation::Violation;

/// Judges nodes that were left in peace for `waited`, and are in these states; a node that does not run
/// has none.
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
        let told = check(limit * 2, limit, out).unwrap_err().to_string();
        assert!(told.contains("OutOfSync"), "{told}");
    }
}
