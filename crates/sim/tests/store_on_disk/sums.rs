//! The sums of a store after a crash at any call of the workload: the mutants of the sums are found.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lockstep_sim::disk::{CallKind, Verdict};
use lockstep_sim::random::Random;
use lockstep_types::mutants::{Mutant, activate};

use super::states::{Crash, check};
use super::workload::run;
use super::*;

/// Whether the sums fit after each end of the process, and after a loss of power.
fn fits_after_crashes(power: bool) {
    let base = made_disk();
    let calls = calls_of(&base.fork(), || ()).len();
    assert_eq!(calls, 0);
    let counted = base.fork();
    let calls = calls_of(&counted, || {
        run(&counted);
    });
    for (nth, (kind, _)) in (1..).zip(calls) {
        if kind == CallKind::TableStore && power {
            continue;
        }
        let disk = base.fork();
        at_call(&disk, nth, Verdict::CrashBefore);
        let acknowledged = run(&disk);
        disk.observe(None);
        let (boot, crash) = if power {
            disk.power_loss(&mut Random::new(nth));
            (NEXT_BOOT, Crash::Power)
        } else {
            (BOOT, Crash::Process)
        };
        check(&open(&disk, boot).unwrap().store, acknowledged, crash);
    }
}

/// The words of a check about the mutant.
fn said_of(mutant: Mutant, power: bool) -> String {
    activate(Some(mutant));
    let checked = catch_unwind(AssertUnwindSafe(|| fits_after_crashes(power)));
    activate(None);
    let said = checked.unwrap_err();
    said.downcast_ref::<String>().unwrap().clone()
}

#[test]
fn sums_of_other_bytes_are_found() {
    for (mutant, power) in [
        (Mutant::SumNotRecomputed, false),
        (Mutant::SumOfOldBlock, false),
        (Mutant::SumOfOtherBytes, false),
        (Mutant::ChangingUnnoted, false),
        (Mutant::VoidForgotten, true),
    ] {
        let said = said_of(mutant, power);
        assert!(said.contains("sums"), "{mutant:?}: {said}");
    }
}
