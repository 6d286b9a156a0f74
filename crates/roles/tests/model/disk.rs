//! A disk that hangs, and the node that gives way (rule R12).
//!
//! A process whose disk hangs writes no record and does no operation. The node dials nobody, refuses callers and asks the witness
//! nothing. A connection that stands goes on until the node gives way. A process that is killed meanwhile starts once the disk
//! answers.

use lockstep_roles::{Claim, InSyncSet, RoleEffect, RoleEvent};

use crate::breaks::Break;
use crate::link::Link;
use crate::world::{Action, Disk, World};

/// More steps than a takeover takes.
const STEPS_MAX: usize = 60;

impl World {
    /// The disk of a node hangs. A role exchange ends.
    pub fn hang(&mut self, at: usize) {
        self.nodes[at].disk = Disk::Hangs;
        if self.link != Link::Up {
            self.link = Link::Down;
        }
    }

    fn disk_hangs(&self, at: usize) -> RoleEvent {
        RoleEvent::DiskHangs {
            may_peer_hang: self.nodes[1 - at].disk != Disk::Answers,
        }
    }

    /// Whether a node whose disk hangs gives way, by its own knowledge.
    pub fn gives_way(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        if node.disk != Disk::Hangs {
            return false;
        }
        let Some(mut machine) = node.machine.clone() else {
            return false;
        };
        if self.breaks(Break::GiveWayWhileAsking) {
            // The end of the question: the machine forgets it.
            machine.handle(&self.facts(at), self.end_of_question(at));
        }
        let effects = machine.handle(&self.facts(at), self.disk_hangs(at));
        let is_broken = self.breaks(Break::GiveWayUnprotected) && self.follows(at);
        effects.contains(&RoleEffect::GiveWay) || is_broken
    }

    /// A node gives way.
    pub fn give_way(&mut self, at: usize) {
        let is_broken = self.breaks(Break::GiveWayUnprotected);
        let ends = |claim: Claim| claim.new.in_sync == InSyncSet::PrimaryOnly;
        let is_late = self.nodes[at].line.late.iter().any(ends);
        let is_sure = (is_broken || self.is_protected(at)) && !is_late;
        self.nodes[at].disk = Disk::HasGivenWay { is_sure };
        self.cut();
    }

    /// A node that has given way is replaced before its disk answers, if the other node works and is complete by its record.
    pub fn who_gives_way_is_replaced(&self) -> bool {
        let given = |at: &usize| self.nodes[*at].disk == Disk::HasGivenWay { is_sure: true };
        let Some(at) = [0, 1].into_iter().find(given) else {
            return true;
        };
        let other = &self.nodes[1 - at];
        if !other.is_working() || !other.durable.complete {
            return true;
        }
        let mut world = self.clone();
        for _ in 0..STEPS_MAX {
            if world.serves(1 - at) {
                return true;
            }
            let mut actions = Vec::new();
            world.actions(&mut actions);
            let Some(action) = actions
                .into_iter()
                .find(|action| is_of_takeover(*action, at))
            else {
                return false;
            };
            world.step(action);
        }
        false
    }
}

/// Whether this is a step of the takeover from the node `hung`, or one that may come before.
fn is_of_takeover(action: Action, hung: usize) -> bool {
    match action {
        Action::Witness(_) | Action::Answer(_) | Action::Late(..) | Action::Ask(_) => true,
        Action::LeaseEnds(at) => at == hung,
        _ => false,
    }
}
