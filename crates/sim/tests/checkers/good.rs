//! No false alarms: the checkers accept every history of a right world.

use lockstep_sim::check::{self, exactly_once};

use crate::world::{Faults, Run, run};

fn pass(faults: Faults, seeds: std::ops::Range<u64>) {
    let mut undecided = 0;
    for seed in seeds.clone() {
        let operations = usize::try_from(50 + seed % 300).unwrap();
        let Run { history, last } = run(seed, operations, faults);
        if let Err(violation) = check::history(&history, &last) {
            panic!("{history}\nseed {seed} with {faults:?}: {violation}");
        }
        undecided += u32::from(exactly_once::decide(&history, &last) == Ok(false));
    }
    let allowed = (seeds.end - seeds.start) / 1000;
    assert!(u64::from(undecided) <= allowed, "{undecided} of {seeds:?}");
}

#[test]
fn a_world_without_faults_passes() {
    pass(Faults::None, 0..150);
}

#[test]
fn a_world_with_crashes_passes() {
    pass(Faults::Crashes, 1000..1150);
}

#[test]
fn a_world_with_all_faults_passes() {
    pass(Faults::All, 2000..2200);
}

/// Takes hours: `cargo test --profile ci -p lockstep-sim --test checkers -- --ignored`.
#[test]
#[ignore = "long"]
fn many_worlds_pass() {
    for faults in [Faults::None, Faults::Crashes, Faults::All] {
        pass(faults, 10_000..20_000);
    }
}
