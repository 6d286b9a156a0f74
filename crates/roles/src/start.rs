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
