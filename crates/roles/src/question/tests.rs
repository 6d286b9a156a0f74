use super::*;
use crate::event::Asker;
use crate::fixture::{
    ALONE, COMPLETE, G1, INCOMPLETE, MemoryWitness, PRIMARY, copy, generation, known, settings,
    sync,
};

/// The question of a node with a record, which is over.
fn ask(query: WitnessQuery, mine: RoleRecord, witness: &mut MemoryWitness) -> Question {
    ask_as(&settings(), query, mine, witness)
}

fn ask_as(
    settings: &RoleSettings,
    query: WitnessQuery,
    mine: RoleRecord,
    witness: &mut MemoryWitness,
) -> Question {
    let mut question = Question::new(query, mine);
    let mut call = WitnessCall::Read;
    loop {
        witness.call(Asker::Watch, call);
        match question.answered(settings, &witness.answer(Asker::Watch)) {
            Step::Call(next) => call = next,
            Step::Over(conclusion) => {
                question.conclusion = Some(conclusion);
                return question;
            }
        }
    }
}

fn conclude(query: WitnessQuery, mine: RoleRecord, witness: &mut MemoryWitness) -> Conclusion {
    ask(query, mine, witness).conclusion.unwrap()
}

/// A record of the witness about the sync of [`copy`], in which the first node is the primary of the first generation.
fn present(in_sync: InSyncSet) -> WitnessRecord {
    WitnessRecord {
        sync: copy().sync.names.last,
        ..known(4, G1, Member::First, in_sync)
    }
}

fn by_peer(in_sync: InSyncSet) -> WitnessRecord {
    WitnessRecord {
        primary: Member::Second,
        ..present(in_sync)
    }
}

#[test]
fn a_claim_names_the_sync_and_the_record_that_the_witness_told() {
    let told = WitnessRecord {
        sync: sync(1),
        ..present(InSyncSet::Both)
    };
    let mut witness = MemoryWitness::with(Some(told));
    let conclusion = conclude(WitnessQuery::Protect, PRIMARY, &mut witness);
    assert_eq!(conclusion, Conclusion::Nothing, "granted");
    let new = WitnessRecord {
        change: 5,
        sync: sync(2),
        ..told
    };
    let claim = Claim {
        expected: Some(told),
        new,
    };
    assert_eq!(
        witness.calls,
        [WitnessCall::Read, WitnessCall::Claim(claim)]
    );
    assert_eq!(witness.record, Some(new));
}

#[test]
fn a_witness_that_knows_the_protection_is_not_claimed_again() {
    let mut witness = MemoryWitness::with(Some(present(InSyncSet::Both)));
    let conclusion = conclude(WitnessQuery::Protect, PRIMARY, &mut witness);
    assert_eq!(conclusion, Conclusion::Nothing);
    assert_eq!(witness.calls, [WitnessCall::Read]);
}

#[test]
fn a_witness_that_does_not_keep_the_name_is_noticed() {
    for forgets_names in [false, true] {
        let mut witness = MemoryWitness {
            forgets_names,
            ..MemoryWitness::with(Some(known(4, G1, Member::First, InSyncSet::Both)))
        };
        let question = ask(WitnessQuery::Protect, PRIMARY, &mut witness);
        let conclusion = question.conclusion.unwrap();
        assert_eq!(conclusion == Conclusion::ForgetsNames, forgets_names);
        let over = question.over(conclusion);
        assert_eq!(over.forgets_names, Some(forgets_names));
        assert_eq!(witness.calls.len(), 2, "it would forget the same again");
    }
    // The other questions do not need the name.
    for (query, mine, expected) in [
        (WitnessQuery::Alone, PRIMARY, Conclusion::Alone),
        (
            WitnessQuery::Tell(forced()),
            forced_record(),
            Conclusion::Recorded,
        ),
    ] {
        let mut witness = MemoryWitness {
            forgets_names: true,
            ..MemoryWitness::with(Some(present(InSyncSet::Both)))
        };
        let question = ask(query, mine, &mut witness);
        assert_eq!(question.conclusion, Some(expected));
        assert_eq!(question.over(expected).forgets_names, None);
    }
}

#[test]
fn a_copy_that_the_witness_has_heard_a_later_name_of_is_older() {
    for (own, told, expected) in [
        (2, 3, true),
        (3, 3, false),
        (4, 3, false),
        (0, 3, false),
        (3, 0, false),
    ] {
        let told = WitnessRecord {
            sync: sync(told),
            ..present(InSyncSet::Both)
        };
        let names = SyncNames::settled(sync(own));
        assert_eq!(is_older(&names, told.sync), expected);
        for (query, mine) in [
            (WitnessQuery::Alone, PRIMARY),
            (WitnessQuery::Protect, PRIMARY),
            (WitnessQuery::TakeOver, COMPLETE),
        ] {
            let mut witness = MemoryWitness {
                names,
                ..MemoryWitness::with(Some(told))
            };
            let question = ask(query, mine, &mut witness);
            let conclusion = question.conclusion.unwrap();
            assert_eq!(conclusion == Conclusion::OlderCopy, expected, "{own}");
            assert_eq!(question.over(conclusion).is_older_copy, expected);
            assert!(!expected || witness.calls == [WitnessCall::Read]);
        }
    }
}

// To serve alone.

#[test]
fn a_primary_serves_alone_once_the_witness_has_recorded_that() {
    let earlier = WitnessRecord {
        generation: G1,
        ..by_peer(InSyncSet::Both)
    };
    let mine = RoleRecord {
        generation: generation(2),
        ..PRIMARY
    };
    let mut witness = MemoryWitness::with(Some(earlier));
    let conclusion = conclude(WitnessQuery::Alone, mine, &mut witness);
    assert_eq!(conclusion, Conclusion::Alone);
    let claimed = WitnessRecord {
        change: 5,
        generation: generation(2),
        ..present(InSyncSet::PrimaryOnly)
    };
    assert_eq!(witness.record, Some(claimed));
    // An earlier answer proves nothing: each question makes a claim of its own (rule R5).
    let conclusion = conclude(WitnessQuery::Alone, mine, &mut witness);
    assert_eq!(conclusion, Conclusion::Alone);
    assert_eq!(witness.record.unwrap().change, 6);
}

#[test]
fn no_primary_serves_alone_by_an_empty_witness_or_a_later_generation() {
    let later = WitnessRecord {
        generation: generation(2),
        ..by_peer(InSyncSet::Both)
    };
    for record in [None, Some(later)] {
        let mut witness = MemoryWitness::with(record);
        let question = ask(WitnessQuery::Alone, PRIMARY, &mut witness);
        assert_eq!(question.conclusion, Some(Conclusion::Nothing));
        assert_eq!(witness.calls, [WitnessCall::Read]);
        let over = question.over(Conclusion::Nothing);
        assert_eq!(over.is_empty, record.is_none());
    }
}

/// The peer may hold more, also if the witness denies that.
#[test]
fn a_primary_that_has_lost_power_asks_to_serve_alone_only_if_the_operator_accepts_loss() {
    for (on_power_loss, expected) in [
        (OnPowerLoss::Wait, Conclusion::Nothing),
        (OnPowerLoss::Serve, Conclusion::Alone),
    ] {
        let settings = RoleSettings {
            on_power_loss,
            ..settings()
        };
        let mine = PRIMARY.after_power_loss();
        let mut witness = MemoryWitness::with(Some(present(InSyncSet::PrimaryOnly)));
        let question = ask_as(&settings, WitnessQuery::Alone, mine, &mut witness);
        assert_eq!(question.conclusion, Some(expected));
    }
}

#[test]
fn a_late_claim_of_this_node_under_another_name_grants_nothing() {
    let late = WitnessRecord {
        change: 5,
        sync: sync(1),
        ..present(InSyncSet::PrimaryOnly)
    };
    let mut witness = MemoryWitness::with(Some(present(InSyncSet::Both)));
    witness.overtaking.push_back(late);
    let conclusion = conclude(WitnessQuery::Alone, PRIMARY, &mut witness);
    assert_eq!(conclusion, Conclusion::Alone);
    assert_eq!(witness.calls.len(), 3, "claimed again");
    assert_eq!(witness.record.unwrap().sync, sync(2));
}

#[test]
fn a_claim_is_made_again_until_the_question_has_taken_eight_calls() {
    for (overtaken, expected) in [(6, Conclusion::Alone), (7, Conclusion::Nothing)] {
        let mut witness = MemoryWitness::with(Some(present(InSyncSet::Both)));
        let others = (0..overtaken).map(|number| WitnessRecord {
            change: 5 + number,
            ..present(InSyncSet::Both)
        });
        witness.overtaking.extend(others);
        let conclusion = conclude(WitnessQuery::Alone, PRIMARY, &mut witness);
        assert_eq!(conclusion, expected);
        assert_eq!(witness.calls.len(), 8);
    }
}

// To take over.

#[test]
fn a_secondary_stands_only_where_the_witness_lets_it_take_over() {
    for (record, expected) in [
        (None, Conclusion::Nothing),
        (Some(by_peer(InSyncSet::Both)), Conclusion::BecomeCandidate),
        (Some(by_peer(InSyncSet::PrimaryOnly)), Conclusion::Nothing),
        // The old primary, which became the secondary by a grant: its own record lets it go on.
        (
            Some(present(InSyncSet::PrimaryOnly)),
            Conclusion::BecomeCandidate,
        ),
    ] {
        let mut witness = MemoryWitness::with(record);
        let conclusion = conclude(WitnessQuery::TakeOver, COMPLETE, &mut witness);
        assert_eq!(conclusion, expected, "{record:?}");
        assert_eq!(witness.calls, [WitnessCall::Read], "first the candidature");
    }
}

#[test]
fn a_candidate_leads_once_the_witness_has_recorded_that() {
    let candidate = COMPLETE.become_candidate();
    let mut witness = MemoryWitness::with(Some(by_peer(InSyncSet::Both)));
    let granted = Conclusion::TakeOver {
        peer_is_complete: false,
    };
    assert_eq!(
        conclude(WitnessQuery::TakeOver, candidate, &mut witness),
        granted
    );
    assert_eq!(witness.calls.len(), 2);
    // The answer is lost: the record of the witness says the same.
    assert_eq!(
        conclude(WitnessQuery::TakeOver, candidate, &mut witness),
        granted
    );
    assert_eq!(witness.calls.len(), 3);
    let serves_alone = by_peer(InSyncSet::PrimaryOnly);
    let mut witness = MemoryWitness::with(Some(serves_alone));
    let conclusion = conclude(WitnessQuery::TakeOver, candidate, &mut witness);
    assert_eq!(conclusion, Conclusion::Nothing);
    assert_eq!(witness.record, Some(serves_alone));
}

#[test]
fn a_candidate_that_the_primary_overtakes_does_not_lead() {
    let candidate = COMPLETE.become_candidate();
    let mut witness = MemoryWitness::with(Some(by_peer(InSyncSet::Both)));
    witness.overtaking.push_back(WitnessRecord {
        change: 5,
        ..by_peer(InSyncSet::PrimaryOnly)
    });
    let conclusion = conclude(WitnessQuery::TakeOver, candidate, &mut witness);
    assert_eq!(conclusion, Conclusion::Nothing);
    let later = WitnessRecord {
        change: 6,
        generation: generation(3),
        ..by_peer(InSyncSet::Both)
    };
    let mut witness = MemoryWitness::with(Some(later));
    let conclusion = conclude(WitnessQuery::TakeOver, candidate, &mut witness);
    assert_eq!(conclusion, Conclusion::Nothing);
}

#[test]
fn the_peer_of_a_new_primary_may_take_over_in_turn_if_the_witness_says_both() {
    let candidate = COMPLETE.become_candidate();
    let both = WitnessRecord {
        generation: candidate.generation,
        ..present(InSyncSet::Both)
    };
    let mut witness = MemoryWitness::with(Some(both));
    let conclusion = conclude(WitnessQuery::TakeOver, candidate, &mut witness);
    let expected = Conclusion::TakeOver {
        peer_is_complete: true,
    };
    assert_eq!(conclusion, expected);
}

// To let the secondary take over.

#[test]
fn two_connected_nodes_tell_an_empty_witness_how_things_stand() {
    let mut witness = MemoryWitness::with(None);
    let conclusion = conclude(WitnessQuery::Protect, PRIMARY, &mut witness);
    assert_eq!(conclusion, Conclusion::Nothing);
    let told = WitnessRecord {
        change: 0,
        ..present(InSyncSet::Both)
    };
    assert_eq!(witness.record, Some(told));
}

#[test]
fn the_names_of_the_last_answer_count() {
    let mut question = Question::new(WitnessQuery::Protect, PRIMARY);
    let mut witness = MemoryWitness::with(Some(present(InSyncSet::PrimaryOnly)));
    let Step::Call(claim) = question.answered(&settings(), &witness.answer(Asker::Watch)) else {
        panic!("{question:?}");
    };
    witness.call(Asker::Watch, claim);
    let settings = settings();
    let mut renamed = question;
    witness.names = SyncNames::settled(sync(3));
    let again = renamed.answered(&settings, &witness.answer(Asker::Watch));
    // The claim is granted. The next question names the new sync.
    assert_eq!(again, Step::Over(Conclusion::Nothing));
    assert_eq!(renamed.names.last, sync(3));
}

// To tell of a promotion by force.

/// The promotion of the first node, which knew of generation 1 and serves in generation 4.
fn forced() -> UnrecordedPromotion {
    UnrecordedPromotion {
        generation: generation(4),
        known: generation(1),
    }
}

fn forced_record() -> RoleRecord {
    RoleRecord {
        generation: generation(4),
        ..ALONE
    }
}

/// The question that tells of the promotion of a node whose copy has no names, and the record of the witness after that.
fn tell(
    record: Option<WitnessRecord>,
    overtaking: &[WitnessRecord],
) -> (Question, Option<WitnessRecord>) {
    let mut witness = MemoryWitness {
        overtaking: overtaking.iter().copied().collect(),
        names: SyncNames::default(),
        ..MemoryWitness::with(record)
    };
    let query = WitnessQuery::Tell(forced());
    let question = ask(query, forced_record(), &mut witness);
    (question, witness.record)
}

#[test]
fn the_witness_lets_only_the_forced_node_serve() {
    use InSyncSet::{Both, PrimaryOnly};
    use Member::{First, Second};
    let [first, fourth] = [1, 4].map(generation);
    for (record, change) in [
        (None, 0),
        (Some(known(7, first, Second, Both)), 8),
        (Some(known(7, first, Second, PrimaryOnly)), 8),
        (Some(known(7, fourth, First, Both)), 8),
        // An earlier claim may be late on its way (rule R5).
        (Some(known(7, fourth, First, PrimaryOnly)), 8),
    ] {
        let told = known(change, fourth, First, PrimaryOnly);
        let (question, now) = tell(record, &[]);
        assert_eq!(question.conclusion, Some(Conclusion::Recorded));
        assert_eq!(question.later_generation(First), None);
        assert_eq!((question.known, now), (Some(told), Some(told)));
    }
}

#[test]
fn an_overtaken_claim_is_made_again_unless_the_other_node_leads() {
    use InSyncSet::{Both, PrimaryOnly};
    use Member::{First, Second};
    let [first, second, fourth] = [1, 2, 4].map(generation);
    let record = Some(known(7, first, Second, Both));
    let told = known(9, fourth, First, PrimaryOnly);
    let harmless = known(8, first, Second, PrimaryOnly);
    let (question, now) = tell(record, &[harmless]);
    assert_eq!(question.conclusion, Some(Conclusion::Recorded));
    assert_eq!((question.known, now), (Some(told), Some(told)));
    let later = known(8, second, Second, PrimaryOnly);
    let (question, now) = tell(record, &[later]);
    assert_eq!(question.conclusion, Some(Conclusion::Nothing));
    assert!(question.later_generation(First).is_some());
    assert_eq!((question.known, now), (Some(later), Some(later)));
}

#[test]
fn a_promotion_is_told_with_three_claims_at_most() {
    let record = |change| known(change, G1, Member::Second, InSyncSet::Both);
    for (overtaken, expected) in [(2, Conclusion::Recorded), (3, Conclusion::Nothing)] {
        let others: Vec<_> = (0..overtaken).map(|number| record(8 + number)).collect();
        let (question, _) = tell(Some(record(7)), &others);
        assert_eq!(question.conclusion, Some(expected), "{overtaken}");
        assert_eq!(question.later_generation(Member::First), None);
    }
}

/// The name lets the witness notice an older copy of this node that is put back.
#[test]
fn a_promotion_adds_the_name_of_the_sync_to_the_record_of_the_witness() {
    let nameless = known(7, generation(4), Member::First, InSyncSet::PrimaryOnly);
    let mut witness = MemoryWitness::with(Some(nameless));
    let query = WitnessQuery::Tell(forced());
    let conclusion = conclude(query, forced_record(), &mut witness);
    assert_eq!(conclusion, Conclusion::Recorded);
    assert_eq!(witness.record.unwrap().sync, sync(2));
}

/// An operator has decided that the older copy is to be kept.
#[test]
fn a_promotion_is_told_with_an_older_copy_too() {
    let later_sync = WitnessRecord {
        sync: sync(3),
        ..present(InSyncSet::Both)
    };
    let mut witness = MemoryWitness::with(Some(later_sync));
    let query = WitnessQuery::Tell(forced());
    let conclusion = conclude(query, forced_record(), &mut witness);
    assert_eq!(conclusion, Conclusion::Recorded);
}

#[test]
fn a_look_makes_no_claim() {
    for record in [None, Some(present(InSyncSet::PrimaryOnly))] {
        let mut witness = MemoryWitness::with(record);
        let conclusion = conclude(WitnessQuery::Look, PRIMARY, &mut witness);
        assert_eq!(conclusion, Conclusion::Nothing);
        assert_eq!(witness.calls, [WitnessCall::Read]);
    }
}

#[test]
fn a_question_that_changes_nothing_is_asked_again_but_not_at_once() {
    let candidate = COMPLETE.become_candidate();
    let takes_over = Conclusion::TakeOver {
        peer_is_complete: false,
    };
    for (query, mine, conclusion, expected) in [
        (WitnessQuery::Look, PRIMARY, Conclusion::Nothing, true),
        (WitnessQuery::Alone, PRIMARY, Conclusion::Nothing, false),
        (WitnessQuery::Alone, PRIMARY, Conclusion::Alone, true),
        // It serves alone by its record already, and waits for the solo grant.
        (WitnessQuery::Alone, ALONE, Conclusion::Alone, false),
        (
            WitnessQuery::TakeOver,
            COMPLETE,
            Conclusion::BecomeCandidate,
            true,
        ),
        (WitnessQuery::TakeOver, candidate, takes_over, true),
        (
            WitnessQuery::TakeOver,
            INCOMPLETE,
            Conclusion::Nothing,
            false,
        ),
        (WitnessQuery::Protect, PRIMARY, Conclusion::Nothing, false),
        (
            WitnessQuery::Tell(forced()),
            ALONE,
            Conclusion::Recorded,
            false,
        ),
        (WitnessQuery::Alone, PRIMARY, Conclusion::OlderCopy, false),
    ] {
        let over = Question::new(query, mine).over(conclusion);
        assert_eq!(over.is_settled, expected, "{query:?} {conclusion:?}");
    }
}
