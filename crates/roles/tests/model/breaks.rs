//! The rules that an exploration may leave out, one at a time, and the facts of a node without such a rule.
//!
//! The machine runs as it is. The model hides from it what the rule looks at, or believes what the rule doubts.

use lockstep_roles::{InSyncSet, RoleEvent, RoleFacts, SessionEvent, WitnessCall};

use crate::world::World;

/// A rule that the model leaves out. Then it must find a broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Break {
    /// R1: a primary serves alone before the witness has recorded that.
    AloneUnasked,
    /// R1: a primary takes the word of its secondary that it stops for the word that its copy is not complete.
    StopTrusted,
    /// R1: a solo grant outlives the next sync.
    SoloGrantKept,
    /// R2: a copy counts as complete after a power loss.
    PowerLossUnnoticed,
    /// R3: the primary grants its role to a secondary that has not told that it is complete.
    GrantUntold,
    /// R5: the witness compares no record before it grants a claim.
    ClaimUncompared,
    /// R5: an equal record of the witness counts as told, without a claim.
    ForceUnclaimed,
    /// R7: a node takes over within the lease of the primary.
    LeaseIgnored,
    /// R8: the witness hears that both are in sync before the secondary has recorded that.
    ProtectEarly,
    /// R9: a primary that lost power serves from its own disk.
    ServeAfterPowerLoss,
    /// R12: a primary gives way although the secondary cannot take over, as far as it knows.
    GiveWayUnprotected,
    /// R12: a primary gives way while its own question to serve alone is under way.
    GiveWayWhileAsking,
    /// R12: a primary whose disk hangs asks to serve alone.
    HungAsks,
    /// An answer of the witness decides although the record of the node is another one than that of the question.
    SettleStale,
    /// A forced promotion does not tell the witness.
    ForceUntold,
    /// A demotion opens no new generation.
    DemoteInSame,
}

impl World {
    pub fn breaks(&self, rule: Break) -> bool {
        self.left.breaks == Some(rule)
    }

    /// The facts of a node for an event. Without a rule, the node has the record of its question.
    pub fn facts_of(&self, at: usize, event: &RoleEvent) -> RoleFacts {
        let facts = self.facts(at);
        let decides = matches!(event, RoleEvent::Answered(_) | RoleEvent::Settle(_));
        let asked = self.nodes[at].line.asked.filter(|_| decides);
        RoleFacts {
            record: asked.unwrap_or(facts.record),
            ..facts
        }
    }

    /// Whether a node takes a claim for granted that the witness has not seen.
    pub fn believes(&self, at: usize, is_command: bool, call: &WitnessCall) -> bool {
        let WitnessCall::Claim(claim) = call else {
            return false;
        };
        let node = &self.nodes[at];
        let is_equal = claim.expected.is_some_and(|known| {
            (known.generation, known.primary, known.in_sync)
                == (claim.new.generation, claim.new.primary, claim.new.in_sync)
        });
        let tells = is_command || node.unrecorded.is_some();
        let is_alone = claim.new.in_sync == InSyncSet::PrimaryOnly;
        is_alone
            && match self.left.breaks {
                Some(Break::AloneUnasked) => !is_command && node.durable.is_primary(),
                Some(Break::ForceUntold) => is_command,
                Some(Break::ForceUnclaimed) => tells && is_equal,
                _ => false,
            }
    }

    /// The solo grant of a node is as it was before an event.
    pub fn keep_solo_grant(&mut self, at: usize, had: bool) {
        let generation = self.nodes[at].durable.generation;
        if had && let Some(machine) = &mut self.nodes[at].machine {
            machine.note_session(SessionEvent::SecondaryFollows(generation));
        }
    }

    /// Whether a node without the rule has a solo grant, which it keeps.
    pub fn keeps_solo_grant(&self, at: usize) -> bool {
        let generation = self.nodes[at].durable.generation;
        self.breaks(Break::SoloGrantKept)
            && self
                .machine(at)
                .is_some_and(|machine| machine.may_serve_alone(true, generation))
    }
}
