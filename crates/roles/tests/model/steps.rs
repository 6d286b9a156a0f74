//! The steps of the world.

use lockstep_roles::{
    Claim, InSyncSet, Phase, RoleEffect, RoleEvent, RoleMachine, RoleSettings, Told,
};
use lockstep_types::settings::OnPowerLoss;

use crate::world::{Action, Break, MEMBERS, Node, Question, World};

impl World {
    /// One step. A primary acknowledges as soon as it may, which is the hardest case.
    pub fn step(&mut self, action: Action) {
        if action.is_failure() {
            self.left.failures -= 1;
        }
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
            Action::Hear(at) => self.hear(at),
            Action::Witness(at) => self.ask_witness(at),
            Action::Late(at, number) => {
                let claim = self.nodes[at].late.remove(number);
                self.claim(claim);
            }
            Action::Answer(at) => {
                let question = std::mem::replace(&mut self.nodes[at].question, Question::NotAsked);
                if let Question::Answered(record) = question {
                    self.event(at, RoleEvent::WitnessAnswered(Some(record)));
                }
            }
            Action::Silent(at, arrives) => {
                self.give_up_question(at, arrives);
                self.event(at, RoleEvent::WitnessSilent);
            }
            Action::Tick(at) => self.event(at, RoleEvent::Tick),
            Action::PauseOver(at) => self.event(at, RoleEvent::PauseOver),
            Action::LeaseEnds(at) => self.nodes[at].lease = false,
            Action::LeaseOver(at) => self.event(at, RoleEvent::LeaseOver),
            Action::Copy(at) => {
                let copy = self.nodes[at].memory;
                let is_resync = self.nodes[at].phase() == Some(Phase::Alone);
                let peer = &mut self.nodes[1 - at];
                peer.memory = copy;
                if is_resync {
                    peer.disk = copy;
                }
            }
            Action::Equal(at) => self.event(at, RoleEvent::CopiesEqual),
            Action::TellEqual(at) => self.tell_equal(at),
            Action::HandOver(at) => {
                self.left.swaps -= 1;
                self.event(at, RoleEvent::HandOver);
            }
            Action::Promote(at) => self.event(at, RoleEvent::Promote),
            Action::Start(at) => self.start(at),
            Action::Connect => self.connect(),
            Action::Kill(at) => self.stop(at),
            Action::Leave(at) => self.leave(at),
            Action::LosePower(at) => self.lose_power(at),
            Action::Cut => self.disconnect(),
        }
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
                RoleEffect::Record(change) => {
                    self.nodes[at].durable = change.to;
                    self.note_record(at);
                    self.event(at, RoleEvent::Recorded);
                }
                RoleEffect::AskWitness => self.send_witness(at, None),
                RoleEffect::Claim(claim) => self.send_witness(at, Some(claim)),
                RoleEffect::TellPeer(told) if self.linked => self.nodes[1 - at].inbox.push(told),
                RoleEffect::TellPeer(_) | RoleEffect::Recover | RoleEffect::Resync => {}
            }
        }
        self.note_lease(at);
    }

    fn breaks(&self, rule: Break) -> bool {
        self.left.breaks == Some(rule)
    }

    // The peer.

    fn hear(&mut self, at: usize) {
        let told = self.nodes[at].inbox.remove(0);
        self.event(at, RoleEvent::PeerTold(told));
    }

    fn tell_equal(&mut self, at: usize) {
        let untold = self.breaks(Break::ProtectEarly) || self.breaks(Break::GrantUntold);
        if untold {
            // The primary believes its own message.
            let mut told = Told {
                record: self.nodes[1 - at].durable,
                seen: Some(self.nodes[at].durable),
            };
            told.record.complete = true;
            self.event(at, RoleEvent::PeerTold(told));
            if self.breaks(Break::GrantUntold) && self.left.swaps > 0 {
                self.left.swaps -= 1;
                self.event(at, RoleEvent::HandOver);
            }
        } else {
            self.event(1 - at, RoleEvent::CopyIsEqual);
        }
    }

    fn connect(&mut self) {
        self.linked = true;
        for at in [0, 1] {
            if let Some(machine) = &self.nodes[at].machine {
                let greeting = machine.greeting();
                self.nodes[1 - at].inbox.push(greeting);
            }
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

    // The witness.

    fn send_witness(&mut self, at: usize, claim: Option<Claim>) {
        self.give_up_question(at, true);
        let is_unasked = self.breaks(Break::AloneUnasked) && self.nodes[at].durable.is_primary();
        let alone = claim.filter(|claim| is_unasked && claim.new.in_sync == InSyncSet::PrimaryOnly);
        self.nodes[at].question = match alone {
            Some(claim) => Question::Answered(claim.new),
            None => Question::Asked(claim),
        };
    }

    /// Awaits the answer to a question no more. A claim may still arrive.
    fn give_up_question(&mut self, at: usize, arrives: bool) {
        let node = &mut self.nodes[at];
        let question = std::mem::replace(&mut node.question, Question::NotAsked);
        if let Question::Asked(Some(claim)) = question
            && arrives
            && !node.late.is_full()
        {
            node.late.push(claim);
        }
    }

    fn claim(&mut self, claim: Claim) {
        // A witness refuses other claims.
        assert_eq!(claim.check(), Ok(()));
        self.witness = if self.breaks(Break::ClaimUncompared) {
            Some(claim.new)
        } else {
            claim.apply(self.witness)
        };
    }

    fn ask_witness(&mut self, at: usize) {
        if let Question::Asked(Some(claim)) = self.nodes[at].question {
            self.claim(claim);
        }
        self.nodes[at].question = self.witness.map_or(Question::NotAsked, Question::Answered);
    }

    // Processes.

    fn start(&mut self, at: usize) {
        let believes = self.breaks(Break::ServeAfterPowerLoss);
        let settings = RoleSettings {
            me: MEMBERS[at],
            has_witness: self.left.has_witness,
            on_power_loss: if believes {
                OnPowerLoss::Serve
            } else {
                OnPowerLoss::Wait
            },
        };
        let node = &mut self.nodes[at];
        node.lost_power = false;
        // The record has noted a power loss already: the first step of a start, before the machine sends anything.
        let (machine, effects) = RoleMachine::start(settings, node.durable, false);
        node.machine = Some(machine);
        self.carry_out(at, effects);
    }

    fn stop(&mut self, at: usize) {
        self.disconnect();
        self.give_up_question(at, true);
        let node = &mut self.nodes[at];
        node.machine = None;
        node.lease = false;
        node.inbox.clear();
    }

    /// A secondary that stops says so, and nothing follows from its word but the moment at which its primary asks: a stop, and
    /// the end of the pause at once.
    fn leave(&mut self, at: usize) {
        if self.breaks(Break::StopTrusted) {
            let mut told = Told {
                record: self.nodes[at].durable,
                seen: Some(self.nodes[1 - at].durable),
            };
            told.record.complete = false;
            self.event(1 - at, RoleEvent::PeerTold(told));
        }
        self.stop(at);
        if self.may_end_pause(1 - at) {
            self.event(1 - at, RoleEvent::PauseOver);
        }
    }

    fn lose_power(&mut self, at: usize) {
        self.stop(at);
        let has_operator = !self.left.has_witness;
        // A copy that was complete keeps every acknowledged operation, if each was durable.
        let is_noticed = !self.breaks(Break::PowerLossUnnoticed) && !self.left.always;
        let durable = self.durable;
        let node = &mut self.nodes[at];
        node.lost_power = has_operator;
        node.holds &= durable;
        node.memory = node.disk;
        let held = self.nodes[0].holds | self.nodes[1].holds;
        self.gone |= self.acknowledged & !held & !durable;
        if is_noticed {
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
        if self.mirrors(at) {
            self.nodes[at].lease = true;
        }
        if self.nodes[at].phase() == Some(Phase::Mirrored) && self.follows(at) {
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
        let has = |node: &Node| {
            if self.left.always {
                node.memory & node.disk
            } else {
                node.memory
            }
        };
        let done = match node.phase() {
            Some(Phase::Alone) => has(node),
            _ if self.mirrors(at) => has(node) & has(peer),
            _ => return,
        };
        let is_mirrored = node.phase() == Some(Phase::Mirrored);
        let new = done & !self.acknowledged;
        self.acknowledged |= new;
        let node = &mut self.nodes[at];
        node.led |= 1 << node.durable.generation.get();
        node.holds |= new;
        if is_mirrored {
            self.nodes[1 - at].holds |= new;
        }
    }
}
