//! A world with one deliberate fault is caught, and soon.

use lockstep_sim::check;

use crate::fs::Bug;
use crate::world::{Faults, Run, run_wrong};

/// Number of worlds until the bug is caught.
fn worlds_until_caught(bug: Bug) -> u64 {
    let is_caught = |seed: &u64| {
        let Run { history, last } = run_wrong(*seed, 150, Faults::All, Some(bug));
        check::history(&history, &last).is_err()
    };
    let caught = (1..200).find(is_caught);
    caught.unwrap_or_else(|| panic!("{bug:?} is not caught"))
}

#[test]
fn every_bug_is_caught() {
    let bugs = [
        Bug::StaleRead,
        Bug::SyncLies,
        Bug::Twice,
        Bug::HoleInLog,
        Bug::CrashLoses,
        Bug::HalfWrite,
    ];
    for bug in bugs {
        println!("{bug:?}: world {}", worlds_until_caught(bug));
    }
}
