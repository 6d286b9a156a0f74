//! A disk that hangs, in the text of `lockstep status` and `lockstep why`.

use std::time::Duration;

use lockstep_driver::report::DatastoreStatus;
use lockstepfs::config::Role;

use crate::cli::terminal::duration;

/// Whether the disk of either node hangs.
pub(super) fn is_stuck(store: &DatastoreStatus) -> bool {
    store.sync.disk_stall.is_some() || peer_silent_ms(store).is_some()
}

/// The rows about disks that hang.
pub(super) fn rows(store: &DatastoreStatus) -> impl Iterator<Item = (&'static str, String)> {
    let rows = [("disk", own(store)), ("peer's disk", of_peer(store))];
    rows.into_iter()
        .filter_map(|(label, text)| Some((label, text?)))
}

/// The disk of this node, if it hangs.
pub(in crate::cli) fn own(store: &DatastoreStatus) -> Option<String> {
    let stall = store.sync.disk_stall?;
    let effect = match (store.settings.role, &store.witness) {
        _ if stall.gave_way => {
            "this node has stopped serving, so that the other node takes over by the answer of the witness"
        }
        (Role::Secondary, _) => {
            "this copy does not follow; the primary waits for it up to its answer_limit_ms"
        }
        (Role::Primary, _) if store.peer.is_none() => "programs wait, and there is no other node",
        (Role::Primary, None) => "programs wait; without a witness nothing is automatic",
        (Role::Primary, Some(_)) => {
            "programs wait; the other node cannot take over now: it is not in sync, its disk hangs, too, or the witness \
             gives no answer"
        }
    };
    Some(format!("{}; {effect}", hangs(stall.silent_ms)))
}

/// The disk of the other node, if it hangs by the word of that node.
pub(in crate::cli) fn of_peer(store: &DatastoreStatus) -> Option<String> {
    peer_silent_ms(store).map(hangs)
}

/// The next step of an operator for a disk that hangs.
pub(in crate::cli) fn step(store: &DatastoreStatus) -> Option<String> {
    let name = &store.settings.name;
    let has_witness = store.witness.is_some();
    let role = store.settings.role;
    let protects = store
        .witness
        .as_ref()
        .is_some_and(|witness| witness.protects);
    let Some(stall) = store.sync.disk_stall else {
        peer_silent_ms(store)?;
        return Some(match (role, has_witness) {
            (Role::Primary, _) => "repair the disk of the other node".to_owned(),
            (Role::Secondary, _) if !store.is_fit() => {
                "repair the disk of the primary: this copy is not complete, or its disk does not work either".to_owned()
            }
            (Role::Secondary, true) if !protects => {
                "repair the disk of the primary, and bring the witness back if it does not answer".to_owned()
            }
            (Role::Secondary, true) => {
                "repair the disk of the primary, or switch its server off: this node then takes over if it can".to_owned()
            }
            (Role::Secondary, false) => format!(
                "repair the disk of the primary; or switch its server off, then run `lockstep promote {name}` on this node"
            ),
        });
    };
    Some(match (role, has_witness) {
        _ if stall.gave_way => {
            "repair the disk: once it answers, this node comes back by itself".to_owned()
        }
        (Role::Primary, _) if store.peer.is_some() && !store.is_peer_fit() => {
            "repair the disk: the other copy is not complete, or its disk does not work either, so leave that node in its role"
                .to_owned()
        }
        (Role::Primary, true) if !protects => {
            "repair the disk: the witness does not let the other node take over".to_owned()
        }
        (Role::Primary, true) => {
            "repair the disk, or switch this server off: the other node then takes over if it can"
                .to_owned()
        }
        (Role::Primary, false) if store.peer.is_some() => format!(
            "repair the disk; or switch this server off, because a process that waits for its disk may not end, then run \
             `lockstep promote {name}` on the other node"
        ),
        _ => "repair the disk: once it answers, this node goes on by itself".to_owned(),
    })
}

fn peer_silent_ms(store: &DatastoreStatus) -> Option<u64> {
    store.peer.as_ref()?.disk_silent_ms
}

fn hangs(silent_ms: u64) -> String {
    let silent = duration(Duration::from_millis(silent_ms));
    format!("HANGS: it has not answered for {silent}, and reports no error")
}
