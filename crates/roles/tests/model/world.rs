//! The world of the model: two nodes, their copies, the witness, and the steps that may come next.
//!
//! Reductions of this file, each with its reason (docs/protocol/roles.md has the list):
//! - A record is durable at once. A node sends nothing between the event and its record, so a failure in between equals
//!   one before the event.
//! - A message to or from the witness may be lost at any time. That costs no failure, so no link to the witness is cut.
//! - A power loss takes all operations that are not synced. A copy that keeps it is one that was synced just before.

use lockstep_roles::{
    InSyncSet, Member, RoleFacts, RoleMachine, RoleRecord, RoleSettings, UnrecordedPromotion,
    WitnessRecord,
};
use lockstep_types::settings::{OnPeerLoss, OnPowerLoss, Role};

use crate::breaks::Break;
use crate::limits::Limits;
use crate::link::Link;
use crate::questions::Line;
use crate::session::Session;

/// A set of operations, one bit each.
pub type Operations = u8;

/// A set of generations, one bit each.
pub type Generations = u32;

pub const MEMBERS: [Member; 2] = [Member::First, Member::Second];

/// The time of a takeover on both nodes. No step depends on it.
const FAILOVER_AFTER_MS: u64 = 1500;

/// One step of the world. A number is a node: 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The primary does the next operation on its own copy.
    Begin(usize),
    /// The other node does the operations that the primary has.
    Mirror(usize),
    /// A node puts its copy on stable storage.
    Sync(usize),
    /// The message of the role exchange arrives.
    Hear,
    /// A node has something to ask the witness, and does so.
    Ask(usize),
    /// The witness handles the call of a node.
    Witness(usize),
    /// The witness handles a claim of which the node has given up to hear.
    Late(usize, usize),
    /// The answer of the witness arrives.
    Answer(usize),
    /// The call or its answer is lost. A claim may still arrive.
    Silent(usize, bool),
    /// Without a witness: the pause limit has passed.
    PauseOver(usize),
    /// The lease of a node ends.
    LeaseEnds(usize),
    /// A recovery or a resync copies to the secondary what the primary has.
    Copy(usize),
    /// A recovery or a resync is complete.
    Equal(usize),
    /// The mark of the primary that its secondary is complete is durable, and the core hears of that.
    Enter(usize),
    /// A primary that may serve alone records that its secondary is not complete, and serves alone.
    LeaveSync(usize),
    /// The primary tells the secondary that its copy is equal, and the secondary records that.
    TellEqual(usize),
    /// The primary hears that the secondary has recorded that.
    NoteEqual(usize),
    HandOver(usize),
    Promote(usize),
    Demote(usize),
    Force(usize),
    Start(usize),
    Connect(usize),
    /// The process of a node is killed.
    Kill(usize),
    /// The secondary says that it stops, and ends. Its primary waits no longer.
    Leave(usize),
    /// A node loses power, and all operations that are not synced.
    LosePower(usize),
    /// The link between the nodes is cut.
    Cut,
    /// The secondary cannot do an operation of the primary, or not in time.
    PeerFails(usize),
    /// The disk of a node answers no call any more.
    Hang(usize),
    /// A node finds that its disk hangs, and gives way.
    GiveWay(usize),
    /// The disk answers again.
    DiskAnswers(usize),
}

impl Action {
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::Kill(_)
                | Self::Leave(_)
                | Self::LosePower(_)
                | Self::Cut
                | Self::PeerFails(_)
                | Self::Hang(_)
                | Self::Demote(_)
                | Self::Force(_)
        )
    }
}

/// The disk of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disk {
    Answers,
    Hangs,
    /// The disk hangs, and its node has given way (rule R12). `is_sure`: the witness lets the secondary take over, and no late
    /// claim, of which the node awaits no answer, could end that.
    HasGivenWay {
        is_sure: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct Node {
    /// The record on its disk.
    pub durable: RoleRecord,
    /// On its disk, too: the promotion by force that the witness must still know.
    pub unrecorded: Option<UnrecordedPromotion>,
    /// `None` while the process is down.
    pub machine: Option<RoleMachine>,
    pub session: Session,
    pub disk: Disk,
    /// With `always`: the copy has lost power while it was complete, and has not been made equal since.
    pub has_lost_power: bool,
    /// The node is down after a power loss, as the operator knows.
    pub is_known_lost: bool,
    /// The peer has promised not to take over.
    pub lease: bool,
    /// The candidature of this node, or its lead, is that of an operator who accepts a loss.
    pub is_forced: bool,
    /// A primary was connected since the question that is under way.
    pub has_heard: bool,
    pub memory: Operations,
    pub synced: Operations,
    /// The line to the witness.
    pub line: Line,
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
    pub link: Link,
    /// An operator has demoted a node, or has forced one to lead.
    pub was_forced: bool,
    pub begun: u8,
    pub acknowledged: Operations,
    /// Acknowledged operations that are on stable storage where an `fsync` puts them: on both nodes, or on the disk of a
    /// primary that serves alone.
    pub durable: Operations,
    /// Acknowledged operations that every node has lost with its power, before they were synced, or that an operator gave up.
    pub gone: Operations,
}

impl Node {
    fn new(role: Role) -> Self {
        Self {
            durable: RoleRecord::begin(role),
            unrecorded: None,
            machine: None,
            session: Session::Standby,
            disk: Disk::Answers,
            has_lost_power: false,
            is_known_lost: false,
            lease: false,
            is_forced: false,
            has_heard: false,
            memory: 0,
            synced: 0,
            line: Line::new(),
            holds: 0,
            led: 0,
        }
    }

    /// The process runs, and its disk answers.
    pub fn is_working(&self) -> bool {
        self.machine.is_some() && self.disk == Disk::Answers
    }

    /// A command of an operator is under way: no other thread changes the role.
    pub fn is_commanded(&self) -> bool {
        self.line.is_command && !self.line.is_idle()
    }

    fn is_synced(&self) -> bool {
        matches!(self.session, Session::Synced { .. })
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
            link: Link::Down,
            was_forced: false,
            begun: 0,
            acknowledged: 0,
            durable: 0,
            gone: 0,
        }
    }

    pub fn machine(&self, at: usize) -> Option<&RoleMachine> {
        self.nodes[at].machine.as_ref()
    }

    pub fn settings(&self, at: usize) -> RoleSettings {
        RoleSettings {
            me: MEMBERS[at],
            has_witness: self.left.has_witness,
            witness: None,
            failover_after_ms: self.left.has_witness.then_some(FAILOVER_AFTER_MS),
            on_power_loss: if self.breaks(Break::ServeAfterPowerLoss) {
                OnPowerLoss::Serve
            } else {
                OnPowerLoss::Wait
            },
            on_peer_loss: OnPeerLoss::Continue,
        }
    }

    /// The facts of a node for its role machine.
    pub fn facts(&self, at: usize) -> RoleFacts {
        let node = &self.nodes[at];
        RoleFacts {
            settings: self.settings(at),
            record: node.durable,
            unrecorded: node.unrecorded,
            session: node.session.state(),
            is_connected: self.link == Link::Up,
            is_serving: node.session.is_leading(),
        }
    }

    /// Whether clients may read. A primary whose secondary may take over needs a lease (rule R7).
    pub fn serves(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let needs_lease = self.left.has_witness && node.durable.peer_complete;
        node.machine.is_some() && node.session.is_leading() && (node.lease || !needs_lease)
    }

    /// Whether the other node is the connected secondary of this one.
    pub fn follows(&self, at: usize) -> bool {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        self.link == Link::Up && node.session.is_leading() && peer.session == Session::Following
    }

    /// Whether operations of this node reach the other one.
    pub fn mirrors(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let is_mirrored = node.session == Session::EnteringSync || node.is_synced();
        is_mirrored && self.follows(at)
    }

    /// Whether the disks of both nodes answer.
    fn both_work(&self) -> bool {
        self.nodes.iter().all(Node::is_working)
    }

    // Actions.

    pub fn actions(&self, actions: &mut Vec<Action>) {
        for at in [0, 1] {
            self.copy_actions(at, actions);
            self.role_actions(at, actions);
            self.witness_actions(at, actions);
            self.failure_actions(at, actions);
        }
        if self.link != Link::Down && self.left.failures > 0 {
            actions.push(Action::Cut);
        }
        if let Link::Meeting(meeting) = self.link
            && !self.nodes[meeting.receiver()].is_commanded()
        {
            actions.push(Action::Hear);
        }
    }

    fn copy_actions(&self, at: usize, actions: &mut Vec<Action>) {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let mut add = |allowed: bool, action| {
            if allowed {
                actions.push(action);
            }
        };
        let serves =
            node.is_synced() || matches!(node.session, Session::Alone | Session::EnteringSync);
        let begins = node.is_working() && serves && self.begun < self.left.operations;
        add(begins, Action::Begin(at));
        let is_synced = node.synced == node.memory;
        add(node.is_working() && !is_synced, Action::Sync(at));
        if !self.follows(at) {
            return;
        }
        let works = self.both_work();
        let is_equal = node.memory == peer.memory;
        add(works && self.mirrors(at) && !is_equal, Action::Mirror(at));
        let recovers = node.session == Session::CatchingUp;
        let copies = works && (recovers || node.session == Session::Alone);
        let is_copied = is_equal && (recovers || peer.synced == node.memory);
        add(copies && !is_copied, Action::Copy(at));
        add(copies && is_copied, Action::Equal(at));
        let enters = node.session == Session::EnteringSync && node.is_working();
        add(enters, Action::Enter(at));
        let is_told = node.session == Session::Synced { is_recorded: false };
        let tells = works && is_told && is_equal && !peer.durable.complete;
        add(tells, Action::TellEqual(at));
        // The primary believes its own message.
        let is_believed = self.breaks(Break::ProtectEarly) || self.breaks(Break::GrantUntold);
        let hears = peer.durable.complete || is_believed;
        add(is_told && hears, Action::NoteEqual(at));
    }

    fn role_actions(&self, at: usize, actions: &mut Vec<Action>) {
        let node = &self.nodes[at];
        let mut add = |allowed: bool, action| {
            if allowed {
                actions.push(action);
            }
        };
        let pauses = node.session == Session::Paused && !self.left.has_witness;
        add(pauses && node.is_working(), Action::PauseOver(at));
        add(self.may_leave_sync(at), Action::LeaveSync(at));
        add(node.lease && !self.follows(at), Action::LeaseEnds(at));
        add(self.may_hand_over(at), Action::HandOver(at));
        add(self.may_promote(at), Action::Promote(at));
        add(
            node.machine.is_none() && self.may_start(at),
            Action::Start(at),
        );
        add(self.may_call(), Action::Connect(at));
        add(
            node.disk == Disk::Hangs && self.gives_way(at),
            Action::GiveWay(at),
        );
        add(node.disk != Disk::Answers, Action::DiskAnswers(at));
    }

    fn failure_actions(&self, at: usize, actions: &mut Vec<Action>) {
        if self.left.failures == 0 {
            return;
        }
        let node = &self.nodes[at];
        let mut add = |allowed: bool, action| {
            if allowed {
                actions.push(action);
            }
        };
        add(node.machine.is_some(), Action::Kill(at));
        add(
            self.breaks(Break::StopTrusted) && self.follows(1 - at),
            Action::Leave(at),
        );
        // A second power loss of a node that is down changes nothing.
        let is_noted = self.left.always || node.durable == node.durable.after_power_loss();
        let has_lost = is_noted && node.synced == node.memory;
        add(node.machine.is_some() || !has_lost, Action::LosePower(at));
        let can_fail = node.is_synced() || node.session == Session::CatchingUp;
        add(
            can_fail && node.is_working() && self.follows(at),
            Action::PeerFails(at),
        );
        add(self.left.hangs && node.is_working(), Action::Hang(at));
        add(self.may_demote(at), Action::Demote(at));
        add(self.may_force(at), Action::Force(at));
    }
}
