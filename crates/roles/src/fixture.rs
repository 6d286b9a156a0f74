//! Records, facts, offers and a witness for the tests.

use std::collections::VecDeque;

use lockstep_types::settings::{OnPeerLoss, OnPowerLoss, Role};
use lockstep_types::{Generation, StoreId, SyncCount, SyncId, SyncNames, SyncStanding, WitnessId};

use crate::change::{RoleChange, RoleChangeKind};
use crate::event::{
    Answered, Asker, Offered, QuestionTimes, RoleEffect, RoleEvent, Settle, WitnessCall,
};
use crate::facts::{LocalCopy, RoleFacts, RoleSettings, SessionState};
use crate::machine::RoleMachine;
use crate::offer::RoleOffer;
use crate::record::{Member, RoleRecord};
use crate::solo::SoloEnds;
use crate::witness::{InSyncSet, WitnessRecord};

/// The first generation.
pub const G1: Generation = Generation::FIRST;
/// A primary whose secondary is complete.
pub const PRIMARY: RoleRecord = record(Role::Primary, G1, true, true);
/// A primary whose secondary lacks operations.
pub const ALONE: RoleRecord = record(Role::Primary, G1, true, false);
/// A secondary with a complete copy.
pub const COMPLETE: RoleRecord = record(Role::Secondary, G1, true, false);
/// A secondary whose copy lacks operations.
pub const INCOMPLETE: RoleRecord = record(Role::Secondary, G1, false, false);
/// A primary in sync by both records.
pub const SYNCED: SessionState = SessionState::Synced {
    is_connected: true,
    is_recorded: true,
};
/// The witness of both nodes.
pub const WITNESS: WitnessId = WitnessId::of_certificate([1; 32]);
/// Every time that a question may wait for is over, but the time of a look.
pub const DUE: QuestionTimes = QuestionTimes {
    has_waited: true,
    may_take_over: true,
    look_is_due: false,
    cannot_protect: false,
};
/// Every time that a question may wait for is over.
pub const LOOK_DUE: QuestionTimes = QuestionTimes {
    look_is_due: true,
    ..DUE
};

/// The generation with a number.
pub fn generation(number: u64) -> Generation {
    Generation::new(number).unwrap()
}

/// The record of a node that is no candidate.
pub const fn record(
    role: Role,
    generation: Generation,
    complete: bool,
    peer_complete: bool,
) -> RoleRecord {
    RoleRecord {
        generation,
        role,
        is_candidate: false,
        complete,
        peer_complete,
    }
}

/// The name of the sync after `number` resyncs.
pub fn sync(number: usize) -> Option<SyncId> {
    let next = |last: Option<SyncId>, _| Some(SyncId::next(last, [3; 16]));
    (0..number).fold(None, next)
}

/// The standing of a copy after `number` resyncs.
pub fn standing(number: usize) -> SyncStanding {
    SyncStanding {
        names: SyncNames::settled(sync(number)),
        count: SyncCount::default(),
    }
}

/// The same, with a count of operations.
pub fn counted(number: usize, operations: u64) -> SyncStanding {
    let names = standing(number).names;
    let count = SyncCount {
        of: names.last,
        acknowledged: operations,
        reached: operations,
    };
    SyncStanding { names, count }
}

/// The name of a store.
pub const fn store(number: u8) -> StoreId {
    StoreId::from_bytes([number; 16])
}

/// A copy with operations, after two resyncs.
pub fn copy() -> LocalCopy {
    LocalCopy {
        store: Some(store(1)),
        sync: standing(2),
        was_resynced: true,
        has_data: true,
    }
}

/// The settings of the first node, with a witness.
pub const fn settings() -> RoleSettings {
    RoleSettings {
        me: Member::First,
        has_witness: true,
        witness: Some(WITNESS),
        failover_after_ms: Some(3000),
        on_power_loss: OnPowerLoss::Wait,
        on_peer_loss: OnPeerLoss::Continue,
    }
}

/// The settings of a node without a witness.
pub const fn no_witness() -> RoleSettings {
    RoleSettings {
        has_witness: false,
        witness: None,
        failover_after_ms: None,
        ..settings()
    }
}

/// The facts of a node with a record, which serves nobody.
pub const fn facts(record: RoleRecord) -> RoleFacts {
    RoleFacts {
        settings: settings(),
        record,
        unrecorded: None,
        session: if record.is_primary() {
            SessionState::Undecided
        } else {
            SessionState::Secondary
        },
        is_connected: false,
        is_serving: false,
    }
}

/// The facts of a primary with a session that serves.
pub const fn serving(record: RoleRecord, session: SessionState) -> RoleFacts {
    RoleFacts {
        session,
        is_serving: true,
        ..facts(record)
    }
}

/// The offer of the other node with a `record`, which has an equal copy and has seen the record of `by`.
pub fn offer(by: &RoleFacts, record: RoleRecord) -> RoleOffer {
    RoleOffer {
        version: 1,
        record,
        seen: Some(by.record),
        store: copy().store,
        sync: copy().sync,
        asks_incomplete_mark: false,
        discarded_own_changes: false,
        failover_after_ms: by.settings.failover_after_ms,
        witness: by.settings.witness,
    }
}

/// The event of an offer, at a node with an equal copy.
pub fn offered(theirs: RoleOffer) -> Offered {
    Offered {
        theirs,
        copy: copy(),
        since: SoloEnds::default(),
        excludes_other: false,
    }
}

/// The end of a question at a secondary that has promised nothing, and has met no primary since.
pub fn settled() -> Settle {
    Settle {
        copy: copy(),
        is_released: true,
        is_silent: true,
    }
}

/// A record of the witness, without the name of a sync.
pub const fn known(
    change: u64,
    generation: Generation,
    primary: Member,
    in_sync: InSyncSet,
) -> WitnessRecord {
    WitnessRecord {
        change,
        generation,
        primary,
        in_sync,
        sync: None,
    }
}

/// The change among the effects, which has to be the only one.
pub fn change(effects: &[RoleEffect]) -> RoleChange {
    let changes: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            RoleEffect::Change(change) => Some(*change),
            _ => None,
        })
        .collect();
    assert_eq!(changes.len(), 1, "{effects:?}");
    changes[0]
}

/// A witness in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryWitness {
    /// Its record of the datastore.
    pub record: Option<WitnessRecord>,
    /// The names of the node's copy, at each answer.
    pub names: SyncNames,
    /// As an earlier version, which does not know the field.
    pub forgets_names: bool,
    /// The records that other claims make, one before each claim of this node.
    pub overtaking: VecDeque<WitnessRecord>,
    /// The number of the call, from zero on, that has no answer and no effect.
    pub silent_at: Option<usize>,
    /// The calls so far.
    pub calls: Vec<WitnessCall>,
}

impl MemoryWitness {
    /// A witness with a record, and a node whose copy has the names of [`copy`].
    pub fn with(record: Option<WitnessRecord>) -> Self {
        Self {
            record,
            names: copy().sync.names,
            ..Self::default()
        }
    }

    /// The event that follows from a call.
    pub fn call(&mut self, asker: Asker, call: WitnessCall) -> RoleEvent {
        let number = self.calls.len();
        self.calls.push(call);
        if self.silent_at == Some(number) {
            return RoleEvent::Silent(asker);
        }
        if let WitnessCall::Claim(claim) = call {
            claim.check().expect("a claim that keeps the rules");
            self.record = self.overtaking.pop_front().or(self.record);
            let granted = self.record == claim.expected;
            self.record = claim.apply(self.record);
            if let (true, true, Some(record)) = (granted, self.forgets_names, &mut self.record) {
                record.sync = None;
            }
        }
        RoleEvent::Answered(self.answer(asker))
    }

    /// The answer of now.
    pub const fn answer(&self, asker: Asker) -> Answered {
        Answered {
            asker,
            now: self.record,
            names: self.names,
        }
    }
}

/// Has a machine ask the question that is due, and answers its calls. Returns the other effects.
pub fn ask(
    machine: &mut RoleMachine,
    facts: &RoleFacts,
    due: QuestionTimes,
    witness: &mut MemoryWitness,
) -> Vec<RoleEffect> {
    let mut facts = *facts;
    run(
        machine,
        &mut facts,
        &RoleEvent::Due(due),
        Asker::Watch,
        witness,
    )
}

/// Gives a command of an operator to a machine, answers its calls, and makes its changes durable. Returns the other effects, and
/// the changes.
pub fn command(
    machine: &mut RoleMachine,
    facts: &mut RoleFacts,
    event: &RoleEvent,
    witness: &mut MemoryWitness,
) -> Vec<RoleEffect> {
    run(machine, facts, event, Asker::Command, witness)
}

fn run(
    machine: &mut RoleMachine,
    facts: &mut RoleFacts,
    event: &RoleEvent,
    asker: Asker,
    witness: &mut MemoryWitness,
) -> Vec<RoleEffect> {
    let mut queue = VecDeque::from(machine.handle(facts, *event));
    let mut carried_out = Vec::new();
    while let Some(effect) = queue.pop_front() {
        let next = match effect {
            RoleEffect::Call(call) => {
                let event = witness.call(asker, call);
                queue.extend(machine.handle(facts, event));
                continue;
            }
            RoleEffect::Change(change) => {
                facts.record = change.to;
                facts.session = self::facts(change.to).session;
                machine.handle(facts, RoleEvent::Changed)
            }
            _ => Vec::new(),
        };
        carried_out.push(effect);
        queue.extend(next);
    }
    carried_out
}

/// The machine of a primary in sync whose witness has answered that the secondary may take over.
pub fn protected() -> RoleMachine {
    let mut machine = RoleMachine::default();
    let mut witness = MemoryWitness::with(None);
    ask(&mut machine, &serving(PRIMARY, SYNCED), DUE, &mut witness);
    assert!(machine.witness_report().protects);
    machine
}

/// The records of the kind of a change.
pub fn of_kind(effects: &[RoleEffect], kind: RoleChangeKind) -> Option<RoleRecord> {
    effects.iter().find_map(|effect| match effect {
        RoleEffect::Change(change) if change.kind == kind => Some(change.to),
        _ => None,
    })
}
