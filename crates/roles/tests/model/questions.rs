//! The questions of the nodes to the witness.
//!
//! Reductions of this file:
//! - A node has one call under way: that of the thread that watches the other node, or that of a command. The answer to a
//!   question of that thread is lost when a command begins; its claim may still arrive. The thread acts on no answer during a
//!   command.
//! - The end of a question follows at once from the last answer. An answer that arrives later is the same.
//! - A node asks only a question that may have an effect, by the record that the witness has then. If the witness gets another
//!   record before it handles the call, the node may as well ask after that.

use lockstep_roles::{
    Answered, Asker, Claim, InSyncSet, QuestionTimes, RoleEvent, RoleRecord, Settle, WitnessCall,
    WitnessRecord,
};
use lockstep_types::SyncNames;

use crate::breaks::Break;
use crate::link::{Link, local_copy};
use crate::queue::Queue;
use crate::session::Session;
use crate::world::{Action, Disk, MEMBERS, World};

/// A call of a node to the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    None,
    /// On the way to the witness. A claim that the witness will refuse is a mere look.
    Asked(Option<Claim>),
    /// On the way back.
    Answered(WitnessRecord),
}

/// The line of a node to the witness.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    pub call: Call,
    /// The call is that of a command.
    pub is_command: bool,
    /// Claims on their way whose answers nobody awaits.
    pub late: Queue<Claim, 2>,
    /// The record with which the node has asked. Only an exploration without a rule looks at it.
    pub asked: Option<RoleRecord>,
}

impl Line {
    pub const fn new() -> Self {
        Self {
            call: Call::None,
            is_command: false,
            late: Queue::new(),
            asked: None,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.call == Call::None
    }

    const fn asker(&self) -> Asker {
        if self.is_command {
            Asker::Command
        } else {
            Asker::Watch
        }
    }

    /// Awaits the answer to a call no more. A claim may still arrive.
    pub fn give_up(&mut self, arrives: bool) {
        let call = std::mem::replace(&mut self.call, Call::None);
        self.is_command = false;
        if let Call::Asked(Some(claim)) = call
            && arrives
            && !self.late.is_full()
        {
            self.late.push(claim);
        }
    }
}

impl World {
    pub fn witness_actions(&self, at: usize, actions: &mut Vec<Action>) {
        let line = &self.nodes[at].line;
        let mut add = |allowed: bool, action| {
            if allowed {
                actions.push(action);
            }
        };
        match line.call {
            Call::None => {}
            Call::Asked(claim) => {
                add(true, Action::Witness(at));
                add(true, Action::Silent(at, false));
                let may_be_late = claim.is_some() && !line.late.is_full();
                add(may_be_late, Action::Silent(at, true));
            }
            Call::Answered(_) => {
                add(self.may_act(at), Action::Answer(at));
                add(true, Action::Silent(at, false));
            }
        }
        for number in 0..line.late.len() {
            add(true, Action::Late(at, number));
        }
        add(self.asks(at), Action::Ask(at));
    }

    /// Whether a node may act on an answer: that may need its disk.
    fn may_act(&self, at: usize) -> bool {
        self.nodes[at].disk == Disk::Answers || self.breaks(Break::HungAsks)
    }

    /// Whether each promise of this secondary not to take over is over (rule R7).
    fn is_released(&self, at: usize) -> bool {
        !self.nodes[1 - at].lease || self.breaks(Break::LeaseIgnored)
    }

    /// Whether a node has a question that may have an effect.
    fn asks(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let (Some(known), Some(machine)) = (self.witness, &node.machine) else {
            return false;
        };
        let is_free = node.line.is_idle() && !node.line.late.is_full();
        if !is_free || !self.may_act(at) {
            return false;
        }
        let mine = node.durable;
        let is_later = known.generation > mine.generation;
        let tells = mine.is_primary() && node.unrecorded.is_some();
        let learns = is_later && self.left.operator.is_any();
        let synced = self.facts(at).session.is_recorded_in_sync();
        match node.session {
            Session::Following => false,
            Session::Standby => {
                let may_replace = known.in_sync == InSyncSet::Both || known.primary == MEMBERS[at];
                let is_apart = self.link == Link::Down;
                mine.complete && is_apart && self.is_released(at) && may_replace && !is_later
            }
            Session::Undecided => {
                let is_unsure = mine.complete || self.breaks(Break::ServeAfterPowerLoss);
                tells || is_unsure && (!is_later || learns)
            }
            Session::Paused | Session::LeavingSync => true,
            Session::Synced { .. } if synced => {
                !machine.witness_report().protects || !self.is_protected(at) || tells || is_later
            }
            _ => tells || is_later,
        }
    }

    /// Whether the witness lets the secondary of a primary take over. A primary that takes that for granted finds at the next
    /// look that a late claim has ended it, or that the answer was that of an earlier generation.
    pub fn is_protected(&self, at: usize) -> bool {
        let generation = self.nodes[at].durable.generation;
        self.witness.is_some_and(|known| {
            let lets = known.in_sync == InSyncSet::Both && known.primary == MEMBERS[at];
            lets && known.generation == generation
        })
    }

    /// A node asks what is due.
    pub fn ask(&mut self, at: usize) {
        self.nodes[at].has_heard = false;
        let record = self.nodes[at].durable;
        self.nodes[at].line.asked = self.breaks(Break::SettleStale).then_some(record);
        let due = QuestionTimes {
            has_waited: true,
            may_take_over: self.is_released(at),
            look_is_due: true,
            cannot_protect: false,
        };
        self.event(at, &RoleEvent::Due(due));
    }

    /// A node calls the witness.
    pub fn call(&mut self, at: usize, asker: Asker, call: WitnessCall) {
        let is_command = asker == Asker::Command;
        let believes = self.believes(at, is_command, &call);
        let line = &mut self.nodes[at].line;
        line.give_up(true);
        line.is_command = is_command;
        line.call = match call {
            WitnessCall::Read => Call::Asked(None),
            WitnessCall::Claim(claim) if believes => Call::Answered(claim.new),
            WitnessCall::Claim(claim) => Call::Asked(Some(claim)),
        };
    }

    /// The witness handles the call of a node.
    pub fn handle_call(&mut self, at: usize) {
        if let Call::Asked(Some(claim)) = self.nodes[at].line.call {
            self.claim(claim);
        }
        self.nodes[at].line.call = self.witness.map_or(Call::None, Call::Answered);
    }

    pub fn claim(&mut self, claim: Claim) {
        if claim.check().is_err() {
            assert!(self.left.breaks.is_some(), "only a fault makes {claim:?}");
            return;
        }
        self.witness = if self.breaks(Break::ClaimUncompared) {
            Some(claim.new)
        } else {
            claim.apply(self.witness)
        };
    }

    /// The answer of the witness arrives.
    pub fn answer(&mut self, at: usize) {
        let line = &mut self.nodes[at].line;
        let asker = line.asker();
        let call = std::mem::replace(&mut line.call, Call::None);
        line.is_command = false;
        if let Call::Answered(record) = call {
            let answered = Answered {
                asker,
                now: Some(record),
                names: SyncNames::default(),
            };
            self.event(at, &RoleEvent::Answered(answered));
        }
    }

    /// The call of a node, or its answer, is lost.
    pub fn lose_call(&mut self, at: usize, arrives: bool) {
        let asker = self.nodes[at].line.asker();
        self.nodes[at].line.give_up(arrives);
        self.event(at, &RoleEvent::Silent(asker));
    }

    /// A question is over.
    pub fn settle(&mut self, at: usize) {
        let end = self.end_of_question(at);
        self.event(at, &end);
    }

    pub fn end_of_question(&self, at: usize) -> RoleEvent {
        RoleEvent::Settle(Settle {
            copy: local_copy(),
            is_released: self.is_released(at),
            is_silent: !self.nodes[at].has_heard,
        })
    }
}
