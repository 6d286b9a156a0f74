//! The connection of the two nodes: the role exchange, and the greeting after it (`driver/replication/role_exchange.rs`).
//!
//! The caller tells its record, and the other node answers with its own, until each has seen the present record of the other.
//! The other node does not act on the first message. So one message is on its way at most. A connection that leads to no
//! greeting ends, and another one may begin.
//!
//! Reductions of this file:
//! - One connection at a time. A record that a second connection would tell meanwhile is that of the same moment, or of an
//!   earlier one: then the first connection has it on its way.
//! - A secondary has no question to the witness while the nodes reach each other. Without a failure they meet within the time of
//!   a takeover.
//! - The greeting is one step. The marks of both nodes may change before and after it.

use lockstep_roles::{LocalCopy, Offered, RoleEvent, RoleMachine, RoleOffer, RoleRecord, SoloEnds};
use lockstep_types::{StoreId, SyncStanding};

use crate::session::Session;
use crate::world::World;

/// The content of a message of a role exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    pub record: RoleRecord,
    /// The record of the receiver; `None` in the first message only.
    pub seen: Option<RoleRecord>,
    pub asks_incomplete_mark: bool,
}

/// A role exchange with the message that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meeting {
    pub caller: usize,
    /// The message is an answer to the caller.
    pub is_answer: bool,
    pub told: Offer,
    /// The record that the caller had seen before it sent the message to which this is the answer.
    pub seen: Option<RoleRecord>,
    /// The moment of each node before its first message.
    pub since: [SoloEnds; 2],
}

impl Meeting {
    /// The node that hears the message.
    pub const fn receiver(&self) -> usize {
        if self.is_answer {
            self.caller
        } else {
            1 - self.caller
        }
    }
}

/// The connection between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// The nodes do not reach each other, or one of them has refused the other.
    Down,
    /// The nodes reach each other.
    Idle,
    Meeting(Meeting),
    /// The primary has greeted its secondary.
    Up,
}

/// The copies belong together, and both hold operations of before the first step.
pub fn local_copy() -> LocalCopy {
    LocalCopy {
        store: Some(StoreId::from_bytes([1; 16])),
        sync: SyncStanding::default(),
        was_resynced: true,
        has_data: true,
    }
}

impl World {
    /// Whether a node may call the other one.
    pub fn may_call(&self) -> bool {
        let can_meet = self
            .nodes
            .iter()
            .all(|node| node.is_working() && !node.is_commanded());
        matches!(self.link, Link::Down | Link::Idle) && can_meet
    }

    /// A node begins a role exchange.
    pub fn connect(&mut self, at: usize) {
        let ends = |at: usize| {
            self.machine(at)
                .map_or_else(SoloEnds::default, RoleMachine::solo_ends)
        };
        self.link = Link::Meeting(Meeting {
            caller: at,
            is_answer: false,
            told: self.own_offer(at, None),
            seen: None,
            since: [0, 1].map(ends),
        });
    }

    fn own_offer(&self, at: usize, seen: Option<RoleRecord>) -> Offer {
        let facts = self.facts(at);
        let asks = self
            .machine(at)
            .is_some_and(|machine| machine.asks_incomplete_mark(&facts));
        Offer {
            record: facts.record,
            seen,
            asks_incomplete_mark: asks,
        }
    }

    /// The message on its way arrives.
    pub fn hear(&mut self) {
        let Link::Meeting(meeting) = self.link else {
            return;
        };
        let (at, theirs) = (meeting.receiver(), meeting.told);
        let before = self.nodes[at].durable;
        let acts = meeting.is_answer || theirs.seen.is_some();
        if acts && !self.offered(at, theirs, meeting.since[at]) {
            self.link = Link::Down;
            return;
        }
        let has_changed = self.nodes[at].durable != before;
        if meeting.is_answer && !has_changed && meeting.seen == Some(theirs.record) {
            return self.greet(at);
        }
        self.link = Link::Meeting(Meeting {
            is_answer: !meeting.is_answer,
            told: self.own_offer(at, Some(theirs.record)),
            seen: theirs.seen.filter(|_| !meeting.is_answer),
            ..meeting
        });
    }

    /// A node decides on an offer. Returns whether the exchange goes on.
    fn offered(&mut self, at: usize, told: Offer, since: SoloEnds) -> bool {
        let settings = self.settings(at);
        let theirs = RoleOffer {
            version: 1,
            record: told.record,
            seen: told.seen,
            store: local_copy().store,
            sync: SyncStanding::default(),
            asks_incomplete_mark: told.asks_incomplete_mark,
            discarded_own_changes: false,
            failover_after_ms: settings.failover_after_ms,
            witness: settings.witness,
        };
        let offered = Offered {
            theirs,
            copy: local_copy(),
            since,
            excludes_other: self.serves(at),
        };
        self.event(at, &RoleEvent::Offered(offered))
    }

    /// The caller, if it serves, greets a secondary of its generation.
    fn greet(&mut self, at: usize) {
        self.link = Link::Idle;
        let (primary, secondary) = (&self.nodes[at], &self.nodes[1 - at]);
        let is_same = primary.durable.generation == secondary.durable.generation;
        let is_welcome = secondary.session == Session::Standby && secondary.is_working();
        if !primary.session.is_leading() || !is_same || !is_welcome {
            return;
        }
        let have_kept = !primary.has_lost_power && !secondary.has_lost_power;
        let in_sync = primary.durable.peer_complete && secondary.durable.complete && have_kept;
        let session = primary.session;
        self.nodes[1 - at].has_heard = true;
        if !in_sync {
            self.mark_own(1 - at, false);
        }
        match session {
            Session::Paused if in_sync => self.begin_to_follow(at, Session::CatchingUp),
            // A primary that may not serve alone yet gives the connection up.
            Session::Paused => self.nodes[at].session = Session::LeavingSync,
            Session::Alone => self.begin_to_follow(at, Session::Alone),
            _ => {}
        }
    }

    fn begin_to_follow(&mut self, at: usize, session: Session) {
        self.link = Link::Up;
        self.nodes[at].session = session;
        self.nodes[1 - at].session = Session::Following;
    }

    /// The connection ends. The nodes may meet again.
    pub fn disconnect(&mut self) {
        if self.link == Link::Up {
            self.link = Link::Idle;
            for node in &mut self.nodes {
                node.session = node.session.without_link();
            }
        }
    }

    /// The nodes do not reach each other any more.
    pub fn cut(&mut self) {
        self.disconnect();
        self.link = Link::Down;
    }
}
