//! The text of `lockstep status`.

use lockstep_driver::report::{
    DiskStallStatus, FailoverTimesStatus, OwnSnapshotStatus, PoisonStatus, SettingsStatus,
    SlowOperationStatus, SyncStatus, TimesStatus, WitnessStatus,
};
use lockstep_testbed::status::alpha;

use super::*;

mod witnessed;

pub(in crate::cli) fn store(in_sync: bool, peer: bool) -> DatastoreStatus {
    let service = if in_sync {
        ServiceStatus::Mirrored
    } else {
        ServiceStatus::Alone
    };
    let mut store = alpha(service, in_sync);
    "synced and connected".clone_into(&mut store.sync.state);
    store.sync.since_ms = 65_000;
    "1.42".clone_into(&mut store.work.osn);
    store.peer = store.peer.filter(|_| peer);
    store
}

/// The text of a status.
pub(in crate::cli) fn text_of(store: &DatastoreStatus) -> String {
    store_text(store)
}

#[test]
fn the_snapshots_of_the_own_copy_are_shown() {
    let mut mixed = store(true, true);
    mixed.sync.copy.mixed = true;
    let text = store_text(&mixed);
    assert!(
        text.contains("fallback    none: the disk had no room"),
        "{text}"
    );
    let fallback = OwnSnapshotStatus {
        name: "fallback".to_owned(),
        time: "2025-11-20T02:13:05Z".to_owned(),
        osn: "1.42".to_owned(),
        exact: true,
        lost_generation: Some(3),
    };
    let lost = OwnSnapshotStatus {
        name: "lost-2".to_owned(),
        lost_generation: Some(2),
        ..fallback.clone()
    };
    mixed.sync.copy.own_snapshots = vec![lost, fallback];
    let text = store_text(&mixed);
    for row in [
        "fallback    the whole copy from before the resync that began at 2025-11-20T02:13:05Z, with the operations up to 1.42\n",
        "lost copy   snapshot lost-2: this node may have had something alone when it lost its role in generation 2\n",
    ] {
        assert!(text.contains(row), "{text}");
    }
    mixed.sync.copy.own_snapshots[1].exact = false;
    assert!(store_text(&mixed).contains("1.42, as its disk had it after a loss of power\n"));
}

#[test]
fn programs_that_wait_for_the_node_are_shown() {
    let mut waiting = store(true, true);
    assert!(!store_text(&waiting).contains("wait here"));
    waiting.work.waiting_requests = 3;
    let text = store_text(&waiting);
    let expected = "standby     programs wait here until this node serves: 3 requests\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_cost_of_a_loss_of_power_is_shown() {
    let mut with_base = store(true, true);
    assert!(!store_text(&with_base).contains("barrier"));
    with_base.sync.barrier_since_ms = Some(12_000);
    let text = store_text(&with_base);
    let expected = "barrier     12.0 s ago; if one server loses its power, a resync compares what was written since\n";
    assert!(text.contains(expected), "{text}");
    with_base.resync = Some(resync_text::tests::quarter());
    let text = store_text(&with_base);
    let expected = "compares what was written since, and what was left of this one then\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_healthy_datastore_has_no_explanation() {
    let text = store_text(&store(true, true));
    assert!(text.starts_with("alpha: in sync\n"), "{text}");
    assert!(
        text.contains("state       synced and connected, for 1 min 5 s\n"),
        "{text}"
    );
    assert!(!text.contains('→'), "{text}");
}

#[test]
fn a_datastore_that_is_not_in_sync_is_explained() {
    let text = store_text(&store(false, true));
    assert!(text.starts_with("alpha: NOT IN SYNC\n"), "{text}");
    assert!(text.contains("on this node only"), "{text}");
    assert!(text.contains("reached at 10.0.0.2:7400"), "{text}");
}

/// The text depends on the effect of a change, and on `on_peer_loss` only where the setting matters.
#[test]
fn the_text_says_where_new_changes_go() {
    use OnPeerLoss::{Continue, Freeze};
    use ServiceStatus::{Alone, Mirrored, None, Waiting, WritesAlone};
    let texts = [
        (Mirrored, Continue, "new changes are on both nodes"),
        (Mirrored, Freeze, "new changes are on both nodes"),
        (
            Alone,
            Continue,
            "new changes are on this node only (on_peer_loss",
        ),
        (
            Alone,
            Freeze,
            "new changes are on this node only: on_peer_loss",
        ),
        (WritesAlone, Freeze, "changes of names and attributes wait"),
        (
            Waiting,
            Continue,
            "nothing is acknowledged until the nodes are in sync or this node goes on alone",
        ),
        (
            Waiting,
            Freeze,
            "nothing is acknowledged until the nodes are in sync",
        ),
        (None, Freeze, "this copy may be older"),
    ];
    for (service, on_peer_loss, expected) in texts {
        let store = DatastoreStatus {
            settings: SettingsStatus {
                on_peer_loss,
                ..store(false, true).settings
            },
            sync: SyncStatus {
                service,
                ..store(false, true).sync
            },
            ..store(false, true)
        };
        let text = store_text(&store);
        assert!(
            text.contains(expected),
            "{service:?} {on_peer_loss:?}: {text}"
        );
    }
}

#[test]
fn a_complete_copy_on_a_secondary_is_reported() {
    let mut survivor = store(false, true);
    survivor.settings.role = Role::Secondary;
    survivor.sync.service = ServiceStatus::None;
    survivor.sync.copy.marked_in_sync = true;
    let text = store_text(&survivor);
    assert!(text.contains("complete as of"), "{text}");
    assert!(text.contains("reached at 10.0.0.2:7400"), "{text}");
    assert!(text.contains("does not serve by itself"), "{text}");
    assert!(text.contains("`lockstep promote alpha`"), "{text}");
    assert!(text.contains("WARNING: if the other node"), "{text}");
    let mut aged = survivor.clone();
    aged.sync.copy.as_of = Some("2025-11-20T02:13:05Z".to_owned());
    let text = store_text(&aged);
    assert!(
        text.contains("complete as of 2025-11-20T02:13:05Z"),
        "{text}"
    );
    assert!(
        text.contains("with its copy as of 2025-11-20T02:13:05Z"),
        "{text}"
    );
    let mut unfit = survivor.clone();
    unfit.sync.copy.marked_in_sync = false;
    unfit.sync.copy.complete = false;
    assert!(!store_text(&unfit).contains("promote"));
    let mut led = survivor;
    led.peer.as_mut().unwrap().connected = true;
    assert!(!store_text(&led).contains("makes this node serve"));
}

/// Whether the peer is gone or refused, the operator learns what the node waits for, and the way out with its price.
#[test]
fn an_undecided_primary_says_what_it_waits_for() {
    for obstacle in [false, true] {
        let mut undecided = store(false, true);
        undecided.sync.service = ServiceStatus::Undecided;
        undecided.sync.copy.marked_in_sync = true;
        undecided.peer.as_mut().unwrap().obstacle = obstacle;
        assert!(!is_healthy(&undecided));
        let text = store_text(&undecided);
        for expected in [
            "alpha: NOT SERVED (undecided which node serves)\n",
            "role        primary\n",
            "serves nothing until it has met the other node",
            "`lockstep promote alpha` makes this node serve",
            "WARNING: if the other node serves, too,",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert_eq!(text.contains("the nodes then decide"), !obstacle, "{text}");
    }
}

#[test]
fn a_failed_disk_comes_before_everything_else() {
    for peer in [true, false] {
        let mut failed = store(true, peer);
        failed.poisoned = Some(PoisonStatus {
            reason: "cannot sync content/00/07: Input/output error (os error 5)".to_owned(),
            time: "2025-11-20T21:46:00Z".to_owned(),
        });
        assert!(!is_healthy(&failed));
        let text = store_text(&failed);
        assert!(text.starts_with("alpha: POISONED"), "{text}");
        let line = "disk        failed at 2025-11-20T21:46:00Z: cannot sync content/00/07: Input";
        assert!(text.contains(line), "{text}");
        assert_eq!(
            text.contains("`lockstep promote alpha` there"),
            peer,
            "{text}"
        );
        failed.sync.copy.marked_in_sync = false;
        let text = store_text(&failed);
        assert!(text.contains("clear-poison alpha --accept-loss`"), "{text}");
        failed.settings.role = Role::Secondary;
        assert!(store_text(&failed).contains("clear-poison alpha`"));
    }
}

#[test]
fn the_failed_disk_of_a_primary_leads_to_the_other_node_only_if_that_can_serve() {
    let failed = |answers| DatastoreStatus {
        poisoned: Some(PoisonStatus {
            reason: "cannot sync".to_owned(),
            time: "2025-11-20T21:46:00Z".to_owned(),
        }),
        // A call without an answer leaves what the last answer has said.
        witness: Some(WitnessStatus {
            address: "10.0.0.3:7400".to_owned(),
            answers,
            protects: true,
            trouble: None,
            unaware: false,
        }),
        ..store(true, true)
    };
    let steps = explanation(&failed(true)).concat();
    assert!(steps.contains("takes over by itself; then"), "{steps}");
    let steps = explanation(&failed(false)).concat();
    assert!(steps.contains("bring the witness back"), "{steps}");
    assert!(!steps.contains("takes over by itself"), "{steps}");
    let mut both = failed(true);
    both.peer.as_mut().unwrap().disk_failed = true;
    let steps = explanation(&both).concat();
    assert!(!steps.contains("takes over"), "{steps}");
    assert!(steps.contains("--accept-loss`"), "{steps}");
}

/// A disk that hangs, on this node or by the word of the other one, with the next step.
#[test]
fn a_disk_that_hangs_is_shown_with_the_next_step() {
    let stalled = |gave_way| {
        let mut store = store(true, true);
        store.sync.disk_stall = Some(DiskStallStatus {
            silent_ms: 34_000,
            gave_way,
        });
        store
    };
    let text = store_text(&stalled(false));
    for expected in [
        "alpha: THE DISK OF THIS NODE HANGS\n",
        "disk        HANGS: it has not answered for 34.0 s, and reports no error; programs wait; without a witness",
        "`lockstep promote alpha` on the other node",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let text = store_text(&stalled(true));
    assert!(text.contains("has stopped serving"), "{text}");
    assert!(
        text.contains("→ repair the disk: once it answers, this node comes back"),
        "{text}"
    );
    assert!(!is_healthy(&stalled(true)) && is_healthy(&store(true, true)));

    let mut other = store(true, true);
    other.settings.role = Role::Secondary;
    other.peer.as_mut().unwrap().disk_silent_ms = Some(40_000);
    let text = store_text(&other);
    assert!(
        text.contains("peer's disk HANGS: it has not answered for 40.0 s"),
        "{text}"
    );
    assert!(
        text.contains("`lockstep promote alpha` on this node"),
        "{text}"
    );
    assert!(!is_healthy(&other));
}

#[test]
fn a_failed_disk_of_the_other_node_does_not_go_away_by_itself() {
    let mut alone = store(false, true);
    alone.sync.reason = Some("the secondary's disk failed".to_owned());
    alone.peer.as_mut().unwrap().disk_failed = true;
    let text = store_text(&alone);
    assert!(text.contains("repair the disk of the other node"), "{text}");
    assert!(!text.contains("by itself"), "{text}");
}

/// Two nodes that served alone, a wrong uuid, a full disk: a start of the other node would not help.
#[test]
fn an_obstacle_is_not_solved_by_starting_the_other_node() {
    let mut alone = store(false, true);
    alone.sync.reason = Some("the peer refuses this node".to_owned());
    alone.peer.as_mut().unwrap().obstacle = true;
    let text = store_text(&alone);
    assert!(text.contains("solve the problem above"), "{text}");
    assert!(
        !text.contains("make sure that the other node runs"),
        "{text}"
    );
}

#[test]
fn a_datastore_that_was_not_started_says_why() {
    let mut failed = store(false, true);
    failed.sync.started = false;
    failed.sync.reason = Some("mount point /srv/alpha does not exist".to_owned());
    assert!(!is_healthy(&failed));
    let text = store_text(&failed);
    assert!(text.starts_with("alpha: NOT STARTED\n"), "{text}");
    assert!(
        text.contains("reason      mount point /srv/alpha"),
        "{text}"
    );
    assert!(text.contains("tries again"), "{text}");
}

#[test]
fn a_datastore_in_sync_with_a_reason_needs_an_operator() {
    for (has_peer, headline) in [
        (true, "alpha: in sync, but NEEDS AN OPERATOR\n"),
        (false, "alpha: not mirrored, and NEEDS AN OPERATOR\n"),
    ] {
        let mut moved = store(has_peer, has_peer);
        assert!(is_healthy(&moved));
        moved.sync.reason = Some("the directory of the store was moved".to_owned());
        assert!(!is_healthy(&moved));
        let text = store_text(&moved);
        assert!(text.starts_with(headline), "{text}");
        assert!(
            text.contains("  reason      the directory of the store was moved\n"),
            "{text}"
        );
    }
}

#[test]
fn nodes_with_differences_are_not_healthy() {
    let mut different = store(true, true);
    let mut verified = VerifiedStatus {
        time: "2025-11-20T21:46:00Z".to_owned(),
        identical: false,
        differences_total: 2,
        differences: vec!["/a: size 1 here, 2 there".to_owned()],
        only_touched: false,
        sent_again: 0,
    };
    different.verified = Some(verified.clone());
    assert!(!is_healthy(&different));
    let text = store_text(&different);
    assert!(
        text.starts_with("alpha: in sync, but NOT IDENTICAL\n"),
        "{text}"
    );
    assert!(
        text.contains("found 2 differences at 2025-11-20T21:46:00Z: /a: size"),
        "{text}"
    );
    (verified.identical, verified.sent_again) = (true, 3);
    let again = verified_text(&verified);
    let expected = "; 3 differed at the end of a resync, which has sent them again: /a: size 1";
    assert!(again.contains(expected), "{again}");
    different.verified = Some(verified);
    assert!(is_healthy(&different));
    assert!(store_text(&different).starts_with("alpha: in sync\n"));
}

#[test]
fn the_progress_of_a_resync_is_shown() {
    let mut resyncing = store(false, true);
    assert!(!store_text(&resyncing).contains("resync"));
    resyncing.resync = Some(resync_text::tests::quarter());
    let text = store_text(&resyncing);
    let line = "resync      content: everything, 12 of 3,000 files done, 1.00 GiB of 4.00 GiB compared (25 %)";
    assert!(text.contains(line), "{text}");
}

#[test]
fn the_limits_of_a_resync_are_shown_if_there_are_some() {
    let mut limited = store(true, true);
    assert!(!store_text(&limited).contains("limits"));
    limited.settings.resync_bytes_per_second = Some(50 << 20);
    limited.settings.resync_pause_above_ms = Some(20);
    let text = store_text(&limited);
    let line = "limits      a resync from this node reads at most 50.0 MiB in a second, and pauses while operations of programs \
                take longer than 20 ms\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn an_unmirrored_datastore_is_healthy_and_shown_as_unmirrored() {
    let single = store(false, false);
    assert!(is_healthy(&single));
    assert!(!is_healthy(&store(false, true)));
    assert!(
        store_text(&single).starts_with("alpha: not mirrored"),
        "{}",
        store_text(&single)
    );
}

#[test]
fn an_unknown_name_is_refused_with_the_existing_names() {
    let mut status = NodeStatus {
        node: "a".to_owned(),
        version: String::new(),
        pid: 1,
        fingerprint: None,
        datastores: vec![store(true, true)],
    };
    let error = keep_only(&mut status.clone(), "beta")
        .unwrap_err()
        .to_string();
    assert!(error.contains("name one of: alpha"), "{error}");
    assert!(keep_only(&mut status, "alpha").is_ok());
}

/// A datastore in sync with a witness, by the answer of the witness.
pub(in crate::cli) fn witnessed(
    answers: bool,
    protects: bool,
    trouble: Option<&str>,
) -> DatastoreStatus {
    DatastoreStatus {
        witness: Some(WitnessStatus {
            address: "10.0.0.3:7400".to_owned(),
            answers,
            protects,
            trouble: trouble.map(str::to_owned),
            unaware: false,
        }),
        ..store(true, true)
    }
}

#[test]
fn verbose_shows_every_time_in_force() {
    let mut plain = store(true, true);
    let times = TimesStatus {
        ping_ms: 500,
        peer_timeout_ms: 3000,
        pause_limit_ms: Some(10_000),
        answer_limit_ms: 60_000,
        disk_stall_limit_ms: Some(30_000),
        failover: None,
    };
    plain.times = Some(times);
    let said = witness_text::times(&plain);
    for line in [
        "    ping                   500  between",
        "    peer_timeout_ms       3000  silence",
        "    pause_limit_ms       10000  wait",
        "    answer_limit_ms      60000  wait",
        "    disk_stall_limit_ms  30000  without",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(!said.contains("lease"), "{said}");
    plain.times = Some(TimesStatus {
        pause_limit_ms: None,
        failover: Some(FailoverTimesStatus {
            takeover_ms: 1500,
            alone_ms: 750,
            lease_ms: 1200,
            witness_call_ms: 751,
        }),
        ..times
    });
    let said = witness_text::times(&plain);
    for line in [
        "    pause_limit_ms        none  the witness",
        "    failover_after_ms     1500  after",
        "    alone                  750  after",
        "    lease                 1200  for",
        "    witness call           751  longest",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(witness_text::times(&store(false, false)).contains("none: there is no peer"));
}

#[test]
fn a_slow_operation_is_named() {
    let mut slow = store(true, true);
    assert!(!store_text(&slow).contains("slow"));
    slow.work.slow_operation = Some(SlowOperationStatus {
        operation: "fallocate".to_owned(),
        inode: 12,
        since_ms: 37_000,
    });
    let text = store_text(&slow);
    assert!(text.contains("fallocate of inode 12, for 37.0 s"), "{text}");
}
