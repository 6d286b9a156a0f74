//! The part of the witness in the text of `lockstep status`, and the times that are in force.

use std::fmt::Write;

use lockstep_driver::report::{DatastoreStatus, TimesStatus, WitnessStatus};
use lockstepfs::config::Role;
use lockstepfs::service_manager::one_line;

/// Whether the witness of a datastore has failed to answer. A witness that was not asked yet has not.
pub(super) fn is_silent(store: &DatastoreStatus) -> bool {
    let witness = store.witness.as_ref();
    witness.is_some_and(|witness| !witness.answers && witness.trouble.is_some())
}

/// The value of the row `witness`; `None` for a datastore without a peer.
pub(in crate::cli) fn row(store: &DatastoreStatus) -> Option<String> {
    store.peer.as_ref()?;
    let Some(witness) = &store.witness else {
        let (is_fit, place) = match store.settings.role {
            Role::Primary => (store.is_peer_fit(), "on the other node"),
            Role::Secondary => (store.is_fit(), "on this node"),
        };
        if !is_fit {
            return Some("none: nothing is automatic".to_owned());
        }
        return Some(format!(
            "none: nothing is automatic; if the primary dies, run `lockstep promote {}` {place}",
            store.settings.name
        ));
    };
    let answer = answer(store, witness);
    // An error of the witness names its address.
    let own = format!("the witness at {} ", witness.address);
    let answer = answer.strip_prefix(&own).unwrap_or(&answer);
    Some(format!("{}, {answer}", witness.address))
}

fn answer(store: &DatastoreStatus, witness: &WitnessStatus) -> String {
    match &witness.trouble {
        _ if witness.answers && witness.protects => {
            let protected = match store.settings.role {
                Role::Primary => "the other node takes over if this node dies",
                Role::Secondary => "this node takes over if the primary dies",
            };
            format!("answers, and protects: {protected}")
        }
        _ if witness.answers && store.settings.role == Role::Secondary && store.sync.in_sync => {
            "answers, and has not told this node yet that it protects: this node asks every 5 s"
                .to_owned()
        }
        _ if witness.answers && store.settings.role == Role::Secondary => {
            "answers, but did not let this node take over when it was last asked, at most 5 s ago"
                .to_owned()
        }
        _ if witness.answers => {
            "answers, but does NOT PROTECT yet: no node takes over before the nodes are in sync"
                .to_owned()
        }
        Some(trouble) => one_line(trouble),
        None => "not asked yet".to_owned(),
    }
}

/// The next step for a witness that does not answer; `None` for any other.
pub(super) fn step(store: &DatastoreStatus) -> Option<&'static str> {
    is_silent(store).then_some(
        "bring the witness back: without it no node takes over, and a primary that loses its peer serves nothing; \
         see \"The witness\" in docs/operations/witness.md",
    )
}

/// The times in force, a line for each.
pub(super) fn times(store: &DatastoreStatus) -> String {
    let Some(times) = &store.times else {
        return "  times       none: there is no peer\n".to_owned();
    };
    let mut text = "  times in force, in milliseconds\n".to_owned();
    for (name, millis, meaning) in rows_of(times) {
        let millis = millis.map_or_else(|| "none".to_owned(), |millis| millis.to_string());
        // Writing to a String cannot fail.
        let _ = writeln!(text, "    {name:<19} {millis:>6}  {meaning}");
    }
    text
}

fn rows_of(times: &TimesStatus) -> Vec<(&'static str, Option<u64>, &'static str)> {
    let pause = match times.pause_limit_ms {
        Some(_) => "wait of acknowledgements for a lost peer; then on_peer_loss decides",
        None => "the witness ends the wait of acknowledgements for a lost peer",
    };
    let mut rows = vec![
        (
            "ping",
            Some(times.ping_ms),
            "between two signs of life on the connection",
        ),
        (
            "peer_timeout_ms",
            Some(times.peer_timeout_ms),
            "silence of the peer after which the connection is lost",
        ),
        ("pause_limit_ms", times.pause_limit_ms, pause),
        (
            "answer_limit_ms",
            Some(times.answer_limit_ms),
            "wait of an operation for a connected peer; then on_peer_loss decides",
        ),
        (
            "disk_stall_limit_ms",
            times.disk_stall_limit_ms,
            match times.disk_stall_limit_ms {
                Some(_) => "without an answer of this node's disk, which then hangs",
                None => "nobody watches the disk of this node",
            },
        ),
    ];
    if let Some(failover) = &times.failover {
        rows.extend([
            (
                "failover_after_ms",
                Some(failover.takeover_ms),
                "after the loss of the connection the secondary asks to take over",
            ),
            (
                "alone",
                Some(failover.alone_ms),
                "after the loss of the connection the primary asks to serve alone",
            ),
            (
                "lease",
                Some(failover.lease_ms),
                "for which an answer of the secondary lets the primary serve",
            ),
            (
                "witness call",
                Some(failover.witness_call_ms),
                "longest wait for an answer of the witness",
            ),
        ]);
    }
    rows
}
