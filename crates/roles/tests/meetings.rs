//! Two nodes that meet: which of them leads, for pairs of records of which no node leads by itself.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests may panic

use lockstep_roles::{
    Answered, Asker, InSyncSet, LocalCopy, Member, Offered, QuestionTimes, RoleChangeKind,
    RoleConflict, RoleEffect, RoleEvent, RoleFacts, RoleMachine, RoleOffer, RoleRecord,
    RoleSettings, SessionState, Settle, SoloEnds, WitnessCall, WitnessRecord,
};
use lockstep_types::settings::{OnPeerLoss, OnPowerLoss, Role};
use lockstep_types::{Generation, StoreId, SyncNames, SyncStanding, WitnessId};

/// Messages to each node in a meeting, at most.
const MESSAGES_MAX: usize = 20;

fn generation(number: u64) -> Generation {
    Generation::new(number).unwrap()
}

/// The record of a secondary.
fn secondary(number: u64, is_candidate: bool, complete: bool) -> RoleRecord {
    RoleRecord {
        generation: generation(number),
        role: Role::Secondary,
        is_candidate,
        complete,
        peer_complete: false,
    }
}

const fn settings(me: Member) -> RoleSettings {
    RoleSettings {
        me,
        has_witness: true,
        witness: Some(WitnessId::of_certificate([1; 32])),
        failover_after_ms: Some(3000),
        on_power_loss: OnPowerLoss::Wait,
        on_peer_loss: OnPeerLoss::Continue,
    }
}

/// The copy of each node: both are equal.
fn copy() -> LocalCopy {
    LocalCopy {
        store: Some(StoreId::from_bytes([1; 16])),
        sync: SyncStanding::default(),
        was_resynced: true,
        has_data: true,
    }
}

/// A node that has just started.
struct Node {
    machine: RoleMachine,
    me: Member,
    record: RoleRecord,
    serves: bool,
    /// The record that the other node has told last.
    seen: Option<RoleRecord>,
    /// The kinds of its changes.
    kinds: Vec<RoleChangeKind>,
}

impl Node {
    fn new(me: Member, record: RoleRecord) -> Self {
        Self {
            machine: RoleMachine::default(),
            me,
            record,
            serves: false,
            seen: None,
            kinds: Vec::new(),
        }
    }

    fn facts(&self) -> RoleFacts {
        RoleFacts {
            settings: settings(self.me),
            record: self.record,
            unrecorded: None,
            session: match (self.record.role, self.serves) {
                (Role::Secondary, _) => SessionState::Secondary,
                (Role::Primary, false) => SessionState::Undecided,
                (Role::Primary, true) => SessionState::Primary,
            },
            is_connected: false,
            is_serving: self.serves,
        }
    }

    fn offer(&self) -> RoleOffer {
        let own = settings(self.me);
        RoleOffer {
            version: 1,
            record: self.record,
            seen: self.seen,
            store: copy().store,
            sync: copy().sync,
            asks_incomplete_mark: self.machine.asks_incomplete_mark(&self.facts()),
            discarded_own_changes: false,
            failover_after_ms: own.failover_after_ms,
            witness: own.witness,
        }
    }

    fn handle(&mut self, event: &RoleEvent) -> Vec<RoleEffect> {
        let effects = self.machine.handle(&self.facts(), *event);
        for effect in &effects {
            if let RoleEffect::Change(change) = effect {
                assert_eq!(change.from, self.record);
                (self.record, self.serves) = (change.to, change.serves());
                self.kinds.push(change.kind);
            }
        }
        effects
    }

    /// Hears an offer of the other node. Returns the conflict, if the nodes do not fit.
    fn hear(&mut self, theirs: RoleOffer) -> Result<(), RoleConflict> {
        self.seen = Some(theirs.record);
        let effects = self.handle(&RoleEvent::Offered(Offered {
            theirs,
            copy: copy(),
            since: SoloEnds::default(),
            excludes_other: false,
        }));
        for effect in effects {
            if let RoleEffect::Conflict(conflict) = effect {
                return Err(conflict);
            }
        }
        Ok(())
    }

    /// Whether this node leads, with a copy that has everything.
    const fn leads(&self) -> bool {
        self.record.is_primary() && self.record.complete
    }

    /// The part of this node, by which two meetings come to the same end.
    const fn end(&self) -> (RoleRecord, bool, Option<RoleRecord>) {
        (self.record, self.serves, self.seen)
    }
}

/// Has two nodes offer their records to each other until nothing changes any more, or until they do not fit. The copies are never
/// brought together.
fn exchange(nodes: &mut [Node; 2]) -> Result<(), RoleConflict> {
    for _ in 0..MESSAGES_MAX {
        let before = [nodes[0].end(), nodes[1].end()];
        for at in [0, 1] {
            let theirs = nodes[1 - at].offer();
            nodes[at].hear(theirs)?;
        }
        if before == [nodes[0].end(), nodes[1].end()] {
            return Ok(());
        }
    }
    panic!("the meeting has no end");
}

/// The same for two nodes that fit.
fn meet(nodes: &mut [Node; 2]) {
    let fit = exchange(nodes);
    assert_eq!(
        fit,
        Ok(()),
        "{:?} and {:?}",
        nodes[0].record,
        nodes[1].record
    );
}

fn nodes(first: RoleRecord, second: RoleRecord) -> [Node; 2] {
    [
        Node::new(Member::First, first),
        Node::new(Member::Second, second),
    ]
}

/// Lets two nodes with these records meet. Returns the index of the node that leads, and whether that one serves alone.
fn leader(first: RoleRecord, second: RoleRecord) -> (usize, bool) {
    let mut nodes = nodes(first, second);
    meet(&mut nodes);
    let leaders: Vec<_> = [0, 1].into_iter().filter(|at| nodes[*at].leads()).collect();
    assert_eq!(leaders.len(), 1, "{first:?} and {second:?}");
    let leader = &nodes[leaders[0]];
    (leaders[0], leader.serves && !leader.record.peer_complete)
}

#[test]
fn two_secondaries_that_lost_power_have_a_primary_again() {
    // The primary granted generation 2. The secondary lost its power before it heard of that. Then the old primary stood
    // for generation 3, and lost its power, too. Its copy was complete for longer.
    let (candidate, secondary) = (secondary(3, true, false), secondary(1, false, false));
    assert_eq!(leader(candidate, secondary), (0, true));
    assert_eq!(leader(secondary, candidate), (1, true));
}

#[test]
fn of_two_secondaries_the_one_with_the_complete_copy_leads() {
    for (theirs, is_candidate) in [(1, false), (1, true), (2, true), (4, true)] {
        let complete = secondary(3, true, true);
        let incomplete = secondary(theirs, is_candidate, false);
        assert_eq!(leader(complete, incomplete).0, 0, "{incomplete:?}");
        assert_eq!(leader(incomplete, complete).0, 1, "{incomplete:?}");
    }
}

#[test]
fn a_candidate_leaves_the_lead_to_an_equal_secondary() {
    let (candidate, equal) = (secondary(3, true, true), secondary(1, false, true));
    assert_eq!(leader(candidate, equal).0, 1);
    let (later, earlier) = (secondary(3, true, true), secondary(2, true, true));
    assert_eq!(leader(later, earlier).0, 1);
}

/// The node that is to lead may lose its power before it does. Then the other copy is the only one that has everything.
#[test]
fn a_candidate_that_leaves_the_lead_keeps_its_copy_complete() {
    let (candidate, equal) = (secondary(3, true, true), secondary(1, false, true));
    let mut node = Node::new(Member::First, candidate);
    let theirs = RoleOffer {
        seen: Some(candidate),
        ..Node::new(Member::Second, equal).offer()
    };
    node.hear(theirs).unwrap();
    assert_eq!(node.record, secondary(4, false, true));
    assert_eq!(node.kinds, [RoleChangeKind::GiveWay]);
    let [granting, lost] = [secondary(4, false, true), secondary(1, false, false)];
    assert_eq!(leader(granting, lost).0, 0);
}

/// The witness has made the secondary the primary, and that node lost its power before it led.
#[test]
fn a_deposed_primary_leads_again_if_the_other_node_lost_its_power_before_it_led() {
    let deposed = RoleRecord {
        peer_complete: true,
        ..RoleRecord::begin(Role::Primary)
    };
    let mut old = Node::new(Member::First, deposed);
    let asks = old.handle(&RoleEvent::Due(QuestionTimes {
        has_waited: true,
        may_take_over: false,
        look_is_due: false,
        cannot_protect: false,
    }));
    assert_eq!(asks, [RoleEffect::Call(WitnessCall::Read)]);
    let known = WitnessRecord {
        change: 2,
        generation: generation(2),
        primary: Member::Second,
        in_sync: InSyncSet::PrimaryOnly,
        sync: None,
    };
    old.handle(&RoleEvent::Answered(Answered {
        asker: Asker::Watch,
        now: Some(known),
        names: SyncNames::default(),
    }));
    old.handle(&RoleEvent::Settle(Settle {
        copy: copy(),
        is_released: true,
        is_silent: true,
    }));
    assert_eq!((old.record, old.serves), (deposed, false));
    assert_eq!(old.kinds, [RoleChangeKind::Keep]);
    let mut nodes = [old, Node::new(Member::Second, secondary(2, true, false))];
    meet(&mut nodes);
    let record = nodes[0].record;
    assert!(record.is_primary() && record.complete && record.generation == generation(3));
    assert!(nodes[0].serves && !record.peer_complete, "it serves alone");
}

#[test]
fn a_deposed_primary_follows_the_node_that_leads() {
    let deposed = RoleRecord {
        peer_complete: true,
        ..RoleRecord::begin(Role::Primary)
    };
    let new = RoleRecord {
        generation: generation(2),
        ..RoleRecord::begin(Role::Primary)
    };
    let mut nodes = nodes(deposed, new);
    meet(&mut nodes);
    let record = nodes[0].record;
    assert_eq!((record.role, record.complete), (Role::Secondary, false));
    assert_eq!(nodes[0].kinds[0], RoleChangeKind::Deposed);
    assert!(nodes[1].serves && !nodes[1].record.peer_complete);
}

/// A grant of which the secondary has not heard yet, and one whose node has lost its power.
#[test]
fn a_node_that_is_granted_the_role_leads_and_the_other_one_follows() {
    let [grants, granted] = [secondary(2, false, true), secondary(1, false, true)];
    let mut nodes = nodes(grants, granted);
    meet(&mut nodes);
    assert_eq!(nodes[1].kinds[0], RoleChangeKind::LeadByGrant);
    assert!(nodes[1].serves && nodes[1].record.peer_complete);
    assert_eq!(nodes[0].record, secondary(2, false, true));
    let lost = granted.after_power_loss();
    assert_eq!(leader(grants, lost).0, 0, "it grants the role back");
}

/// Every record that a node can have in one of the generations.
fn records(generations: std::ops::Range<u64>) -> Vec<RoleRecord> {
    let mut records = Vec::new();
    for number in generations {
        for complete in [false, true] {
            for flag in [false, true] {
                records.push(secondary(number, flag, complete));
                records.push(RoleRecord {
                    generation: generation(number),
                    complete,
                    peer_complete: flag,
                    ..RoleRecord::begin(Role::Primary)
                });
            }
        }
    }
    records
}

#[test]
fn each_meeting_ends_and_no_two_nodes_serve_after_it() {
    let mut fitting = 0;
    for first in records(1..5) {
        for second in records(1..5) {
            let mut nodes = nodes(first, second);
            let fit = exchange(&mut nodes);
            let serving: Vec<_> = nodes.iter().filter(|node| node.serves).collect();
            assert!(serving.len() < 2, "{first:?} and {second:?}");
            if let (Ok(()), [leader]) = (fit, &serving[..]) {
                assert!(leader.leads(), "{first:?} and {second:?}");
                let other = nodes.iter().find(|node| !node.serves).unwrap();
                assert!(!other.record.is_primary(), "{first:?} and {second:?}");
                assert_eq!(leader.record.generation, other.record.generation);
                fitting += 1;
            }
        }
    }
    assert!(fitting > 100, "{fitting}");
}
