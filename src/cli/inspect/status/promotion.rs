//! The promotion of this node by an operator, in the text of `lockstep status`: when to run the command, and the content of the
//! copy.
//!
//! Invariant: a text names the command only where the node executes the command, and where this copy has each acknowledged
//! change that this node knows of.

use lockstep_driver::report::{DatastoreStatus, ServiceStatus};
use lockstepfs::config::Role;

/// The content of a copy without a connection, and how far it goes back; `None` for any other copy.
pub(super) fn age(store: &DatastoreStatus) -> Option<String> {
    let copy = &store.sync.copy;
    if store.sync.service != ServiceStatus::None || !copy.marked_in_sync {
        return None;
    }
    let moment = copy
        .as_of
        .as_deref()
        .unwrap_or("the moment when the connection was lost");
    Some(format!(
        "this copy is complete as of {moment}; the primary may have gone on alone since"
    ))
}

/// Returns how an operator makes this node serve without the other node, if this copy is fit for that.
pub(super) fn step(store: &DatastoreStatus) -> Option<String> {
    let name = &store.settings.name;
    // Nodes that refuse each other run both: neither is dead.
    let is_refused = store.peer.as_ref().is_some_and(|peer| peer.obstacle);
    if !store.is_fit() || (is_refused && store.sync.service == ServiceStatus::None) {
        return None;
    }
    let is_fit_secondary = store.settings.role == Role::Secondary && store.sync.copy.marked_in_sync;
    let lead = match (store.sync.service, &store.witness) {
        (ServiceStatus::Undecided, None) => {
            "if the other node does not serve and does not come back"
        }
        (ServiceStatus::Undecided, Some(_)) => {
            "if neither the other node nor the witness comes back"
        }
        (ServiceStatus::None, _) if !is_fit_secondary => return None,
        (ServiceStatus::None, None) => "this node does not serve by itself: if the primary is dead",
        (ServiceStatus::None, Some(witness)) if !witness.answers => {
            "this node cannot take over without the witness: if the primary is dead, and the witness cannot be \
             brought back"
        }
        (ServiceStatus::None, Some(witness)) if witness.protects => {
            return Some("this node takes over by itself if the primary stays away".to_owned());
        }
        (ServiceStatus::None, Some(_)) => {
            "the witness does not let this node take over, because the primary serves without it, or because the \
             witness has no record: if the primary is dead for good"
        }
        _ => return None,
    };
    let flag = flag(store);
    let copy = store.sync.copy.as_of.as_ref();
    let copy = copy.map_or_else(String::new, |moment| {
        format!(", with its copy as of {moment}")
    });
    Some(format!(
        "{lead}, `lockstep promote {name}{flag}` makes this node serve{copy}; WARNING: if the other node serves, too, \
         the changes of one of them are lost later"
    ))
}

/// Returns the flag of a promotion. A node refuses a promotion past the witness without it.
pub(super) const fn flag(store: &DatastoreStatus) -> &'static str {
    match store.witness {
        Some(_) => " --force-data-loss",
        None => "",
    }
}
