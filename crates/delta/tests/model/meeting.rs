//! The nodes meet: one of them leads, and a recovery or a resync makes the copies equal.

use lockstep_delta::{
    BarrierNames, CopyAccount, CopyDifference, DurableMarks, Interval, MarkCoverage,
};
use lockstep_types::id::SyncId;

use crate::limits::Break;
use crate::world::{ALL, Action, Link, PARTS, PLACES, RECORD, Resynced, World, bit};

/// The promises of docs/protocol/delta.md that a step may break.
pub const UNNAMED: &str = "a difference between the copies is named";
pub const UNEQUAL: &str = "after a resync or a recovery both copies are equal";
pub const REFUSED: &str = "a base is refused only after both nodes lost power";

impl World {
    /// The node that leads from the meeting on.
    fn leader(&self) -> usize {
        let rank = |at: usize| {
            let role = self.nodes[at].role;
            (role.leads, role.generation)
        };
        usize::from(rank(1) > rank(0))
    }

    /// Whether both nodes say in sync, of the same sync.
    fn are_in_sync(&self, leader: usize) -> bool {
        let (one, other) = (self.nodes[leader].role, self.nodes[1 - leader].role);
        let is_same = one.rest_since.is_some() && one.rest_since == other.copy_of;
        one.in_sync && one.complete && other.complete && !other.leads && is_same
    }

    pub fn may_connect(&self) -> bool {
        let leader = self.leader();
        if self.are_in_sync(leader) {
            return true;
        }
        let has_ended = leader != self.owner || (0..PLACES).all(|place| !self.is_in_flight(place));
        !self.nodes[leader].role.in_sync && has_ended
    }

    pub fn connect(&mut self) {
        let leader = self.leader();
        if self.nodes[1 - leader].role.leads {
            self.demote(1 - leader);
        }
        if leader != self.owner {
            self.writes = [None; PARTS];
            self.roll_back(1 - leader);
        }
        self.owner = leader;
        if self.are_in_sync(leader) {
            let other = self.other();
            let places = self.nodes[leader].waiting | self.nodes[other].waiting;
            self.link = Link::Recovery(places);
            // A process that was started again begins anew.
            if !self.nodes[leader].barriers.mirrors() {
                self.begin_mirroring();
            }
        } else {
            self.begin_resync();
        }
        if self.has_namespace() || !self.limits.traces() || self.link != Link::Resync {
            self.tell_interval();
        }
    }

    /// A primary that another one has replaced: its writes in flight stay in PAW, and its operation is rolled back.
    fn demote(&mut self, at: usize) {
        if at == self.owner {
            for place in 0..PARTS {
                if self.writes[place].take().is_some() {
                    self.nodes[at].waiting |= bit(place);
                }
            }
        }
        let node = &mut self.nodes[at];
        node.role.leads = false;
        node.role.complete = false;
        node.role.in_sync = false;
        node.restart();
        node.end_trace();
    }

    /// The other node may have done what is rolled back, and lose its marks.
    fn roll_back(&mut self, at: usize) {
        if self.operation.take().is_some() && !self.breaks(Break::RollBackUnnoted) {
            self.nodes[at].marks.rest |= bit(RECORD);
        }
    }

    fn account(&self, at: usize, leads: bool) -> CopyAccount {
        let node = &self.nodes[at];
        let sync = if leads {
            node.role.rest_since
        } else {
            node.role.copy_of
        };
        let boundary = sync.map(|number| SyncId::from_words(number.into(), [0; 16]));
        let coverage = match self.limits.breaks {
            Some(Break::OneIntactAnywhere) if node.coverage.durable().is_some() => {
                MarkCoverage::since(Interval::ZERO)
            }
            _ => node.coverage,
        };
        let account = CopyAccount::new(&node.barriers, coverage, boundary);
        if leads || !self.limits.is_unasked {
            return account;
        }
        // The secondary is not asked for its marks.
        CopyAccount {
            known: if node.is_nameless {
                Vec::new()
            } else {
                account.known
            },
            coverage: MarkCoverage::after_power_loss(None),
            ..account
        }
    }

    fn begin_resync(&mut self) {
        let (leader, other) = (self.owner, self.other());
        let primary = self.account(leader, true);
        let difference = CopyDifference::between(&primary, &self.account(other, false));
        let named = self.nodes[leader].waiting | self.nodes[other].waiting;
        let places = named | self.places(difference);
        self.check_difference(difference, places);
        let open = self.nodes.each_ref().map(|node| node.barriers.open());
        let in_memory = self.breaks(Break::UnionInMemory);
        let writes = !self.limits.in_memory();
        let outlives = self.breaks(Break::TraceOutlivesAlone);
        self.leave_names(leader);
        if self.limits.traces() {
            self.resynced = if self.lost[leader] {
                Resynced::LacksMarks
            } else {
                Resynced::LacksBarrier
            };
            // The primary has the marks that it has asked for.
            let two = &mut self.nodes[other];
            (two.marks.columns, two.marks.rest) = ([0; 2], 0);
            two.barriers.forget_marks();
            two.coverage = MarkCoverage::after_power_loss(None);
        }
        let one = &mut self.nodes[leader];
        if !outlives {
            one.end_trace();
        }
        let own = one.marks.rest | one.marks.durable;
        one.marks.rest = places;
        match difference {
            CopyDifference::Since(base) if writes => {
                // The marks that were asked for are on stable storage before the resync begins, and then the word.
                one.marks.durable |= if in_memory { own } else { places };
                one.coverage.write(DurableMarks {
                    after: base.through,
                    through: open[0].max(open[1]),
                    is_last: false,
                });
            }
            CopyDifference::Rest | CopyDifference::Since(_) => {}
            CopyDifference::Everything => {
                if writes {
                    one.marks.durable = ALL;
                    one.coverage.write(DurableMarks {
                        after: Interval::ZERO,
                        through: Interval::ZERO,
                        is_last: false,
                    });
                }
                let two = &mut self.nodes[other];
                two.names = BarrierNames::default();
                two.barriers.forget_names();
            }
        }
        let sync = Some(self.draw(1));
        for node in &mut self.nodes {
            node.waiting = 0;
            node.role.rest_since = None;
            node.role.copy_of = None;
        }
        self.nodes[leader].role.rest_since = sync;
        self.nodes[leader].role.complete = true;
        self.nodes[other].role.copy_of = sync;
        self.nodes[other].role.complete = false;
        self.link = Link::Resync;
        self.begin_mirroring();
    }

    /// The places that a resync of a difference looks at.
    fn places(&self, difference: CopyDifference) -> u8 {
        let (one, other) = (&self.nodes[self.owner], &self.nodes[self.other()]);
        match difference {
            CopyDifference::Rest => one.marks.rest,
            CopyDifference::Since(base) => {
                let own = one.marks.rest | one.marks.durable | one.marks_after(base.through);
                let theirs =
                    other.marks.rest | other.marks.durable | other.marks_after(base.through);
                let asks = !self.breaks(Break::UnionForgetsSecondary) && !self.limits.is_unasked;
                own | if asks { theirs } else { 0 }
            }
            CopyDifference::Everything => ALL,
        }
    }

    fn check_difference(&mut self, difference: CopyDifference, places: u8) {
        let [one, other] = self.nodes.each_ref().map(|node| node.memory);
        let is_named = |place: usize| places & bit(place) != 0 || one[place] == other[place];
        if !(0..PLACES).all(is_named) {
            self.broken = Some(UNNAMED);
        }
        let both = self.lost == [true; 2];
        let is_base = matches!(difference, CopyDifference::Since(_));
        let is_traced = self.nodes[self.owner].trace.is_some() && self.lost[self.owner];
        self.survived.traced |= is_base && is_traced;
        if difference == CopyDifference::Everything {
            // Without the marks of the secondary, more is refused.
            let is_refused = self.limits.is_unasked || self.resynced == Resynced::LacksMarks;
            if !both && !self.is_old_copy && !self.is_excused && !is_refused {
                self.broken = Some(REFUSED);
            }
        } else if both {
            self.survived.both = true;
        } else if self.owner == 1 && self.lost[0] {
            self.survived.deposed |= is_base;
        }
    }

    pub fn resync_actions(&self, actions: &mut Vec<Action>) {
        if self.link == Link::Synced && !self.nodes[self.other()].role.complete {
            actions.push(Action::MarkOther);
        }
        if self.link != Link::Resync {
            return;
        }
        let requests = (0..PLACES).filter(|place| self.requests & bit(*place) != 0);
        actions.extend(requests.map(Action::FinishRest));
        let rest = self.nodes[self.owner].marks.rest & !self.requests;
        // A part is compared under its lock, and the record before them.
        let is_free = |place: &usize| rest & bit(*place) != 0 && !self.is_in_flight(*place);
        let places = if rest & bit(RECORD) != 0 {
            RECORD..PLACES
        } else {
            0..PARTS
        };
        actions.extend(places.filter(is_free).map(Action::SendRest));
        if rest | self.requests == 0 {
            actions.push(Action::MarkIn);
        }
    }

    /// A place is made equal: its mark moves from the rest to the interval, which only a barrier ends.
    pub fn send_rest(&mut self, place: usize) {
        let owner = self.owner;
        if self.limits.traces() {
            self.send_request(place);
            return;
        }
        if self.breaks(Break::ResyncForgetsFinishedEarly) {
            let other = self.other();
            self.nodes[other].memory[place] = self.nodes[owner].memory[place];
        } else {
            self.send_place(place);
        }
        self.nodes[owner].marks.rest &= !bit(place);
    }

    /// The secondary makes a place equal, and answers. It marks in the interval that it has open.
    fn send_request(&mut self, place: usize) {
        let (owner, other) = (self.owner, self.other());
        self.requests |= bit(place);
        let value = self.nodes[owner].memory[place];
        self.read_turn();
        let breaks = self.limits.breaks;
        let node = &mut self.nodes[other];
        node.mark(node.barriers.open(), bit(place), breaks);
        node.memory[place] = value;
    }

    /// The primary reads the answer. The place moves from the rest to the interval that is open at this moment.
    pub fn finish_rest(&mut self, place: usize) {
        let breaks = self.limits.breaks;
        self.requests &= !bit(place);
        let node = &mut self.nodes[self.owner];
        if breaks != Some(Break::ResyncForgetsFinishedEarly) {
            node.mark(node.barriers.open(), bit(place), breaks);
        }
        node.marks.rest &= !bit(place);
        if place == RECORD {
            self.tell_interval();
        }
    }

    pub fn mark_in(&mut self) {
        self.link = Link::Synced;
        let role = &mut self.nodes[self.owner].role;
        role.in_sync = true;
        role.copy_of = role.rest_since;
        self.check_equal();
    }

    /// The secondary syncs its store, and marks its copy.
    pub fn mark_other(&mut self) {
        let other = self.other();
        let node = &mut self.nodes[other];
        node.stable = node.memory;
        node.role.complete = true;
        node.role.rest_since = node.role.copy_of;
    }

    pub fn recovered(&mut self) {
        self.link = Link::Synced;
        self.check_equal();
    }

    /// Where nothing is in flight, the copies are equal.
    fn check_equal(&mut self) {
        let [one, other] = self.nodes.each_ref().map(|node| node.memory);
        let is_equal = |place: usize| self.is_in_flight(place) || one[place] == other[place];
        if !(0..PLACES).all(is_equal) {
            self.broken = Some(UNEQUAL);
        }
    }

    /// The events of the barrier's machine that have no action of their own.
    pub fn step(&mut self, action: Action) {
        if action.is_failure() {
            self.left.failures -= 1;
        }
        match action {
            Action::Write(place) if place >= PARTS => {
                self.write_alone(place / PARTS - 1, place % PARTS);
            }
            Action::Write(place) => self.begin_write(place),
            Action::Announce(place) => self.announce(place),
            Action::Announced(place) => self.mark_announced(place),
            Action::Heard(place) => self.hear_announced(place),
            Action::PostTurn => self.post_turn(),
            Action::ReadTurn => self.read_turn(),
            Action::Execute(place) => self.execute(place),
            Action::Deliver(place) => self.deliver(place),
            Action::Answer(place) => self.answer(place),
            Action::Operate => self.begin_operation(),
            Action::Commit => self.commit(),
            Action::Apply => self.apply(),
            Action::BarrierDue => self.begin_barrier(),
            Action::Message(from) => self.bring_message(from),
            Action::Stable(at) => self.become_stable(at),
            Action::LateMark(at) => self.mark_late(at),
            Action::MarkOut(at) => self.mark_out(at),
            Action::FinishAlone(place) => self.finish_alone(place),
            Action::WriteDown(at) => self.write_down(at),
            Action::BeginTrace(at) => {
                self.leave_names(at);
                self.nodes[at].begin_trace(self.limits.breaks);
            }
            Action::Connect => self.connect(),
            Action::Recover(place) => self.recover(place),
            Action::Recovered => self.recovered(),
            Action::SendRest(place) => self.send_rest(place),
            Action::FinishRest(place) => self.finish_rest(place),
            Action::MarkIn => self.mark_in(),
            Action::MarkOther => self.mark_other(),
            Action::TakeOver(at) | Action::Force(at) => self.take_over(at),
            Action::Save(at) => self.save(at),
            Action::Cut => self.cut(),
            Action::Kill(at) => self.kill(at),
            Action::Power(at, kept) => self.lose_power(at, kept),
            Action::PutBack(at) => self.put_back(at),
        }
    }

    pub fn actions(&self, actions: &mut Vec<Action>) {
        self.mirrored_actions(actions);
        self.resync_actions(actions);
        self.apart_actions(actions);
    }
}
