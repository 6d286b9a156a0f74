//! The write verifier of the node that serves changes when unsynced operations may have been lost, and only then (rule P22).
//!
//! A client that has written without a sync keeps the bytes until a later answer has the same verifier. So:
//!
//! - Two nodes that serve before and after a power loss which clients may see have different verifiers, and so have two that
//!   serve before and after a loss which an operator has accepted.
//! - Two nodes that serve one after the other have different verifiers only if there was such a loss, or a flush failed, or one
//!   of these has happened since both copies were equal: the second node has lost its memory; or an operator has promoted or
//!   demoted a node, which may then have gone on alone or drawn a verifier, or has exchanged a disk.
//!
//! A node whose disk has failed is left out. It answers no sync, so its verifier confirms nothing.

use super::violation::Violation;
use crate::history::loss::{Cause, Loss};
use crate::history::{NodeEvent, NodeRecord, Service, Stop};
use crate::world::Side;

const INVARIANT: &str = "verifier";
const POWER: NodeEvent = NodeEvent::Crashed(Stop::Power);

/// Judges the verifiers of all nodes that have served.
pub fn check(nodes: &NodeRecord) -> Result<(), Violation> {
    let services = nodes.services();
    let losses = nodes.losses();
    let seen = losses.iter().filter(|loss| loss.cause == Cause::Power);
    let seen = seen.map(|loss| &loss.at);
    for lost in seen.chain(nodes.accepted_losses()) {
        let (before, after): (Vec<&Service>, Vec<&Service>) =
            services.iter().partition(|service| service.from < *lost);
        if let Some(kept) = before.iter().find(|service| is_among(service, &after)) {
            let what = format!(
                "{:?} serves from {} with a verifier that a node has after the loss at {lost}, too",
                kept.side, kept.from
            );
            return Err(Violation::new(INVARIANT, what));
        }
    }
    let kept = || services.iter().filter(|service| !service.is_given_up);
    for (before, after) in kept().zip(kept().skip(1)) {
        if before.verifier != after.verifier && !may_change(nodes, &losses, before.from, after) {
            let what = format!(
                "{:?} serves from {} with another verifier than {:?} from {}, though nothing can be lost",
                after.side, after.from, before.side, before.from
            );
            return Err(Violation::new(INVARIANT, what));
        }
    }
    Ok(())
}

fn is_among(service: &Service, others: &[&Service]) -> bool {
    others.iter().any(|it| it.verifier == service.verifier)
}

/// Whether unsynced operations may have been lost between two services, the first of which began at `from`. `losses`: those of
/// the record.
fn may_change(nodes: &NodeRecord, losses: &[Loss], from: u64, after: &Service) -> bool {
    let to = after.from;
    let is_within = |at: u64| from < at && at <= to;
    let equal = last_equal(nodes, from);
    let has_lost_memory = |(at, side, event): &(u64, Side, NodeEvent)| {
        equal < *at && *at <= to && *side == after.side && *event == POWER
    };
    losses.iter().any(|loss| is_within(loss.at))
        || nodes.events().iter().any(has_lost_memory)
        || nodes.has_operator_acted(equal, to)
        || nodes.accepted_losses().iter().any(|at| is_within(*at))
        || nodes
            .events()
            .iter()
            .any(|(at, _, event)| *event == NodeEvent::FlushFailed && is_within(*at))
}

/// Returns the last time up to `before` at which the copies became equal; zero if they never did.
fn last_equal(nodes: &NodeRecord, before: u64) -> u64 {
    let events = nodes.events().iter().rev();
    let mut equal = events.filter(|(_, _, event)| *event == NodeEvent::Equal);
    equal
        .find(|(at, _, _)| *at <= before)
        .map_or(0, |(at, _, _)| *at)
}

#[cfg(test)]
mod tests {
    use lockstep_types::{Generation, WriteVerifier};

    use super::*;
    use crate::history::History;

    /// A history in which nodes serve with verifiers, or have other events.
    fn checked(events: &[(Side, NodeEvent, u8)]) -> Result<(), String> {
        let mut history = History::new(false);
        for (at, (side, event, verifier)) in (1..).zip(events) {
            history.node(*side, *event, at);
            if *event == NodeEvent::Serves {
                history.serves_with(*side, WriteVerifier::from_bytes([*verifier; 16]), at);
            }
        }
        check(history.nodes()).map_err(|violation| violation.to_string())
    }

    #[test]
    fn a_node_that_goes_on_without_what_the_other_had_has_another_verifier() {
        let forced = |verifier: u8| {
            let mut history = History::new(false);
            history.serves_with(Side::A, WriteVerifier::from_bytes([2; 16]), 1);
            history.operator_acts(4);
            history.accepted_loss(5);
            history.go_on_with(Side::B, Generation::FIRST, 1, 5);
            history.serves_with(Side::B, WriteVerifier::from_bytes([verifier; 16]), 6);
            check(history.nodes()).map_err(|violation| violation.to_string())
        };
        assert_eq!(forced(4), Ok(()));
        assert!(forced(2).unwrap_err().contains("after the loss at 5"));
    }

    /// A node that stops in the middle of its promotion keeps the verifier that it has drawn. The other node serves then with
    /// the old one.
    #[test]
    fn a_promotion_that_did_not_end_may_change_the_verifier_of_a_later_lead() {
        let promoted = |at: u64| {
            let mut history = History::new(false);
            if at < 2 {
                history.operator_acts(at);
            }
            history.node(Side::B, NodeEvent::Equal, 2);
            if at > 2 {
                history.operator_acts(at);
            }
            history.serves_with(Side::A, WriteVerifier::from_bytes([2; 16]), 5);
            history.serves_with(Side::B, WriteVerifier::from_bytes([4; 16]), 6);
            check(history.nodes()).map_err(|violation| violation.to_string())
        };
        assert_eq!(promoted(3), Ok(()));
        assert!(promoted(1).unwrap_err().contains("nothing can be lost"));
    }

    #[test]
    fn a_verifier_changes_with_a_loss_and_only_then() {
        use NodeEvent::Serves;
        use Side::{A, B};
        let served = (A, Serves, 2);
        assert_eq!(checked(&[served, (B, Serves, 2), served]), Ok(()));
        let lost = [served, (A, POWER, 0)];
        assert_eq!(checked(&[&lost[..], &[(A, Serves, 4)]].concat()), Ok(()));
        let taken_over = [&lost[..], &[(B, Serves, 2)]].concat();
        assert_eq!(checked(&taken_over), Ok(()), "B has lost nothing");
        let kept = checked(&[&lost[..], &[(A, Serves, 2)]].concat());
        assert!(kept.unwrap_err().contains("after the loss at 2"));
        let other = checked(&[served, (B, Serves, 4)]).unwrap_err();
        assert!(other.contains("though nothing can be lost"), "{other}");
    }
}
