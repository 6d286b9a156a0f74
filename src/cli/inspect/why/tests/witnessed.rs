//! The explanation of each situation with a witness, by the protection that the witness gives.

use lockstep_driver::report::{FailoverTimesStatus, TimesStatus, WitnessStatus};

use super::*;

/// The words of a witness, in the order of the expected texts.
const PROTECTIONS: [WitnessProtection; 4] = [
    WitnessProtection::Protects,
    WitnessProtection::DoesNotProtect,
    WitnessProtection::Silent,
    WitnessProtection::Empty,
];

const TAKES_OVER: &str = "the other node takes over by itself, 1.5 s after";
const ALONE: &str =
    "changes wait for 750 ms; then this node serves alone by the answer of the witness";
const NOBODY: &str = "nothing serves until the nodes are connected again, or the witness decides";
const IDLE: &str = "nothing changes while the nodes are connected; but no node takes over";
const SILENT: &str = "does not answer this node already";
const EMPTY: &str = "has no record";

/// A status with a witness that gives this protection.
fn with(protection: WitnessProtection, mut store: DatastoreStatus) -> DatastoreStatus {
    let trouble = match protection {
        WitnessProtection::Silent => Some("the witness at 10.0.0.3:7400 does not answer: refused"),
        WitnessProtection::Empty => Some("the witness has no record of this datastore"),
        _ => None,
    };
    store.witness = Some(WitnessStatus {
        address: "10.0.0.3:7400".to_owned(),
        answers: protection != WitnessProtection::Silent,
        protects: protection == WitnessProtection::Protects,
        trouble: trouble.map(str::to_owned),
        unaware: false,
    });
    store.times = Some(TimesStatus {
        ping_ms: 250,
        peer_timeout_ms: 3000,
        pause_limit_ms: None,
        answer_limit_ms: 1000,
        disk_stall_limit_ms: Some(30_000),
        failover: Some(FailoverTimesStatus {
            takeover_ms: 1500,
            alone_ms: 750,
            lease_ms: 1200,
            witness_call_ms: 750,
        }),
    });
    assert_eq!(WitnessProtection::of(&store), protection);
    store
}

fn frozen(mut store: DatastoreStatus) -> DatastoreStatus {
    store.settings.on_peer_loss = OnPeerLoss::Freeze;
    store
}

/// Checks a row of the explanation for each protection.
#[track_caller]
fn assert_row(store: &DatastoreStatus, label: &str, expected: [&str; 4]) {
    for (protection, part) in PROTECTIONS.into_iter().zip(expected) {
        let text = explain("a", &with(protection, store.clone()));
        assert!(
            row(&text, label).contains(part),
            "{protection:?}: {part:?} in {label:?} of\n{text}"
        );
    }
}

#[test]
fn no_place_in_a_text_is_left_empty() {
    for (_, store, _) in cases() {
        if store.peer.is_none() {
            continue;
        }
        for store in [store.clone(), frozen(store)] {
            for protection in PROTECTIONS {
                let text = explain("a", &with(protection, store.clone()));
                for place in ["NAME", "TAKEOVER", "ALONE", "LEASE", "has no witness"] {
                    assert!(!text.contains(place), "{place}: {text}");
                }
                assert!(row(&text, "witness").contains("10.0.0.3:7400, "), "{text}");
            }
        }
    }
}

#[test]
fn a_witness_that_was_not_asked_yet_protects_nobody() {
    let mut unasked = with(WitnessProtection::DoesNotProtect, store(true, true));
    unasked.witness.as_mut().unwrap().answers = false;
    assert_eq!(
        WitnessProtection::of(&unasked),
        WitnessProtection::DoesNotProtect
    );
    assert_eq!(
        WitnessProtection::of(&store(true, true)),
        WitnessProtection::NoWitness
    );
}

/// The node refuses a promotion without the flag if a witness is configured.
#[test]
fn no_promotion_is_offered_without_the_flag() {
    for (_, store, _) in cases() {
        if store.peer.is_none() {
            continue;
        }
        for protection in PROTECTIONS {
            let text = explain("a", &with(protection, store.clone()));
            let plain = text.replace("`lockstep promote alpha --force-data-loss`", "");
            assert!(!plain.contains("promote"), "{protection:?}:\n{text}");
        }
    }
}

#[test]
fn a_primary_in_sync_is_replaced_where_the_witness_protects() {
    let store = store(true, true);
    assert_row(
        &store,
        "if this node fails now",
        [
            TAKES_OVER,
            "does not let the other node take over yet",
            "until the other node reaches the witness",
            "does not let the other node take over yet",
        ],
    );
    assert_row(
        &store,
        "if the other node fails now",
        [ALONE, ALONE, NOBODY, NOBODY],
    );
    assert_row(
        &store,
        "if the link fails now",
        [
            "the node that the witness hears first serves",
            ALONE,
            "unless the other node reaches the witness",
            NOBODY,
        ],
    );
    assert_row(
        &store,
        "if the witness fails now",
        [IDLE, IDLE, SILENT, EMPTY],
    );
}

#[test]
fn a_primary_that_freezes_never_serves_alone() {
    let store = frozen(store(true, true));
    let frozen_row =
        "nothing serves until the nodes are connected again (on_peer_loss = \"freeze\")";
    assert_row(&store, "if the other node fails now", [frozen_row; 4]);
    assert_row(
        &store,
        "if the link fails now",
        [
            "the other node takes over, 1.5 s after",
            frozen_row,
            "unless the other node reaches the witness",
            frozen_row,
        ],
    );
}

#[test]
fn a_primary_that_has_lost_its_secondary_asks_the_witness() {
    let paused = primary(ServiceStatus::Waiting, false, true);
    let asks = "which this node asks 750 ms after the loss of the connection";
    let force = "`lockstep promote alpha --force-data-loss`";
    let restart =
        "if both are lost for good: `lockstep promote alpha --force-data-loss` on this node";
    assert_row(&paused, "waits for", [asks, asks, force, force]);
    assert_row(
        &paused,
        "if the other node fails now",
        ["wait for that node already"; 4],
    );
    assert_row(
        &paused,
        "if the witness fails now",
        [
            "nothing serves until the nodes are connected again",
            "nothing serves until the nodes are connected again",
            SILENT,
            EMPTY,
        ],
    );
    assert_row(
        &frozen(paused),
        "waits for",
        [
            "which takes over if it runs",
            "without limit",
            restart,
            restart,
        ],
    );
}

#[test]
fn a_primary_that_asks_incomplete_mark_waits_for_the_witness() {
    let word = "the answer of the witness that this node may go on alone";
    let force = "if the witness is lost for good: `lockstep promote alpha --force-data-loss`";
    assert_row(&leaving_sync(), "waits for", [word, word, force, force]);
    assert_row(
        &leaving_sync(),
        "if this node fails now",
        [
            TAKES_OVER,
            "take over yet",
            "until the other node reaches the witness",
            "take over yet",
        ],
    );
    assert_row(
        &leaving_sync(),
        "if the witness fails now",
        ["changes wait on", "changes wait on", SILENT, EMPTY],
    );
}

#[test]
fn a_primary_whose_lease_is_over_waits_for_either_of_the_others() {
    for is_connected in [true, false] {
        let expired = primary(ServiceStatus::Undecided, is_connected, true);
        let word = "or the answer of the witness that no other node serves";
        let force = "`lockstep promote alpha --force-data-loss`";
        let restart =
            "if both are lost for good: `lockstep promote alpha --force-data-loss` on this node";
        assert_row(&expired, "why", ["for the time of the lease (1.2 s)"; 4]);
        assert_row(&expired, "waits for", [word, word, force, force]);
        assert_row(
            &expired,
            "if the other node fails now",
            [
                "this node serves alone by the answer",
                "this node serves alone by the answer",
                "nothing serves until the other node is back",
                "nothing serves until the other node is back",
            ],
        );
        assert_row(
            &frozen(expired.clone()),
            "waits for",
            [
                "an answer of the other node (on_peer_loss",
                "an answer of the other node (on_peer_loss",
                restart,
                restart,
            ],
        );
    }
}

#[test]
fn a_primary_alone_needs_a_witness_after_a_restart() {
    let alone = primary(ServiceStatus::Alone, false, false);
    assert_row(
        &alone,
        "if this node fails now",
        [
            "nothing serves until this node is back: only",
            "nothing serves until this node is back: only",
            "and reaches the other node or a witness that decides",
            "and reaches the other node or a witness that decides",
        ],
    );
    assert_row(
        &alone,
        "if the other node fails now",
        ["serves alone already"; 4],
    );
    let resyncing = primary(ServiceStatus::Mirrored, true, false);
    assert_row(&resyncing, "if this node fails now", [ONLY_COPY; 4]);
    assert_row(
        &resyncing,
        "if the witness fails now",
        [
            "no node takes over after the resync",
            "no node takes over after the resync",
            SILENT,
            "no node takes over after the resync",
        ],
    );
}

#[test]
fn a_secondary_takes_over_where_the_witness_protects() {
    let takes_over = "this node takes over by itself, 1.5 s after";
    let not_yet = "has not heard from the witness that it may take over";
    let if_heard = "until this node reaches the witness";
    for store in [secondary(true, true, true), secondary(false, true, true)] {
        assert_row(
            &store,
            "if the other node fails now",
            [takes_over, not_yet, if_heard, not_yet],
        );
        let cut = "the primary serves alone if it reaches the witness";
        assert_row(
            &store,
            "if the link fails now",
            [
                "a primary that does not reach the witness is replaced",
                cut,
                cut,
                cut,
            ],
        );
        assert_row(
            &store,
            "if the witness fails now",
            [IDLE, IDLE, SILENT, EMPTY],
        );
    }
    let cut_off = secondary(false, false, true);
    assert_row(
        &cut_off,
        "waits for",
        [
            "otherwise this node takes over, 1.5 s after",
            "because the primary serves alone",
            "the primary or the witness",
            "because the primary serves alone",
        ],
    );
    assert_row(
        &cut_off,
        "if the other node fails now",
        [takes_over, not_yet, if_heard, not_yet],
    );
}

#[test]
fn an_incomplete_copy_takes_over_from_nobody() {
    for store in [
        secondary(false, true, false),
        secondary(false, false, false),
        with_failed_disk(secondary(false, false, true)),
    ] {
        assert_row(
            &store,
            "if the witness fails now",
            ["takes over from nobody"; 4],
        );
        assert_row(
            &store,
            "if the other node fails now",
            ["nothing serves until the primary is back"; 4],
        );
    }
}

#[test]
fn a_primary_with_a_failed_disk_is_replaced() {
    let failed = with_failed_disk(primary(ServiceStatus::Refused, true, true));
    assert_row(
        &failed,
        "waits for",
        [
            "the other node, which takes over by itself",
            "an operator",
            "an operator",
            "an operator",
        ],
    );
    assert_row(
        &failed,
        "if this node fails now",
        [
            TAKES_OVER,
            "take over yet",
            "until the other node reaches the witness",
            "take over yet",
        ],
    );
}
