//! A primary is killed with an operation in doubt that its secondary has executed, and starts out of sync: the operation has
//! happened before a client looks, and the delta names what it has changed (rule P21).

use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::disk::Verdict;
use lockstep_sim::history::Stop;
use lockstep_sim::scenario::{
    CallPoint, Crash, Fault, FileClass, PRIMARY, SECONDARY, ScriptedCluster, Settings,
};
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::settings::Role;

use super::program::{self, FILE, FIRST, LATER};
use super::steps::{kill, run, start_in_sync, status, until, until_in_sync};

/// The file that the operation in doubt makes.
const DOUBTFUL: &str = "doubtful";
/// The length of one write.
const PART: u64 = 1 << 20;

/// The moment at which the primary is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The secondary is marked out of sync, and no operation is finished alone yet.
    Marked,
    /// A resync makes the content equal, and operations are mirrored.
    Content,
}

/// A power loss of the secondary after the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Secondary {
    Runs,
    LosesPower,
}

/// The outcome of a script.
struct Found {
    /// A client of the primary that has started again meets the operation.
    has_happened: bool,
    /// The copies are equal once they are in sync.
    is_identical: bool,
}

fn in_sync() -> ScriptedCluster {
    let mut cluster = ScriptedCluster::manual(&Settings {
        peer_timeout: Duration::from_secs(1),
        ..Settings::STEADY
    });
    start_in_sync(&mut cluster);
    let made = run(&mut cluster, |mount| {
        program::create(mount, FILE)?;
        program::write_at(mount, FIRST, 0, PART)
    });
    assert_eq!(made, Ok(()));
    cluster
}

/// A resync of the changes makes the content equal.
fn in_content() -> ScriptedCluster {
    let mut cluster = in_sync();
    kill(&mut cluster, SECONDARY);
    until(&mut cluster, "out of sync", |cluster| {
        cluster.state(PRIMARY) == Some(State::OutOfSync)
    });
    let written = run(&mut cluster, |mount| {
        (0..8).try_for_each(|part| program::write_at(mount, LATER, part * PART, PART))
    });
    assert_eq!(written, Ok(()));
    cluster.start(SECONDARY);
    until(&mut cluster, "content", |cluster| {
        cluster.state(PRIMARY) == Some(State::ResyncContent)
    });
    cluster
}

/// The secondary executes an operation, and its answer does not arrive.
fn leave_in_doubt(cluster: &mut ScriptedCluster) {
    let ino = cluster.next_ino().unwrap().unwrap();
    let before = status(cluster, SECONDARY).work.osn;
    cluster.apply_fault(Fault::Mute(Role::Secondary)).unwrap();
    let creation = program::creation(DOUBTFUL, ino);
    cluster.leave(1, creation, Duration::ZERO).unwrap();
    until(cluster, "executed", |cluster| {
        status(cluster, SECONDARY).work.osn != before
    });
}

/// The primary gives the secondary up, and its process ends before the last call of the mark.
fn crash_at_mark(cluster: &mut ScriptedCluster) {
    let at = CallPoint {
        class: Some(FileClass::Role),
        skipped: 3,
        verdict: Verdict::CrashBefore,
    };
    let crash = Crash {
        stop: Stop::Process,
        at,
    };
    let role = Role::Primary;
    let fault = Fault::CrashAtCall { role, crash };
    cluster.apply_fault(fault).unwrap();
    until(cluster, "marked", |cluster| {
        let marks = cluster.role_marks(PRIMARY);
        marks.is_some_and(|marks| !marks.in_sync)
    });
    kill(cluster, PRIMARY);
}

fn script(moment: Moment, secondary: Secondary) -> Found {
    let mut cluster = match moment {
        Moment::Marked => in_sync(),
        Moment::Content => in_content(),
    };
    leave_in_doubt(&mut cluster);
    match moment {
        Moment::Marked => crash_at_mark(&mut cluster),
        Moment::Content => kill(&mut cluster, PRIMARY),
    }
    if secondary == Secondary::LosesPower {
        cluster.cut_power(SECONDARY);
        cluster.start(SECONDARY);
    }
    cluster.start(PRIMARY);
    until(&mut cluster, "serves", |cluster| cluster.serves(PRIMARY));
    assert_eq!(cluster.state(PRIMARY), Some(State::OutOfSync));
    let has_happened = run(&mut cluster, |mount| program::exists(mount, DOUBTFUL)).unwrap();
    cluster.apply_fault(Fault::Heal).unwrap();
    until_in_sync(&mut cluster);
    Found {
        has_happened,
        is_identical: cluster.compare().unwrap().is_identical(),
    }
}

const CASES: [(Moment, Secondary); 4] = [
    (Moment::Marked, Secondary::Runs),
    (Moment::Marked, Secondary::LosesPower),
    (Moment::Content, Secondary::Runs),
    (Moment::Content, Secondary::LosesPower),
];

#[test]
fn an_operation_in_doubt_has_happened_before_a_client_looks() {
    for (moment, secondary) in CASES {
        let found = script(moment, secondary);
        assert!(found.has_happened, "{moment:?}, {secondary:?}");
        assert!(found.is_identical, "{moment:?}, {secondary:?}");
    }
}

#[test]
fn an_executed_operation_that_is_rolled_back_is_found() {
    for (moment, secondary) in CASES {
        activate(Some(Mutant::RollBackExecuted));
        let found = script(moment, secondary);
        activate(None);
        assert!(!found.has_happened, "{moment:?}, {secondary:?}");
    }
}
