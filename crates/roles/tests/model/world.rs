//! The world of the model: two nodes, their copies, the witness, and the failures.

use std::collections::VecDeque;

use lockstep_roles::{
    Claim, InSyncSet, Member, Phase, RoleEffect, RoleEvent, RoleMachine, RoleRecord, RoleSettings,
    Told, WitnessRecord,
};
use lockstep_types::settings::{OnPowerLoss, Role};

/// Generations that the model can count.
const GENERATIONS: usize = 12;

/// A set of operations, one bit each.
type Operations = u8;

/// The bounds of an exploration.
#[derive(Clone, Debug)]
pub struct Limits {
    pub has_witness: bool,
    /// Stops, power losses, cuts of a link and losses of the witness, together.
    pub failures: u8,
    pub operations: u8,
    /// Planned failovers.
    pub swaps: u8,
    /// A node takes over only after the lease of the primary. Without that, the model must find a stale read.
    pub waits_for_lease: bool,
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
    /// A record becomes durable.
    Record(usize),
    /// The next message of the peer arrives.
    Hear(usize),
    /// The witness handles a request of a node. Requests may overtake each other.
    Witness(usize, usize),
    /// The answer of the witness arrives.
    Answer(usize),
    PauseOver(usize),
    Tick(usize),
    /// The lease of a node ends.
    LeaseEnds(usize),
    /// A node knows that the lease of the other node has ended.
    LeaseOver(usize),
    /// A recovery or a resync is complete.
    Equal(usize),
    /// The primary tells the secondary that its copy is equal.
    TellEqual(usize),
    HandOver(usize),
    Promote(usize),
    /// The process of a node is killed.
    Kill(usize),
    /// A node loses power. Operations in memory that were not synced are on its disk, or are not.
    LosePower(usize, bool),
    Start(usize),
    /// The link between the nodes is cut.
    Cut,
    Connect,
    /// A node and the witness lose each other.
    CutWitness(usize),
    ReachWitness(usize),
}

/// A request to the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Ask,
    Claim(Claim),
}

/// The answer of the witness to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    NotExpected,
    Expected,
    Arrived(Option<WitnessRecord>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    /// The record on its disk.
    durable: RoleRecord,
    /// `None` while the process is down.
    machine: Option<RoleMachine>,
    lost_power: bool,
    /// The peer has promised not to take over.
    lease: bool,
    memory: Operations,
    disk: Operations,
    recording: Option<RoleRecord>,
    inbox: VecDeque<Told>,
    requests: Vec<Request>,
    /// The answer to the last request.
    answer: Answer,
    reaches_witness: bool,
    /// The operations that this node is bound to keep.
    holds: Operations,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    has_witness: bool,
    nodes: [Node; 2],
    witness: Option<WitnessRecord>,
    linked: bool,
    failures: u8,
    operations: u8,
    swaps: u8,
    waits_for_lease: bool,
    begun: u8,
    acknowledged: Operations,
    /// Acknowledged operations that are on stable storage where an `fsync` puts them: on both nodes, or on the disk of a
    /// primary that serves alone.
    durable: Operations,
    /// Acknowledged operations that every node has lost with its power, before they were synced.
    gone: Operations,
    acknowledgers: [[bool; 2]; GENERATIONS],
}

const MEMBERS: [Member; 2] = [Member::First, Member::Second];

impl Node {
    fn new(role: Role) -> Self {
        Self {
            durable: RoleRecord::begin(role),
            machine: None,
            lost_power: false,
            lease: false,
            memory: 0,
            disk: 0,
            recording: None,
            inbox: VecDeque::new(),
            requests: Vec::new(),
            answer: Answer::NotExpected,
            reaches_witness: true,
            holds: 0,
        }
    }

    fn phase(&self) -> Option<Phase> {
        self.machine.as_ref().map(RoleMachine::phase)
    }

    /// Whether the machine takes an event now.
    fn takes_events(&self) -> bool {
        self.machine.is_some() && self.recording.is_none()
    }

    fn is_in(&self, phases: &[Phase]) -> bool {
        self.takes_events() && self.phase().is_some_and(|phase| phases.contains(&phase))
    }

    /// Whether the machine may ask the witness: no answer is expected, and few requests are on their way.
    fn may_ask(&self) -> bool {
        self.answer == Answer::NotExpected && self.requests.len() < 2
    }

    /// Whether clients may read.
    fn serves(&self) -> bool {
        match self.phase() {
            Some(Phase::Alone) => true,
            Some(Phase::Entering | Phase::Mirrored | Phase::Paused) => self.lease,
            _ => false,
        }
    }

    fn stop(&mut self) {
        self.machine = None;
        self.lease = false;
        self.recording = None;
        self.inbox.clear();
        // Requests on their way may still reach the witness.
        self.requests.retain(|late| *late != Request::Ask);
        self.answer = Answer::NotExpected;
    }
}

impl World {
    pub fn new(limits: &Limits) -> Self {
        let mut world = Self {
            has_witness: limits.has_witness,
            nodes: [Node::new(Role::Primary), Node::new(Role::Secondary)],
            witness: None,
            linked: false,
            failures: limits.failures,
            operations: limits.operations,
            swaps: limits.swaps,
            waits_for_lease: limits.waits_for_lease,
            begun: 0,
            acknowledged: 0,
            durable: 0,
            gone: 0,
            acknowledgers: [[false; 2]; GENERATIONS],
        };
        if limits.has_witness {
            let in_sync = InSyncSet::PrimaryOnly;
            world.witness = Some(WitnessRecord {
                change: 0,
                generation: world.nodes[0].durable.generation,
                primary: Member::First,
                in_sync,
            });
        }
        world
    }

    // Properties.

    pub fn one_node_acknowledges(&self) -> bool {
        self.acknowledgers.iter().all(|by| !(by[0] && by[1]))
    }

    /// A node that serves reads has every acknowledged operation that is still to be had.
    pub fn serves_what_was_acknowledged(&self) -> bool {
        let owed = self.acknowledged & !self.gone;
        self.nodes
            .iter()
            .all(|node| !node.serves() || owed & !node.memory == 0)
    }

    /// Whether the numbers that only count are below the bounds of the model.
    pub fn is_small(&self) -> bool {
        let of_nodes = self.nodes.iter().map(|node| node.durable.generation.get());
        let generation = of_nodes.max().unwrap_or(0);
        generation <= 5 && self.witness.is_none_or(|record| record.change <= 8)
    }

    pub fn one_serves_alone(&self) -> bool {
        let alone = |node: &&Node| node.phase() == Some(Phase::Alone);
        self.nodes.iter().filter(alone).count() < 2
    }

    pub fn has_taken_over(&self) -> bool {
        self.nodes[1].phase() == Some(Phase::Alone)
    }

    pub fn is_in_sync_again(&self) -> bool {
        self.nodes[1].phase() == Some(Phase::Mirrored)
    }

    // Actions.

    pub fn actions(&self, actions: &mut Vec<Action>) {
        for at in [0, 1] {
            self.node_actions(at, actions);
            self.failure_actions(at, actions);
        }
        let both_up = self.nodes.iter().all(|node| node.machine.is_some());
        if self.linked && self.failures > 0 {
            actions.push(Action::Cut);
        }
        if !self.linked && both_up && self.nodes.iter().all(Node::takes_events) {
            actions.push(Action::Connect);
        }
    }

    fn node_actions(&self, at: usize, actions: &mut Vec<Action>) {
        use Phase::{Alone, CatchingUp, Entering, Mirrored, Paused, Standby, Unsure};
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let mut add = |allowed: bool, action| {
            if allowed {
                actions.push(action);
            }
        };
        let serving = [Alone, Entering, Mirrored];
        add(
            node.is_in(&serving) && self.begun < self.operations,
            Action::Begin(at),
        );
        add(
            self.mirrors(at) && peer.memory != node.memory,
            Action::Mirror(at),
        );
        add(
            node.machine.is_some() && node.disk != node.memory,
            Action::Sync(at),
        );
        add(node.recording.is_some(), Action::Record(at));
        add(
            node.takes_events() && !node.inbox.is_empty(),
            Action::Hear(at),
        );
        add(
            node.takes_events() && matches!(node.answer, Answer::Arrived(_)),
            Action::Answer(at),
        );
        for number in 0..node.requests.len() {
            add(true, Action::Witness(at, number));
        }
        add(
            node.is_in(&[Paused]) && node.may_ask() && !peer.lease,
            Action::PauseOver(at),
        );
        let ticks = node.is_in(&[Unsure, Mirrored]) && node.may_ask() && self.has_witness;
        add(ticks, Action::Tick(at));
        add(node.lease && !self.linked, Action::LeaseEnds(at));
        let waits = [Phase::TakingOver, Standby, Unsure];
        let due = node.is_in(&waits) && node.may_ask();
        let is_over = !peer.lease || !self.waits_for_lease;
        add(due && is_over, Action::LeaseOver(at));
        let follows = self.follows(at);
        add(
            node.is_in(&[Alone, CatchingUp]) && follows,
            Action::Equal(at),
        );
        // This message is behind the record of the primary on the same connection.
        let heard = peer.inbox.is_empty();
        add(
            node.is_in(&[Entering]) && follows && heard,
            Action::TellEqual(at),
        );
        add(
            node.is_in(&[Mirrored]) && follows && self.swaps > 0 && node.memory == peer.memory,
            Action::HandOver(at),
        );
        // An operator promotes a node whose peer is down and was in sync, or a primary that waits.
        let vouched = !self.has_witness && peer.machine.is_none() && !peer.lost_power;
        let may_lead = node.is_in(&[Standby]) && peer.durable.peer_complete;
        let is_primary = node.is_in(&[Unsure]) && !peer.durable.is_primary();
        add(vouched && (may_lead || is_primary), Action::Promote(at));
        add(node.machine.is_none(), Action::Start(at));
        add(!node.reaches_witness, Action::ReachWitness(at));
    }

    fn failure_actions(&self, at: usize, actions: &mut Vec<Action>) {
        if self.failures == 0 {
            return;
        }
        let node = &self.nodes[at];
        if node.machine.is_some() {
            actions.push(Action::Kill(at));
        }
        actions.push(Action::LosePower(at, false));
        if node.disk != node.memory {
            actions.push(Action::LosePower(at, true));
        }
        if self.has_witness && node.reaches_witness {
            actions.push(Action::CutWitness(at));
        }
    }

    /// Whether the other node is the connected secondary of this one.
    fn follows(&self, at: usize) -> bool {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let is_met = node.machine.as_ref().is_some_and(RoleMachine::is_met);
        let same = node.durable.generation == peer.durable.generation;
        self.linked && is_met && same && peer.is_in(&[Phase::Following])
    }

    /// Whether operations of this node reach the other one.
    fn mirrors(&self, at: usize) -> bool {
        self.nodes[at].is_in(&[Phase::Entering, Phase::Mirrored]) && self.follows(at)
    }

    // Steps.

    /// One step. A primary acknowledges as soon as it may, which is the hardest case.
    pub fn step(&mut self, action: Action) {
        self.act(action);
        for at in [0, 1] {
            self.acknowledge(at);
            self.note_durable(at);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Begin(at) => {
                self.nodes[at].memory |= 1 << self.begun;
                self.begun += 1;
            }
            Action::Mirror(at) => self.nodes[1 - at].memory |= self.nodes[at].memory,
            Action::Sync(at) => self.nodes[at].disk = self.nodes[at].memory,
            Action::Record(at) => {
                let record = self.nodes[at].recording.take().unwrap();
                self.nodes[at].durable = record;
                self.nodes[at].lost_power = false;
                if !record.complete {
                    self.nodes[at].holds = 0;
                }
                if record.is_primary() && !record.peer_complete {
                    self.nodes[1 - at].holds = 0;
                }
                self.event(at, RoleEvent::Recorded);
            }
            Action::Hear(at) => {
                let told = self.nodes[at].inbox.pop_front().unwrap();
                self.event(at, RoleEvent::PeerTold(told));
            }
            Action::Witness(at, number) => self.ask_witness(at, number),
            Action::Tick(at) => self.event(at, RoleEvent::Tick),
            Action::Answer(at) => {
                let answer = std::mem::replace(&mut self.nodes[at].answer, Answer::NotExpected);
                if let Answer::Arrived(record) = answer {
                    self.event(at, RoleEvent::WitnessAnswered(record));
                }
            }
            Action::PauseOver(at) => self.event(at, RoleEvent::PauseOver),
            Action::LeaseEnds(at) => self.nodes[at].lease = false,
            Action::LeaseOver(at) => self.event(at, RoleEvent::LeaseOver),
            Action::Equal(at) => self.make_equal(at),
            Action::TellEqual(at) => self.event(1 - at, RoleEvent::CopyIsEqual),
            Action::HandOver(at) => {
                self.swaps -= 1;
                self.event(at, RoleEvent::HandOver);
            }
            Action::Promote(at) => self.event(at, RoleEvent::Promote),
            Action::Kill(at) => self.fail(|world| world.stop(at)),
            Action::LosePower(at, keeps) => self.fail(|world| world.lose_power(at, keeps)),
            Action::Start(at) => self.start(at),
            Action::Cut => self.fail(Self::disconnect),
            Action::Connect => self.connect(),
            Action::CutWitness(at) => self.fail(|world| world.cut_witness(at)),
            Action::ReachWitness(at) => self.nodes[at].reaches_witness = true,
        }
    }

    fn fail(&mut self, failure: impl FnOnce(&mut Self)) {
        self.failures -= 1;
        failure(self);
    }

    fn event(&mut self, at: usize, event: RoleEvent) {
        let Some(machine) = &mut self.nodes[at].machine else {
            return;
        };
        let effects = machine.handle(event);
        self.carry_out(at, effects);
    }

    fn carry_out(&mut self, at: usize, effects: Vec<RoleEffect>) {
        for effect in effects {
            match effect {
                RoleEffect::Record(record) => self.nodes[at].recording = Some(record),
                RoleEffect::AskWitness => self.send_witness(at, Request::Ask),
                RoleEffect::Claim(claim) => self.send_witness(at, Request::Claim(claim)),
                RoleEffect::TellPeer(told) if self.linked => {
                    self.nodes[1 - at].inbox.push_back(told);
                }
                RoleEffect::TellPeer(_) | RoleEffect::Recover | RoleEffect::Resync => {}
            }
        }
        self.note_lease(at);
    }

    /// A primary in touch with its secondary has the lease.
    fn note_lease(&mut self, at: usize) {
        if self.mirrors(at) {
            self.nodes[at].lease = true;
        }
        let node = &self.nodes[at];
        if node.phase() == Some(Phase::Mirrored) && node.takes_events() && self.follows(at) {
            let (mine, theirs) = (self.nodes[at].memory, self.nodes[1 - at].memory);
            self.nodes[1 - at].holds |= self.acknowledged & mine & theirs;
        }
    }

    fn note_durable(&mut self, at: usize) {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        self.durable |= match node.phase() {
            Some(Phase::Alone) => node.disk,
            _ if self.mirrors(at) => node.disk & peer.disk,
            _ => return,
        } & self.acknowledged;
    }

    fn acknowledge(&mut self, at: usize) {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let done = match node.phase() {
            Some(Phase::Alone) if node.takes_events() => node.memory,
            _ if self.mirrors(at) => node.memory & peer.memory,
            _ => return,
        };
        let is_mirrored = node.phase() == Some(Phase::Mirrored);
        let new = done & !self.acknowledged;
        if new == 0 {
            return;
        }
        let generation = usize::try_from(node.durable.generation.get()).unwrap();
        self.acknowledgers[generation][at] = true;
        self.acknowledged |= new;
        self.nodes[at].holds |= new;
        if is_mirrored {
            self.nodes[1 - at].holds |= new;
        }
    }

    fn send_witness(&mut self, at: usize, request: Request) {
        let node = &mut self.nodes[at];
        if node.reaches_witness {
            // Only a claim that is late makes a difference.
            node.requests.retain(|late| *late != Request::Ask);
            node.requests.push(request);
            node.answer = Answer::Expected;
        }
    }

    fn ask_witness(&mut self, at: usize, number: usize) {
        let is_last = number + 1 == self.nodes[at].requests.len();
        let request = self.nodes[at].requests.remove(number);
        if let Request::Claim(claim) = request {
            // A witness refuses other claims.
            assert_eq!(claim.check(), Ok(()));
            self.witness = claim.apply(self.witness);
        }
        // A node takes the answer to its last request only, and only over the same connection.
        if is_last && self.nodes[at].answer == Answer::Expected {
            self.nodes[at].answer = Answer::Arrived(self.witness);
        }
    }

    fn make_equal(&mut self, at: usize) {
        let copy = self.nodes[at].memory;
        let is_resync = self.nodes[at].phase() == Some(Phase::Alone);
        let peer = &mut self.nodes[1 - at];
        peer.memory = copy;
        if is_resync {
            peer.disk = copy;
        }
        self.event(at, RoleEvent::CopiesEqual);
    }

    fn start(&mut self, at: usize) {
        let settings = RoleSettings {
            me: MEMBERS[at],
            has_witness: self.has_witness,
            on_power_loss: OnPowerLoss::Wait,
        };
        let node = &mut self.nodes[at];
        let (machine, effects) = RoleMachine::start(settings, node.durable, node.lost_power);
        node.machine = Some(machine);
        self.carry_out(at, effects);
        // Until the first record is durable, the next start finds the loss again.
        let node = &mut self.nodes[at];
        node.lost_power &= node.recording.is_some();
    }

    fn stop(&mut self, at: usize) {
        self.disconnect();
        self.nodes[at].stop();
    }

    fn lose_power(&mut self, at: usize, keeps: bool) {
        self.stop(at);
        let node = &mut self.nodes[at];
        node.lost_power = true;
        node.holds &= self.durable;
        if keeps {
            node.disk = node.memory;
        }
        node.memory = node.disk;
        let held = self.nodes[0].holds | self.nodes[1].holds;
        self.gone |= self.acknowledged & !held;
    }

    fn connect(&mut self) {
        self.linked = true;
        for at in [0, 1] {
            let greeting = self.nodes[at].machine.as_ref().map(RoleMachine::greeting);
            self.nodes[1 - at].inbox.extend(greeting);
        }
    }

    fn disconnect(&mut self) {
        if self.linked {
            self.linked = false;
            for at in [0, 1] {
                self.nodes[at].inbox.clear();
                self.event(at, RoleEvent::Disconnected);
            }
        }
    }

    fn cut_witness(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.reaches_witness = false;
        node.requests.retain(|late| *late != Request::Ask);
        node.answer = Answer::NotExpected;
    }
}
