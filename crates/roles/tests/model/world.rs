//! The world of the model: two nodes, their copies, the witness, and the steps that may come next.
//!
//! Reductions of this file, each with its reason (docs/protocol/roles.md has the list):
//! - A record is durable at once. A node sends nothing between the event and its record, so a failure in between equals
//!   one before the event.
//! - A message to or from the witness may be lost at any time. That costs no failure, so no link to the witness is cut.
//! - A power loss takes all operations that are not synced. A copy that keeps it is one that was synced just before.

use lockstep_roles::{
    Claim, InSyncSet, Member, Phase, RoleMachine, RoleRecord, Told, WitnessRecord,
};
use lockstep_types::settings::Role;

use super::queue::Queue;

/// A set of operations, one bit each.
pub type Operations = u8;

/// A set of generations, one bit each.
pub type Generations = u32;

pub const MEMBERS: [Member; 2] = [Member::First, Member::Second];

/// A rule that the model leaves out. Then it must find a broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Break {
    /// R1: a primary serves alone before the witness has recorded that.
    AloneUnasked,
    /// R1: a primary takes the word of its secondary that it stops for the word that its copy is not complete.
    StopTrusted,
    /// R2: a copy counts as complete after a power loss.
    PowerLossUnnoticed,
    /// R3: the primary grants its role to a secondary that has not told that it is complete.
    GrantUntold,
    /// R5: the witness compares no record before it grants a claim.
    ClaimUncompared,
    /// R7: a node takes over within the lease of the primary.
    LeaseIgnored,
    /// R8: the witness hears that both are in sync before the secondary has recorded that.
    ProtectEarly,
    /// R9: a primary that lost power serves from its own disk.
    ServeAfterPowerLoss,
}

/// The bounds of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    pub has_witness: bool,
    /// Stops, power losses and cuts of the link, together.
    pub failures: u8,
    pub operations: u8,
    /// Planned failovers.
    pub swaps: u8,
    /// Every acknowledged operation is on stable storage on the nodes that have it (`durability = "always"`).
    pub always: bool,
    pub breaks: Option<Break>,
}

/// One step of the world. A number is a node: 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The primary does the next operation on its own copy.
    Begin(usize),
    /// The other node does the operations that the primary has.
    Mirror(usize),
    /// A node puts its copy on stable storage.
    Sync(usize),
    /// The next message of the peer arrives.
    Hear(usize),
    /// The witness handles the request of a node.
    Witness(usize),
    /// The witness handles a claim of which the node has given up to hear.
    Late(usize, usize),
    /// The answer of the witness arrives.
    Answer(usize),
    /// The request or its answer is lost. A claim may still arrive.
    Silent(usize, bool),
    PauseOver(usize),
    Tick(usize),
    /// The lease of a node ends.
    LeaseEnds(usize),
    /// A node knows that the lease of the other node has ended.
    LeaseOver(usize),
    /// A recovery or a resync copies to the secondary what the primary has.
    Copy(usize),
    /// A recovery or a resync is complete.
    Equal(usize),
    /// The primary tells the secondary that its copy is equal.
    TellEqual(usize),
    HandOver(usize),
    Promote(usize),
    Start(usize),
    Connect,
    /// The process of a node is killed.
    Kill(usize),
    /// The secondary says that it stops, and ends. Its primary waits no longer.
    Leave(usize),
    /// A node loses power, and all operations that are not synced.
    LosePower(usize),
    /// The link between the nodes is cut.
    Cut,
}

impl Action {
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::Kill(_) | Self::Leave(_) | Self::LosePower(_) | Self::Cut
        )
    }
}

/// The question of a node to the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Question {
    NotAsked,
    /// On the way to the witness. A claim that the witness will refuse is a mere question.
    Asked(Option<Claim>),
    /// On the way back.
    Answered(WitnessRecord),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The record on its disk.
    pub durable: RoleRecord,
    /// `None` while the process is down.
    pub machine: Option<RoleMachine>,
    /// The node is down after a power loss, as the operator knows.
    pub lost_power: bool,
    /// The peer has promised not to take over.
    pub lease: bool,
    pub memory: Operations,
    pub disk: Operations,
    pub inbox: Queue<Told, 6>,
    pub question: Question,
    /// Claims on their way whose answers nobody awaits.
    pub late: Queue<Claim, 2>,
    /// The operations that this node is bound to keep.
    pub holds: Operations,
    /// The generations in which this node could acknowledge.
    pub led: Generations,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The rest of the bounds.
    pub left: Limits,
    pub nodes: [Node; 2],
    pub witness: Option<WitnessRecord>,
    pub linked: bool,
    pub begun: u8,
    pub acknowledged: Operations,
    /// Acknowledged operations that are on stable storage where an `fsync` puts them: on both nodes, or on the disk of a
    /// primary that serves alone.
    pub durable: Operations,
    /// Acknowledged operations that every node has lost with its power, before they were synced.
    pub gone: Operations,
}

impl Node {
    fn new(role: Role) -> Self {
        Self {
            durable: RoleRecord::begin(role),
            machine: None,
            lost_power: false,
            lease: false,
            memory: 0,
            disk: 0,
            inbox: Queue::new(),
            question: Question::NotAsked,
            late: Queue::new(),
            holds: 0,
            led: 0,
        }
    }

    pub fn phase(&self) -> Option<Phase> {
        self.machine.as_ref().map(RoleMachine::phase)
    }

    pub fn is_in(&self, phases: &[Phase]) -> bool {
        self.phase().is_some_and(|phase| phases.contains(&phase))
    }

    /// Whether the machine may ask the witness: no answer is expected, and few claims are late.
    fn may_ask(&self) -> bool {
        self.question == Question::NotAsked && !self.late.is_full()
    }

    /// Whether clients may read.
    fn serves(&self) -> bool {
        match self.phase() {
            Some(Phase::Alone) => true,
            Some(Phase::Entering | Phase::Mirrored | Phase::Paused) => self.lease,
            _ => false,
        }
    }
}

impl World {
    pub fn new(limits: Limits) -> Self {
        let nodes = [Node::new(Role::Primary), Node::new(Role::Secondary)];
        let witness = limits.has_witness.then(|| WitnessRecord {
            change: 0,
            generation: nodes[0].durable.generation,
            primary: Member::First,
            in_sync: InSyncSet::PrimaryOnly,
            sync: None,
        });
        Self {
            left: limits,
            nodes,
            witness,
            linked: false,
            begun: 0,
            acknowledged: 0,
            durable: 0,
            gone: 0,
        }
    }

    // Properties.

    pub fn one_node_acknowledges(&self) -> bool {
        self.nodes[0].led & self.nodes[1].led == 0
    }

    /// A node that serves reads has every acknowledged operation that is still to be had.
    pub fn serves_what_was_acknowledged(&self) -> bool {
        let owed = self.acknowledged & !self.gone;
        self.nodes
            .iter()
            .all(|node| !node.serves() || owed & !node.memory == 0)
    }

    pub fn one_serves_alone(&self) -> bool {
        let alone = |node: &&Node| node.phase() == Some(Phase::Alone);
        self.nodes.iter().filter(alone).count() < 2
    }

    /// Two nodes that stand for one generation could not give way to each other.
    pub fn one_stands(&self) -> bool {
        let [first, second] = [0, 1].map(|at| self.nodes[at].durable);
        let both = first.is_candidate && second.is_candidate;
        !both || first.generation != second.generation
    }

    /// A node serves alone, and the old primary does not know yet.
    pub fn has_taken_over(&self) -> bool {
        [0, 1].into_iter().any(|at| {
            let (node, peer) = (&self.nodes[at], &self.nodes[1 - at].durable);
            let is_later = node.durable.generation > peer.generation;
            node.phase() == Some(Phase::Alone) && peer.is_primary() && is_later
        })
    }

    /// Both copies are equal, by both records, and the witness knows.
    pub fn is_in_sync(&self) -> bool {
        [0, 1].into_iter().any(|at| {
            let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
            let knows = |known: WitnessRecord| {
                let is_primary = known.primary == MEMBERS[at];
                let is_present = known.generation == node.durable.generation;
                is_primary && is_present && known.in_sync == InSyncSet::Both
            };
            let equal = node.memory == peer.memory && peer.durable.complete;
            self.mirrors(at)
                && node.is_in(&[Phase::Mirrored])
                && equal
                && self.witness.is_none_or(knows)
        })
    }

    // Actions.

    pub fn actions(&self, actions: &mut Vec<Action>) {
        for at in [0, 1] {
            self.node_actions(at, actions);
            self.witness_actions(at, actions);
            self.failure_actions(at, actions);
        }
        let both_up = self.nodes.iter().all(|node| node.machine.is_some());
        if self.linked && self.left.failures > 0 {
            actions.push(Action::Cut);
        }
        if !self.linked && both_up {
            actions.push(Action::Connect);
        }
    }

    fn node_actions(&self, at: usize, actions: &mut Vec<Action>) {
        use Phase::{Alone, CatchingUp, Entering, Mirrored};
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let mut add = |allowed: bool, action| {
            if allowed {
                actions.push(action);
            }
        };
        let begins = node.is_in(&[Alone, Entering, Mirrored]) && self.begun < self.left.operations;
        add(begins, Action::Begin(at));
        let is_equal = node.memory == peer.memory;
        add(self.mirrors(at) && !is_equal, Action::Mirror(at));
        let is_synced = node.disk == node.memory;
        add(node.machine.is_some() && !is_synced, Action::Sync(at));
        add(!node.inbox.is_empty(), Action::Hear(at));
        add(node.lease && !self.linked, Action::LeaseEnds(at));
        let follows = self.follows(at);
        let copies = node.is_in(&[Alone, CatchingUp]) && follows;
        let is_copied = is_equal && (node.is_in(&[CatchingUp]) || peer.disk == node.memory);
        add(copies && !is_copied, Action::Copy(at));
        add(copies && is_copied, Action::Equal(at));
        // This message is behind the record of the primary on the same connection.
        let heard = peer.inbox.is_empty();
        let tells = node.is_in(&[Entering]) && follows && heard && is_equal;
        add(tells, Action::TellEqual(at));
        let swaps = node.is_in(&[Mirrored]) && follows && self.left.swaps > 0 && is_equal;
        add(swaps, Action::HandOver(at));
        add(self.may_promote(at), Action::Promote(at));
        add(node.machine.is_none(), Action::Start(at));
    }

    /// An operator promotes a node whose peer is down and was in sync, or a primary that waits.
    fn may_promote(&self, at: usize) -> bool {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let vouched = !self.left.has_witness && peer.machine.is_none() && !peer.lost_power;
        let may_lead = node.is_in(&[Phase::Standby]) && peer.durable.peer_complete;
        let is_primary = node.is_in(&[Phase::Unsure]) && !peer.durable.is_primary();
        vouched && (may_lead || is_primary)
    }

    fn witness_actions(&self, at: usize, actions: &mut Vec<Action>) {
        use Phase::{Mirrored, Standby, TakingOver, Unsure};
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let mut add = |allowed: bool, action| {
            if allowed {
                actions.push(action);
            }
        };
        match node.question {
            Question::NotAsked => {}
            Question::Asked(claim) => {
                add(true, Action::Witness(at));
                add(true, Action::Silent(at, false));
                add(
                    claim.is_some() && !node.late.is_full(),
                    Action::Silent(at, true),
                );
            }
            Question::Answered(_) => {
                add(true, Action::Answer(at));
                add(true, Action::Silent(at, false));
            }
        }
        for number in 0..node.late.len() {
            add(true, Action::Late(at, number));
        }
        let may_ask = node.may_ask();
        add(self.may_end_pause(at), Action::PauseOver(at));
        let ticks = node.is_in(&[Mirrored]) && may_ask && self.left.has_witness;
        add(ticks, Action::Tick(at));
        let asks = node.is_in(&[Standby, Unsure]) && may_ask;
        let is_over = !peer.lease || self.left.breaks == Some(Break::LeaseIgnored);
        let due = asks || node.is_in(&[TakingOver]);
        add(due && is_over, Action::LeaseOver(at));
    }

    /// Whether a primary may ask to serve alone.
    pub fn may_end_pause(&self, at: usize) -> bool {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        node.is_in(&[Phase::Paused]) && node.may_ask() && !peer.lease
    }

    fn failure_actions(&self, at: usize, actions: &mut Vec<Action>) {
        if self.left.failures == 0 {
            return;
        }
        let node = &self.nodes[at];
        if node.machine.is_some() {
            actions.push(Action::Kill(at));
        }
        if self.follows(1 - at) {
            actions.push(Action::Leave(at));
        }
        // A second power loss of a node that is down changes nothing.
        let is_noted = self.left.always || node.durable == node.durable.after_power_loss();
        let has_lost = is_noted && node.disk == node.memory;
        if node.machine.is_some() || !has_lost {
            actions.push(Action::LosePower(at));
        }
    }

    /// Whether the other node is the connected secondary of this one.
    pub fn follows(&self, at: usize) -> bool {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let is_met = node.machine.as_ref().is_some_and(RoleMachine::is_met);
        let same = node.durable.generation == peer.durable.generation;
        self.linked && is_met && same && peer.is_in(&[Phase::Following])
    }

    /// Whether operations of this node reach the other one.
    pub fn mirrors(&self, at: usize) -> bool {
        self.nodes[at].is_in(&[Phase::Entering, Phase::Mirrored]) && self.follows(at)
    }
}
