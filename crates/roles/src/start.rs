//! The part of a node that starts.

use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::OnPowerLoss;

use crate::change::ServicePart;
use crate::facts::RoleSettings;
use crate::record::RoleRecord;

/// Whether a node is a primary that does not wait for its peer: no peer may hold more, or the operator accepts that. With a
/// witness, the peer may have taken over.
pub fn needs_no_peer(settings: &RoleSettings, has_peer: bool, record: RoleRecord) -> bool {
    let accepts_loss = settings.on_power_loss == OnPowerLoss::Serve && !settings.has_witness;
    let waits = record.peer_complete && !accepts_loss;
    record.is_primary() && !(waits && has_peer)
}

/// The part of a node that starts with a record. A primary whose peer may hold more, or may have been promoted, waits for the
/// peer (rules R9, R11). With a witness, peer or witness must say first that no other node serves.
pub fn first_part(settings: &RoleSettings, has_peer: bool, record: RoleRecord) -> ServicePart {
    let serves_at_once = needs_no_peer(settings, has_peer, record) && !settings.has_witness
        || is_active(Mutant::ServeUndecided);
    if serves_at_once && record.is_primary() && record.complete {
        ServicePart::Serve
    } else {
        ServicePart::Wait
    }
}

#[cfg(test)]
mod tests {
    use ServicePart::{Serve, Wait};

    use super::*;
    use crate::fixture::{ALONE, COMPLETE, PRIMARY, no_witness, settings};

    #[test]
    fn a_primary_serves_at_its_start_if_no_other_node_can_have_served() {
        let accepts_loss = RoleSettings {
            on_power_loss: OnPowerLoss::Serve,
            ..no_witness()
        };
        let has_lost_power = PRIMARY.after_power_loss();
        for (settings, has_peer, record, expected) in [
            (no_witness(), true, ALONE, Serve),
            (no_witness(), true, PRIMARY, Wait),
            (no_witness(), false, PRIMARY, Serve),
            (no_witness(), false, has_lost_power, Wait),
            (no_witness(), true, COMPLETE, Wait),
            (accepts_loss, true, PRIMARY, Serve),
            (accepts_loss, true, has_lost_power, Wait),
            (settings(), true, ALONE, Wait),
            (settings(), true, PRIMARY, Wait),
        ] {
            let part = first_part(&settings, has_peer, record);
            assert_eq!(part, expected, "{settings:?} {has_peer} {record:?}");
        }
    }

    #[test]
    fn a_primary_needs_its_peer_while_that_one_may_be_complete() {
        let accepts_loss = |has_witness| RoleSettings {
            on_power_loss: OnPowerLoss::Serve,
            has_witness,
            ..no_witness()
        };
        for (settings, has_peer, record, expected) in [
            (settings(), true, ALONE, true),
            (settings(), true, PRIMARY, false),
            (settings(), false, PRIMARY, true),
            (settings(), true, COMPLETE, false),
            (accepts_loss(false), true, PRIMARY, true),
            (accepts_loss(true), true, PRIMARY, false),
        ] {
            assert_eq!(needs_no_peer(&settings, has_peer, record), expected);
        }
    }
}
