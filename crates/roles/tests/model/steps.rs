//! The steps of the world.

use std::collections::VecDeque;

use lockstep_roles::{
    Asker, RoleChange, RoleChangeKind, RoleEffect, RoleEvent, RoleMachine, SessionEvent, first_part,
};

use crate::breaks::Break;
use crate::session::Session;
use crate::world::{Action, Disk, Node, World};

impl World {
    /// One step. A primary acknowledges as soon as it may, which is the hardest case.
    pub fn step(&mut self, action: Action) {
        if action.is_failure() {
            self.left.failures -= 1;
        }
        self.act(action);
        for at in [0, 1] {
            self.note_lease(at);
            self.acknowledge(at);
            self.note_durable(at);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Begin(_)
            | Action::Mirror(_)
            | Action::Sync(_)
            | Action::Copy(_)
            | Action::Equal(_)
            | Action::Enter(_)
            | Action::TellEqual(_)
            | Action::NoteEqual(_) => self.act_on_copy(action),
            Action::Hear => self.hear(),
            Action::Connect(at) => self.connect(at),
            Action::Cut => self.cut(),
            Action::Ask(at) => self.ask(at),
            Action::Witness(at) => self.handle_call(at),
            Action::Late(at, number) => {
                let claim = self.nodes[at].line.late.remove(number);
                self.claim(claim);
            }
            Action::Answer(at) => self.answer(at),
            Action::Silent(at, arrives) => self.lose_call(at, arrives),
            Action::LeaveSync(at) => self.leave_sync(at),
            Action::PauseOver(at) => self.nodes[at].session = Session::LeavingSync,
            Action::LeaseEnds(at) => self.nodes[at].lease = false,
            Action::HandOver(at) => {
                self.left.swaps -= 1;
                self.event(at, &RoleEvent::HandOver);
            }
            Action::Promote(at) => self.promote(at, false),
            Action::Force(at) => self.promote(at, true),
            Action::Demote(at) => self.demote(at),
            Action::Start(at) => self.start(at),
            Action::Kill(at) => self.stop(at),
            Action::Leave(at) => self.leave(at),
            Action::LosePower(at) => self.lose_power(at),
            Action::PeerFails(at) => {
                self.nodes[at].session = Session::LeavingSync;
                self.disconnect();
            }
            Action::Hang(at) => self.hang(at),
            Action::GiveWay(at) => self.give_way(at),
            Action::DiskAnswers(at) => self.nodes[at].disk = Disk::Answers,
        }
    }

    fn act_on_copy(&mut self, action: Action) {
        match action {
            Action::Begin(at) => {
                self.nodes[at].memory |= 1 << self.begun;
                self.begun += 1;
            }
            Action::Mirror(at) => self.nodes[1 - at].memory |= self.nodes[at].memory,
            Action::Sync(at) => self.nodes[at].synced = self.nodes[at].memory,
            Action::Copy(at) => {
                let copy = self.nodes[at].memory;
                let is_resync = self.nodes[at].session == Session::Alone;
                let peer = &mut self.nodes[1 - at];
                peer.memory = copy;
                if is_resync {
                    peer.synced = copy;
                }
            }
            Action::Equal(at) => self.become_equal(at),
            Action::Enter(at) => self.enter_sync(at, false),
            Action::TellEqual(at) => self.mark_own(1 - at, true),
            Action::NoteEqual(at) => {
                self.nodes[at].session = Session::Synced { is_recorded: true };
            }
            _ => {}
        }
    }

    // The role machine.

    /// A machine decides on an event. Returns whether the node refuses nothing.
    pub fn event(&mut self, at: usize, event: &RoleEvent) -> bool {
        let facts = self.facts_of(at, event);
        let had = self.keeps_solo_grant(at) && matches!(event, RoleEvent::Due(_));
        let Some(machine) = &mut self.nodes[at].machine else {
            return true;
        };
        let is_command = matches!(
            event,
            RoleEvent::Promote { .. }
                | RoleEvent::Changed
                | RoleEvent::Silent(Asker::Command)
                | RoleEvent::Answered(lockstep_roles::Answered {
                    asker: Asker::Command,
                    ..
                })
        );
        let effects = machine.handle(&facts, *event);
        self.keep_solo_grant(at, had);
        let asker = if is_command {
            Asker::Command
        } else {
            Asker::Watch
        };
        let is_accepted = self.carry_out(at, asker, effects);
        if is_command && !self.nodes[at].is_commanded() {
            self.end_command(at);
        }
        is_accepted
    }

    fn carry_out(&mut self, at: usize, asker: Asker, effects: Vec<RoleEffect>) -> bool {
        for effect in VecDeque::from(effects) {
            match effect {
                RoleEffect::Call(call) => self.call(at, asker, call),
                RoleEffect::Settle(_) => self.settle(at),
                RoleEffect::Change(change) => {
                    self.change(at, change);
                    if asker == Asker::Command {
                        self.event(at, &RoleEvent::Changed);
                    }
                }
                RoleEffect::ServeAlone => {
                    if asker == Asker::Command {
                        self.accept_loss(at);
                    }
                    if self.nodes[at].session == Session::Paused {
                        self.nodes[at].session = Session::LeavingSync;
                    }
                }
                RoleEffect::MarkIncomplete => self.mark_own(at, false),
                RoleEffect::NoteUnrecorded(promotion) => {
                    self.nodes[at].unrecorded = Some(promotion);
                }
                RoleEffect::ClearUnrecorded => self.nodes[at].unrecorded = None,
                RoleEffect::Conflict(_) | RoleEffect::Refuse(_) => return false,
                RoleEffect::SkipNumbersAndRenewVerifier
                | RoleEffect::EndTenure
                | RoleEffect::DropCaches
                | RoleEffect::Report(_)
                | RoleEffect::GiveWay
                | RoleEffect::ServeReads
                | RoleEffect::ServeNothing => {}
            }
        }
        true
    }

    /// Carries a change of the role out (`driver/role/switch.rs`).
    fn change(&mut self, at: usize, change: RoleChange) {
        assert!(change.from == self.nodes[at].durable || self.left.breaks.is_some());
        let mut to = change.to;
        if change.kind == RoleChangeKind::Demote && self.breaks(Break::DemoteInSame) {
            to.generation = change.from.generation;
        }
        let node = &mut self.nodes[at];
        node.durable = to;
        node.unrecorded = node
            .unrecorded
            .filter(|promotion| promotion.belongs_to(&to));
        if node.session.is_leading() != change.serves() || change.ends_session() {
            node.session = Session::first(change.part, to);
            if let Some(machine) = &mut node.machine {
                machine.note_session(SessionEvent::Begins);
            }
            self.disconnect();
        }
        if self.nodes[at].is_forced && to.is_primary() {
            self.accept_loss(at);
        }
        self.nodes[at].is_forced &= to.is_candidate || self.nodes[at].is_commanded();
        self.note_record(at);
    }

    // The replication.

    /// Makes the mark of a secondary durable: whether its own copy is complete.
    pub fn mark_own(&mut self, at: usize, complete: bool) {
        let node = &mut self.nodes[at];
        node.durable.complete = complete;
        node.has_lost_power &= !complete;
        self.note_record(at);
    }

    /// A recovery or a resync is complete. After a resync the primary marks the secondary complete.
    fn become_equal(&mut self, at: usize) {
        if self.nodes[at].session == Session::CatchingUp {
            return self.enter_sync(at, true);
        }
        let node = &mut self.nodes[at];
        node.session = Session::EnteringSync;
        node.durable.peer_complete = true;
        node.has_lost_power = false;
        let follows = SessionEvent::SecondaryFollows(node.durable.generation);
        if let Some(machine) = &mut node.machine {
            machine.note_session(follows);
        }
    }

    fn enter_sync(&mut self, at: usize, is_recorded: bool) {
        let had = self.keeps_solo_grant(at);
        let node = &mut self.nodes[at];
        node.session = Session::Synced { is_recorded };
        if let Some(machine) = &mut node.machine {
            machine.note_session(SessionEvent::EntersSync);
        }
        self.keep_solo_grant(at, had);
    }

    /// Whether a primary that leaves sync may serve alone, and can record that its secondary is not complete.
    pub fn may_leave_sync(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let (has_witness, generation) = (self.left.has_witness, node.durable.generation);
        let may_serve = |machine: &RoleMachine| machine.may_serve_alone(has_witness, generation);
        let is_leaving = node.session == Session::LeavingSync && node.is_working();
        is_leaving && node.machine.as_ref().is_some_and(may_serve)
    }

    fn leave_sync(&mut self, at: usize) {
        self.nodes[at].durable.peer_complete = false;
        self.nodes[at].session = Session::Alone;
        self.note_record(at);
    }

    // Processes.

    fn start(&mut self, at: usize) {
        let settings = self.settings(at);
        let node = &mut self.nodes[at];
        node.is_known_lost = false;
        // The record has noted a power loss already: the first step of a start, before the machine sends anything.
        let part = first_part(&settings, true, node.durable);
        node.session = Session::first(part, node.durable);
        node.machine = Some(RoleMachine::default());
    }

    fn stop(&mut self, at: usize) {
        self.cut();
        let node = &mut self.nodes[at];
        node.line.give_up(true);
        node.machine = None;
        node.session = Session::Standby;
        node.disk = Disk::Answers;
        node.lease = false;
        self.end_command(at);
    }

    /// A secondary that stops says so, and nothing follows from its word but the moment at which its primary asks.
    fn leave(&mut self, at: usize) {
        self.stop(at);
        let peer = &mut self.nodes[1 - at];
        let incomplete = SessionEvent::SecondaryFollows(peer.durable.generation);
        if let Some(machine) = &mut peer.machine {
            machine.note_session(incomplete);
        }
        if peer.session == Session::Paused {
            peer.session = Session::LeavingSync;
        }
    }

    fn lose_power(&mut self, at: usize) {
        self.stop(at);
        let has_operator = !self.left.has_witness;
        let durable = self.durable;
        let node = &mut self.nodes[at];
        node.is_known_lost = has_operator;
        node.holds &= durable;
        node.memory = node.synced;
        let held = self.nodes[0].holds | self.nodes[1].holds;
        self.gone |= self.acknowledged & !held & !durable;
        if self.left.always {
            // A copy that was complete keeps every acknowledged operation, if each was durable.
            self.nodes[at].has_lost_power |= self.nodes[at].durable.complete;
        } else if !self.breaks(Break::PowerLossUnnoticed) {
            let node = &mut self.nodes[at];
            node.durable = node.durable.after_power_loss();
            self.note_record(at);
        }
    }

    // Promises.

    fn note_record(&mut self, at: usize) {
        let record = self.nodes[at].durable;
        let peer = self.nodes[1 - at].durable;
        if !record.complete && peer.is_primary() && peer.complete {
            self.nodes[at].holds = 0;
        }
        if record.is_primary() && !record.peer_complete {
            self.nodes[1 - at].holds = 0;
        }
    }

    /// A primary in touch with its secondary has the lease.
    fn note_lease(&mut self, at: usize) {
        if !self.follows(at) {
            return;
        }
        self.nodes[at].lease |= self.left.has_witness;
        if self.nodes[at].session == (Session::Synced { is_recorded: true }) {
            let (mine, theirs) = (self.nodes[at].memory, self.nodes[1 - at].memory);
            self.nodes[1 - at].holds |= self.acknowledged & mine & theirs;
        }
    }

    fn note_durable(&mut self, at: usize) {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        self.durable |= match node.session {
            Session::Alone => node.synced,
            _ if self.mirrors(at) => node.synced & peer.synced,
            _ => return,
        } & self.acknowledged;
    }

    fn acknowledge(&mut self, at: usize) {
        let (node, peer) = (&self.nodes[at], &self.nodes[1 - at]);
        let has = |node: &Node| {
            if self.left.always {
                node.memory & node.synced
            } else {
                node.memory
            }
        };
        let done = match node.session {
            Session::Alone => has(node),
            _ if self.mirrors(at) => has(node) & has(peer),
            _ => return,
        };
        let is_mirrored = node.session == Session::Synced { is_recorded: true };
        let new = done & !self.acknowledged;
        self.acknowledged |= new;
        let node = &mut self.nodes[at];
        // Only the time after the failures may reach later ones, which no promise looks at.
        let generation = u32::try_from(node.durable.generation.get());
        let bit = generation.ok().and_then(|number| 1_u32.checked_shl(number));
        node.led |= bit.unwrap_or(0);
        node.holds |= new;
        if is_mirrored {
            self.nodes[1 - at].holds |= new;
        }
    }
}
