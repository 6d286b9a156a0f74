//! The calls of the witness for one question, as the role machine decides on them.
//!
//! Each question gets a role machine that starts with the present record. So a question whose answer was lost leaves nothing
//! behind but a record of the witness that the next question reads.

use lockstep_roles::{
    Phase, QueryResult, RoleChange, RoleEffect, RoleEvent, RoleMachine, RoleRecord, RoleSettings,
    WitnessError, WitnessQuery,
};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::OnPowerLoss;

use super::named_calls::NamedCalls;

/// Most calls of the witness for one question. A claim that another one has overtaken is made again.
const CALLS_MAX: usize = 8;

/// Makes the calls for a question of a node with the record `mine`.
pub(super) fn make(
    mut calls: NamedCalls<'_>,
    query: WitnessQuery,
    mine: RoleRecord,
    on_power_loss: OnPowerLoss,
) -> Result<QueryResult, WitnessError> {
    let settings = RoleSettings {
        me: calls.me(),
        has_witness: true,
        on_power_loss,
    };
    let mine = if query == WitnessQuery::TakeOver && is_active(Mutant::StandUnrecorded) {
        mine.stand()
    } else {
        mine
    };
    let (mut machine, mut queue) = begin(settings, query, mine);
    for _ in 0..CALLS_MAX {
        let now = match queue.iter().find(|effect| is_call(effect)) {
            // An older copy is to be granted nothing. The record that the witness has is an answer to any claim.
            Some(RoleEffect::Claim(claim)) if calls.has_told => calls.claim(claim)?,
            Some(_) => calls.read()?,
            None => break,
        };
        if calls.is_older_copy() {
            return Ok(QueryResult {
                is_older_copy: true,
                ..QueryResult::look(calls.told)
            });
        }
        queue = machine.handle(RoleEvent::WitnessAnswered(now));
        if calls.forgets_names && query == WitnessQuery::Protect {
            break; // the machine would make the same claim again
        }
    }
    Ok(QueryResult {
        change: queue.iter().find_map(changed),
        phase: machine.phase(),
        forgets_names: calls.forgets_names,
        ..QueryResult::look(calls.told)
    })
}

/// The machine of this node, and its first effects: it asks the witness.
fn begin(
    settings: RoleSettings,
    query: WitnessQuery,
    mine: RoleRecord,
) -> (RoleMachine, Vec<RoleEffect>) {
    if query == WitnessQuery::Protect {
        let mut machine = RoleMachine::mirrored(settings, mine);
        let effects = machine.handle(RoleEvent::Tick);
        return (machine, effects);
    }
    let (mut machine, _) = RoleMachine::start(settings, mine, false);
    let event = match machine.phase() {
        Phase::Paused => RoleEvent::PauseOver,
        // A primary that starts has promised nothing to any node.
        _ => RoleEvent::LeaseOver,
    };
    let effects = machine.handle(event);
    (machine, effects)
}

const fn is_call(effect: &RoleEffect) -> bool {
    matches!(effect, RoleEffect::AskWitness | RoleEffect::Claim(_))
}

const fn changed(effect: &RoleEffect) -> Option<RoleChange> {
    match effect {
        RoleEffect::Record(change) => Some(*change),
        _ => None,
    }
}
