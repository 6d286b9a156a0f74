//! The promises of a witness.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_roles::{Claim, InSyncSet, Member, Witness, WitnessRecord};
use lockstep_types::{DatastoreUuid, Generation};

use crate::subject::{LIMIT, Pair, SHORT, Subject, next, record};

/// Makes a claim that must be answered.
fn claim(
    witness: &dyn Witness,
    expected: Option<WitnessRecord>,
    new: WitnessRecord,
) -> Option<WitnessRecord> {
    witness.claim(&Claim { expected, new }, LIMIT).unwrap()
}

fn read(witness: &dyn Witness) -> Option<WitnessRecord> {
    witness.read(LIMIT).unwrap()
}

pub fn an_unknown_datastore_has_no_record(subject: &mut dyn Subject) {
    let pair = Pair::new(subject);
    assert_eq!(read(&*pair.a), None);
    assert_eq!(read(&*pair.b), None);
}

pub fn the_first_claim_makes_the_record(subject: &mut dyn Subject) {
    for primary in [Member::First, Member::Second] {
        for in_sync in [InSyncSet::PrimaryOnly, InSyncSet::Both] {
            let pair = Pair::new(subject);
            let new = record(0, 3, primary, in_sync);
            assert_eq!(claim(&*pair.a, None, new), Some(new));
            assert_eq!(read(&*pair.a), Some(new));
            assert_eq!(read(&*pair.b), Some(new));
        }
    }
}

pub fn a_claim_with_a_wrong_expectation_changes_nothing(subject: &mut dyn Subject) {
    let pair = Pair::new(subject);
    let present = record(0, 2, Member::First, InSyncSet::Both);
    // The claim expects a record where there is none.
    let new = record(1, 3, Member::Second, InSyncSet::PrimaryOnly);
    assert_eq!(claim(&*pair.b, Some(present), new), None);
    assert_eq!(claim(&*pair.a, None, present), Some(present));
    // Records that differ from the present one in one value each.
    for wrong in [
        None,
        Some(record(1, 2, Member::First, InSyncSet::Both)),
        Some(record(0, 1, Member::First, InSyncSet::Both)),
        Some(record(0, 2, Member::Second, InSyncSet::Both)),
        Some(record(0, 2, Member::First, InSyncSet::PrimaryOnly)),
    ] {
        let change = wrong.map_or(0, |wrong| wrong.change + 1);
        let new = record(change, 3, Member::Second, InSyncSet::PrimaryOnly);
        assert_eq!(claim(&*pair.b, wrong, new), Some(present));
        assert_eq!(read(&*pair.b), Some(present));
    }
}

pub fn a_repeated_claim_is_granted_again(subject: &mut dyn Subject) {
    let pair = Pair::new(subject);
    let first = record(0, 1, Member::First, InSyncSet::Both);
    let second = record(1, 2, Member::Second, InSyncSet::PrimaryOnly);
    for _ in 0..3 {
        assert_eq!(claim(&*pair.a, None, first), Some(first));
    }
    for _ in 0..3 {
        assert_eq!(claim(&*pair.b, Some(first), second), Some(second));
    }
}

pub fn a_late_claim_changes_nothing(subject: &mut dyn Subject) {
    let pair = Pair::new(subject);
    let first = record(0, 1, Member::First, InSyncSet::Both);
    let alone = record(1, 1, Member::First, InSyncSet::PrimaryOnly);
    let takeover = record(1, 2, Member::Second, InSyncSet::PrimaryOnly);
    assert_eq!(claim(&*pair.a, None, first), Some(first));
    assert_eq!(claim(&*pair.a, Some(first), alone), Some(alone));
    // Both claims arrive after the change that they would have competed with.
    assert_eq!(claim(&*pair.b, Some(first), takeover), Some(alone));
    assert_eq!(claim(&*pair.a, None, first), Some(alone));
    assert_eq!(read(&*pair.b), Some(alone));
}

pub fn a_claim_that_breaks_a_rule_is_refused(subject: &mut dyn Subject) {
    let pair = Pair::new(subject);
    let present = record(0, 2, Member::First, InSyncSet::Both);
    assert_eq!(claim(&*pair.a, None, present), Some(present));
    for new in [
        record(0, 2, Member::First, InSyncSet::PrimaryOnly),
        record(2, 2, Member::First, InSyncSet::PrimaryOnly),
        record(1, 1, Member::First, InSyncSet::Both),
        record(1, 2, Member::Second, InSyncSet::Both),
    ] {
        let wrong = Claim {
            expected: Some(present),
            new,
        };
        let error = pair.a.claim(&wrong, LIMIT).unwrap_err();
        assert!(!error.is_unreachable(), "{error}");
        assert_eq!(read(&*pair.a), Some(present));
    }
}

pub fn of_racing_claims_one_wins_each_change(subject: &mut dyn Subject) {
    const CLAIMANTS: u64 = 6;
    const CHANGES: u64 = 60;
    let pair = Pair::new(subject);
    let winners: Mutex<BTreeMap<u64, Vec<u64>>> = Mutex::default();
    std::thread::scope(|scope| {
        for claimant in 0..CLAIMANTS {
            let (witness, winners) = (if claimant % 2 == 0 { &pair.a } else { &pair.b }, &winners);
            scope.spawn(move || {
                let mut known = read(&**witness);
                while known.is_none_or(|known| known.change < CHANGES) {
                    // The generation makes the claim of each claimant another one.
                    let last = known.map_or(0, |known| known.generation.get());
                    let new = WitnessRecord {
                        generation: Generation::new(last + 1 + claimant).unwrap(),
                        ..next(known)
                    };
                    let after = claim(&**witness, known, new);
                    if after == Some(new) {
                        let mut winners = winners.lock().unwrap();
                        winners.entry(new.change).or_default().push(claimant);
                    }
                    known = after;
                }
            });
        }
    });
    let winners = winners.into_inner().unwrap();
    let changes: Vec<_> = winners.keys().copied().collect();
    let last = read(&*pair.a).unwrap().change;
    assert_eq!(changes, (0..=last).collect::<Vec<_>>());
    for (change, claimants) in winners {
        assert_eq!(
            claimants.len(),
            1,
            "change {change} was granted to {claimants:?}"
        );
    }
}

pub fn datastores_do_not_mix(subject: &mut dyn Subject) {
    let pairs: Vec<_> = (0..20).map(|_| Pair::new(subject)).collect();
    let new = |number: usize| {
        let generation = u64::try_from(number).unwrap() + 1;
        record(0, generation, Member::First, InSyncSet::Both)
    };
    for (number, pair) in pairs.iter().enumerate() {
        assert_eq!(read(&*pair.b), None);
        assert_eq!(claim(&*pair.a, None, new(number)), Some(new(number)));
    }
    for (number, pair) in pairs.iter().enumerate() {
        assert_eq!(read(&*pair.b), Some(new(number)));
    }
}

pub fn a_killed_witness_keeps_its_records(subject: &mut dyn Subject) {
    let pairs = [Pair::new(subject), Pair::new(subject)];
    let mut known = None;
    for _ in 0..2 {
        let new = next(known);
        for pair in &pairs {
            assert_eq!(claim(&*pair.a, known, new), Some(new));
        }
        known = Some(new);
        subject.kill();
        subject.start_again();
        for pair in &pairs {
            assert_eq!(read_when_back(&*pair.b), known);
        }
    }
}

/// Reads the record as soon as the witness answers.
fn read_when_back(witness: &dyn Witness) -> Option<WitnessRecord> {
    loop {
        match witness.read(LIMIT) {
            Ok(record) => return record,
            Err(error) => assert!(error.is_unreachable(), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn a_witness_killed_amid_claims_loses_no_acknowledged_claim(subject: &mut dyn Subject) {
    let pair = Pair::new(subject);
    let mut acknowledged = None;
    for _ in 0..subject.kills() {
        let is_killed = AtomicBool::new(false);
        let granted = std::thread::scope(|scope| {
            let claiming = scope.spawn(|| claim_until_killed(&*pair.a, acknowledged, &is_killed));
            // The witness is killed after a random number of claims: whenever it comes to that.
            std::thread::sleep(Duration::from_millis(10));
            subject.kill();
            is_killed.store(true, Ordering::Relaxed);
            claiming.join().unwrap()
        });
        subject.start_again();
        let found = read_when_back(&*pair.a);
        let is_next = found == Some(next(granted));
        assert!(
            found == granted || is_next,
            "{granted:?} was acknowledged, and {found:?} is found"
        );
        acknowledged = found;
    }
}

/// Claims without a pause until a claim fails. Returns the last record that the witness has acknowledged.
fn claim_until_killed(
    witness: &dyn Witness,
    mut known: Option<WitnessRecord>,
    is_killed: &AtomicBool,
) -> Option<WitnessRecord> {
    while !is_killed.load(Ordering::Relaxed) {
        let claim = Claim {
            expected: known,
            new: next(known),
        };
        let Ok(after) = witness.claim(&claim, SHORT) else {
            break;
        };
        assert_eq!(after, Some(claim.new));
        known = after;
    }
    known
}

pub fn an_unreachable_witness_is_an_error_and_comes_back(subject: &mut dyn Subject) {
    let pair = Pair::new(subject);
    let first = record(0, 1, Member::First, InSyncSet::Both);
    assert_eq!(claim(&*pair.a, None, first), Some(first));
    subject.kill();
    for _ in 0..2 {
        let error = pair.a.read(SHORT).unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        let takeover = Claim {
            expected: Some(first),
            new: record(1, 2, Member::Second, InSyncSet::PrimaryOnly),
        };
        let error = pair.b.claim(&takeover, SHORT).unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert!(error.to_string().contains("\n  cure: "), "{error}");
    }
    subject.start_again();
    assert_eq!(read_when_back(&*pair.a), Some(first));
    assert_eq!(read_when_back(&*pair.b), Some(first));
}

pub fn other_nodes_get_no_record(subject: &mut dyn Subject) {
    let pair = Pair::new(subject);
    let first = record(0, 1, Member::First, InSyncSet::Both);
    assert_eq!(claim(&*pair.a, None, first), Some(first));
    let nodes = subject.nodes();
    for (node, peer) in [(&nodes.third, &nodes.a), (&nodes.a, &nodes.third)] {
        let witness = subject.witness(node, peer, pair.uuid);
        let error = witness.read(LIMIT).unwrap_err();
        assert!(!error.is_unreachable(), "{error}");
        assert!(
            error.to_string().contains("belongs to the nodes"),
            "{error}"
        );
        let takeover = Claim {
            expected: Some(first),
            new: record(1, 2, Member::Second, InSyncSet::PrimaryOnly),
        };
        let error = witness.claim(&takeover, LIMIT).unwrap_err();
        assert!(!error.is_unreachable(), "{error}");
    }
    assert_eq!(read(&*pair.b), Some(first));
}

pub fn an_unknown_node_is_refused(subject: &mut dyn Subject) {
    let pair = Pair::new(subject);
    let nodes = subject.nodes();
    let first = record(0, 1, Member::First, InSyncSet::Both);
    // The unknown node asks, and a known node asks about a datastore with the unknown node.
    for (node, peer) in [(&nodes.unknown, &nodes.a), (&nodes.a, &nodes.unknown)] {
        let witness = subject.witness(node, peer, DatastoreUuid::random());
        for _ in 0..2 {
            let error = witness.read(LIMIT).unwrap_err();
            assert!(!error.is_unreachable(), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("does not know") && text.contains("[[node]]"),
                "{text}"
            );
            let claim = Claim {
                expected: None,
                new: first,
            };
            assert!(!witness.claim(&claim, LIMIT).unwrap_err().is_unreachable());
        }
    }
    assert_eq!(read(&*pair.a), None);
}
