//! The explanation of each situation.

use lockstep_driver::report::{PoisonStatus, ServiceStatus};
use lockstepfs::config::{OnPeerLoss, Role};

use super::*;
use crate::cli::inspect::status::tests::store;

mod advice;
mod witnessed;

/// A status, by the parts that differ: connection, mark, and service.
fn primary(service: ServiceStatus, is_connected: bool, is_marked: bool) -> DatastoreStatus {
    let mut store = store(false, true);
    store.sync.service = service;
    store.sync.copy.marked_in_sync = is_marked;
    store.sync.copy.complete = true;
    store.peer.as_mut().unwrap().connected = is_connected;
    store
}

fn secondary(is_in_sync: bool, is_connected: bool, is_marked: bool) -> DatastoreStatus {
    let mut store = primary(ServiceStatus::None, is_connected, is_marked);
    store.settings.role = Role::Secondary;
    store.sync.in_sync = is_in_sync;
    store.sync.copy.complete = is_marked;
    store
}

fn leaving_sync() -> DatastoreStatus {
    let mut store = primary(ServiceStatus::Waiting, true, true);
    store.sync.state = "leaving sync".to_owned();
    store
}

fn steadying() -> DatastoreStatus {
    let mut store = primary(ServiceStatus::Alone, true, false);
    store.sync.state = "out of sync".to_owned();
    store
}

fn with_failed_disk(mut store: DatastoreStatus) -> DatastoreStatus {
    store.poisoned = Some(PoisonStatus {
        reason: "cannot flush".to_owned(),
        time: "2025-11-20T21:46:00Z".to_owned(),
    });
    store
}

/// A situation with its status, and a text that the explanation must have for: the cause, a failure of this node, a
/// failure of the other node.
type Case = (Situation, DatastoreStatus, [&'static str; 3]);

const PROMOTE_THERE: &str = "or until `lockstep promote alpha` on the other node";
const PROMOTE_HERE: &str = "or until `lockstep promote alpha` on this node";
const ONLY_COPY: &str = "only its copy is complete";

fn cases() -> Vec<Case> {
    [idle(), primaries(), secondaries()].concat()
}

fn idle() -> Vec<Case> {
    let mut stopped = primary(ServiceStatus::None, false, false);
    stopped.sync.started = false;
    vec![
        (
            Situation::NotStarted,
            stopped,
            ["is not open", "nothing changes", "on the other node"],
        ),
        (
            Situation::Unmirrored,
            store(false, false),
            ["no other node", "until this node is back", "no other node"],
        ),
        (
            Situation::PrimaryFailedDisk {
                is_other_complete: true,
            },
            with_failed_disk(primary(ServiceStatus::Refused, true, true)),
            [
                "disk of this node has failed",
                "`lockstep promote alpha`",
                "reads go on",
            ],
        ),
        (
            Situation::PrimaryFailedDisk {
                is_other_complete: false,
            },
            with_failed_disk(primary(ServiceStatus::Refused, false, false)),
            [
                "disk of this node has failed",
                "no other copy is known",
                "reads go on",
            ],
        ),
        (
            Situation::SecondaryFailedDisk,
            with_failed_disk(secondary(false, false, true)),
            [
                "not updated any more",
                "nothing changes",
                "do not use this copy",
            ],
        ),
        (
            Situation::Undecided,
            primary(ServiceStatus::Undecided, false, true),
            ["may have been promoted", "nothing serves", PROMOTE_HERE],
        ),
        (
            Situation::Changing,
            primary(ServiceStatus::None, true, true),
            ["about to change", "decides when", "until the nodes meet"],
        ),
    ]
}

fn primaries() -> Vec<Case> {
    use ServiceStatus::{Alone, Mirrored, Waiting, WritesAlone};
    vec![
        (
            Situation::InSync,
            store(true, true),
            ["each change goes to both", PROMOTE_THERE, "pause_limit_ms"],
        ),
        (
            Situation::Paused,
            primary(Waiting, false, true),
            ["is lost", PROMOTE_THERE, "wait for that node already"],
        ),
        (
            Situation::Settling,
            primary(Waiting, true, true),
            ["in flight", PROMOTE_THERE, "pause_limit_ms"],
        ),
        (
            Situation::Settling,
            primary(Waiting, false, false),
            ["records on its disk", ONLY_COPY, "pause_limit_ms"],
        ),
        (
            Situation::LeavingSync,
            leaving_sync(),
            ["does not follow", PROMOTE_THERE, "pause_limit_ms"],
        ),
        (
            Situation::Resyncing,
            primary(Mirrored, true, false),
            ["brought up to date", ONLY_COPY, "serves alone"],
        ),
        (
            Situation::Resyncing,
            primary(WritesAlone, true, false),
            ["brought up to date", ONLY_COPY, "serves alone"],
        ),
        (
            Situation::Steadying,
            steadying(),
            ["were lost before", ONLY_COPY, "serves alone already"],
        ),
        (
            Situation::Alone,
            primary(Alone, false, false),
            ["lacks changes", ONLY_COPY, "serves alone already"],
        ),
    ]
}

fn secondaries() -> Vec<Case> {
    vec![
        (
            Situation::Following,
            secondary(true, true, true),
            ["is the secondary", "lets changes wait", PROMOTE_HERE],
        ),
        (
            Situation::CatchingUp,
            secondary(false, true, true),
            ["in flight", "lets changes wait", PROMOTE_HERE],
        ),
        (
            Situation::CutOff,
            secondary(false, false, true),
            ["was complete then", "no second copy", PROMOTE_HERE],
        ),
        (
            Situation::BeingResynced,
            secondary(false, true, false),
            ["brings this copy", "begins again", "not complete"],
        ),
        (
            Situation::Incomplete,
            secondary(false, false, false),
            ["may lack changes", "nothing changes", "not complete"],
        ),
    ]
}

/// The text behind a label.
fn row<'a>(text: &'a str, label: &str) -> &'a str {
    let mut rows = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix(label));
    rows.next()
        .unwrap_or_else(|| panic!("no {label:?} in {text}"))
}

#[test]
fn each_situation_is_explained() {
    for (situation, store, [why, this, other]) in cases() {
        assert_eq!(Situation::of(&store), situation);
        let text = explain("a", &store);
        for (label, part) in [
            ("why", why),
            ("if this node fails now", this),
            ("if the other node fails now", other),
        ] {
            assert!(
                row(&text, label).contains(part),
                "{situation:?}: {part:?} in\n{text}"
            );
        }
        assert!(!row(&text, "waits for").trim().is_empty(), "{text}");
        assert!(
            !row(&text, "if the link fails now").trim().is_empty(),
            "{text}"
        );
        assert!(
            row(&text, "if the witness fails now").contains("has no witness"),
            "{text}"
        );
        assert!(!text.contains("NAME"), "{text}");
    }
}

/// A promotion without the flag is only offered where the node would accept it.
#[test]
fn no_incomplete_copy_is_offered_for_a_promotion() {
    for (situation, store, _) in cases() {
        let text = explain("a", &store);
        let is_behind = matches!(
            situation,
            Situation::BeingResynced | Situation::Incomplete | Situation::SecondaryFailedDisk
        );
        let other_is_behind = matches!(
            situation,
            Situation::Steadying | Situation::Resyncing | Situation::Alone
        );
        if is_behind || other_is_behind {
            assert!(!text.contains("promote"), "{situation:?}:\n{text}");
        }
    }
}

#[test]
fn the_policy_for_a_lost_peer_decides_what_its_loss_does() {
    let mut store = store(true, true);
    let text = explain("a", &store);
    assert!(row(&text, "if the link fails now").contains("then this node serves alone"));
    store.settings.on_peer_loss = OnPeerLoss::Freeze;
    let text = explain("a", &store);
    assert!(row(&text, "if the link fails now").contains("\"freeze\""));
    store.sync.in_sync = false;
    store.sync.service = ServiceStatus::Waiting;
    store.peer.as_mut().unwrap().connected = false;
    let text = explain("a", &store);
    assert!(row(&text, "waits for").contains("without limit"), "{text}");
}

#[test]
fn the_last_problem_is_shown_beside_the_cause() {
    let mut store = primary(ServiceStatus::Alone, false, false);
    store.sync.reason = Some("connection refused".to_owned());
    assert!(row(&explain("a", &store), "reason").contains("connection refused"));
    let failed = with_failed_disk(store);
    assert!(row(&explain("a", &failed), "reason").contains("cannot flush"));
}
