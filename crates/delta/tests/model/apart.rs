//! The nodes apart: failures, a primary that leaves the sync and serves alone, and a takeover.

use lockstep_delta::{BarrierEvent, BarrierMachine, Interval, MarkCoverage};

use crate::limits::{Break, Hands, Limits};
use crate::world::{
    Action, Here, Link, Marks, PARTS, PLACES, RECORD, Resynced, Saved, There, World, bit,
};

impl World {
    pub fn apart_actions(&self, actions: &mut Vec<Action>) {
        for at in 0..2 {
            let node = &self.nodes[at];
            if node.barriers.syncing().is_some() {
                actions.push(Action::Stable(at));
            }
            if node.late != 0 {
                actions.push(Action::LateMark(at));
            }
            if self.limits.hands == Hands::PutBack && !node.role.leads && node.saved.is_none() {
                actions.push(Action::Save(at));
            }
            if self.link == Link::Down {
                self.actions_without_link(at, actions);
            }
        }
        if self.link == Link::Down && self.may_connect() {
            actions.push(Action::Connect);
        }
        if self.left.failures > 0 {
            self.failures(actions);
        }
    }

    fn actions_without_link(&self, at: usize, actions: &mut Vec<Action>) {
        let (node, other) = (&self.nodes[at], &self.nodes[1 - at]);
        if node.role.leads {
            let is_replaced = other.role.leads && other.role.generation > node.role.generation;
            if node.role.in_sync {
                if !is_replaced || self.limits.hands == Hands::Force {
                    actions.push(Action::MarkOut(at));
                }
                return;
            }
            let is_owner = at == self.owner;
            let waits = |place: &usize| is_owner && self.is_in_flight(*place);
            actions.extend((0..PLACES).filter(waits).map(Action::FinishAlone));
            let free = (0..PARTS).filter(|place| !waits(place) && self.may_write(*place));
            actions.extend(free.map(|place| Action::Write(place + PARTS * (at + 1))));
            let is_written =
                node.marks.durable | node.marks.rest | node.marks_after(Interval::ZERO);
            let covers = node.coverage.durable().is_some_and(|it| it.is_last);
            let is_missing =
                !covers && !node.coverage.is_lost() || is_written != node.marks.durable;
            if is_missing && !self.limits.in_memory() {
                actions.push(Action::WriteDown(at));
            }
            let is_pending =
                is_owner && self.operation.is_some() && !self.breaks(Break::TraceWithPending);
            let lacks_trace = node.is_nameless && node.trace.is_none();
            if self.limits.traces() && lacks_trace && !is_pending && !node.coverage.is_lost() {
                actions.push(Action::BeginTrace(at));
            }
        } else {
            let is_free = other.role.in_sync || !other.role.leads;
            if node.role.complete && is_free {
                actions.push(Action::TakeOver(at));
            } else if self.limits.hands == Hands::Force && self.left.failures > 0 {
                actions.push(Action::Force(at));
            }
        }
    }

    pub fn is_in_flight(&self, place: usize) -> bool {
        match place {
            RECORD => self.operation.is_some(),
            place => self.writes[place].is_some(),
        }
    }

    fn failures(&self, actions: &mut Vec<Action>) {
        if self.link != Link::Down {
            actions.push(Action::Cut);
        }
        for at in 0..2 {
            let node = &self.nodes[at];
            let unsynced = (0..PLACES)
                .filter(|place| node.memory[*place] != node.stable[*place])
                .fold(0, |set, place| set | bit(place));
            // Each subset of the unsynced places may stay.
            let subsets = (0..=unsynced).filter(|set| set & !unsynced == 0);
            actions.push(Action::Kill(at));
            actions.extend(subsets.map(|set| Action::Power(at, set)));
            if node.saved.is_some() && !node.role.leads {
                actions.push(Action::PutBack(at));
            }
        }
    }

    /// The connection is lost. A resync ends with it, and its operations are finished alone.
    pub fn cut(&mut self) {
        let is_up = self.link != Link::Down;
        self.lose_link();
        if is_up && !self.nodes[self.owner].role.in_sync {
            self.end_mirroring(self.owner);
        }
    }

    /// A node is gone, and with it the connection.
    fn lose_node(&mut self, at: usize) {
        if at == self.owner {
            self.lose_link();
        } else {
            self.cut();
        }
    }

    /// Before a node that does not mirror changes anything: its names go, if it was the source of a resync.
    pub fn leave_names(&mut self, at: usize) {
        let limits = self.limits;
        let has_names = !self.nodes[at].is_nameless;
        if limits.traces() && has_names && !self.breaks(Break::NamesOutliveResync) {
            self.nodes[at].drop_names(limits);
        }
    }

    fn lose_link(&mut self) {
        self.link = Link::Down;
        self.requests = 0;
        if !self.breaks(Break::AnnouncementsOutliveLink) {
            self.announced.forget_all();
        }
        self.announcing = [None; PARTS];
        (self.posted, self.told) = (None, None);
        for write in self.writes.iter_mut().flatten() {
            // A range of the recovery may take an answered write back.
            write.there = There::Unsent;
        }
        if let Some(operation) = &mut self.operation {
            operation.is_first = false;
            if operation.there == There::Done {
                operation.there = There::Unsent;
            }
        }
    }

    /// An operation in flight may be on one node only: its place belongs to the rest.
    fn end_mirroring(&mut self, at: usize) {
        self.tell(at, BarrierEvent::MirroringEnded);
        if at == self.owner {
            // The product marks a record when the operation is applied, so a trace waits for the operation.
            let known = if self.limits.traces() { PARTS } else { PLACES };
            let waiting = (0..known).filter(|place| self.is_in_flight(*place));
            let waiting = waiting.fold(0, |set, place| set | bit(place));
            self.nodes[at].marks.rest |= waiting;
        }
        let node = &mut self.nodes[at];
        node.marks.rest |= node.waiting;
    }

    pub fn mark_out(&mut self, at: usize) {
        self.end_mirroring(at);
        let limits = self.limits;
        self.nodes[at].drop_names(limits);
        self.nodes[at].role.in_sync = false;
        self.nodes[at].role.copy_of = None;
    }

    pub fn finish_alone(&mut self, place: usize) {
        let owner = self.owner;
        let (value, interval, is_counted) = if place == RECORD {
            let Some(operation) = self.operation.take() else {
                return;
            };
            (
                Some(operation.value),
                operation.interval,
                operation.is_counted,
            )
        } else {
            let Some(write) = self.writes[place].take() else {
                return;
            };
            let value = (write.here != Here::Done).then_some(write.value);
            (value, write.interval, write.is_counted)
        };
        if let Some(value) = value {
            self.leave_names(owner);
            let limits = self.limits;
            self.nodes[owner].mark_alone(bit(place), limits);
            self.nodes[owner].memory[place] = value;
        }
        if is_counted {
            self.tell(owner, BarrierEvent::Ended(interval));
        }
    }

    pub fn write_alone(&mut self, at: usize, place: usize) {
        self.left.writes -= 1;
        let value = self.draw(0);
        self.leave_names(at);
        let limits = self.limits;
        self.nodes[at].mark_alone(bit(place), limits);
        self.nodes[at].memory[place] = value;
    }

    pub fn mark_late(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let places = std::mem::take(&mut node.late);
        if self.limits.breaks == Some(Break::MarkAfterSend) {
            let open = node.barriers.open();
            node.mark(open, places, None);
        } else {
            let limits = Limits {
                breaks: None,
                ..self.limits
            };
            node.mark_alone(places, limits);
        }
    }

    /// The marks of the intervals and the rest go to stable storage, and then the word that they are there.
    pub fn write_down(&mut self, at: usize) {
        let is_early = self.breaks(Break::DurableTooEarly);
        let node = &mut self.nodes[at];
        if !is_early {
            node.marks.durable |= node.marks.rest | node.marks_after(Interval::ZERO);
        }
        let open = node.barriers.open();
        node.coverage.write_live(open);
    }

    pub fn kill(&mut self, at: usize) {
        self.lose_node(at);
        self.nodes[at].late = 0;
        self.nodes[at].restart();
        if at == self.owner {
            self.forget_clients();
        }
        if !self.nodes[at].role.leads || self.nodes[at].role.in_sync {
            return;
        }
        self.leave_names(at);
        let forgets = self.breaks(Break::StartForgetsPaw);
        let node = &mut self.nodes[at];
        if !forgets {
            node.marks.rest |= node.waiting;
        }
        node.waiting = 0;
        if at == self.owner && self.operation.is_some() {
            if self.breaks(Break::RollBackExecuted) {
                self.operation = None;
            } else {
                self.finish_alone(RECORD);
            }
        }
    }

    /// The process of the primary is gone: PAW has the writes, and the log has the operation in doubt.
    fn forget_clients(&mut self) {
        for place in 0..PARTS {
            if self.writes[place].take().is_some() {
                self.nodes[self.owner].waiting |= bit(place);
            }
        }
        if let Some(operation) = &mut self.operation {
            operation.there = There::Unsent;
            operation.is_counted = false;
        }
    }

    pub fn lose_power(&mut self, at: usize, kept: u8) {
        let is_source = at == self.owner && self.link == Link::Resync;
        self.lose_node(at);
        let node = &self.nodes[at];
        self.has_resumed = is_source && !node.is_nameless && node.marks.durable != 0;
        self.is_excused |= node.is_nameless && node.trace.is_none();
        self.is_excused |= at == self.owner && self.resynced != Resynced::HasBarrier;
        self.lost[at] = true;
        self.lost_since_sync[at] = true;
        let node = &mut self.nodes[at];
        for place in 0..PLACES {
            if kept & bit(place) == 0 {
                node.memory[place] = node.stable[place];
            } else {
                node.stable[place] = node.memory[place];
            }
        }
        self.start_without_memory(at);
    }

    fn start_without_memory(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.late = 0;
        node.waiting = 0;
        node.marks = Marks {
            columns: [0; 2],
            rest: node.marks.durable,
            durable: node.marks.durable,
        };
        node.barriers = BarrierMachine::after_power_loss(node.names);
        let from = node.barriers.open();
        if !node.role.leads {
            node.barriers.handle(BarrierEvent::FollowingBegun { from });
        }
        let lost = MarkCoverage::after_power_loss(node.coverage.durable());
        node.coverage = node.trace.unwrap_or(lost);
        node.role.complete = false;
        node.role.rest_since = None;
        if self.limits.breaks != Some(Break::FinishedOfOtherCopy) {
            node.role.copy_of = None;
        }
        if at == self.owner {
            self.forget_clients();
            self.operation = None;
            self.nodes[at].waiting = 0;
        }
        if self.nodes[at].role.leads && !self.nodes[at].role.in_sync {
            // Behind the read of the rest.
            self.leave_names(at);
        }
    }

    pub fn save(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.saved = Some(Saved {
            stable: node.stable,
            durable: node.marks.durable,
            names: node.names,
            coverage: node.coverage,
        });
    }

    pub fn put_back(&mut self, at: usize) {
        self.cut();
        self.is_old_copy = true;
        let node = &mut self.nodes[at];
        if let Some(saved) = node.saved.take() {
            node.stable = saved.stable;
            node.memory = saved.stable;
            node.marks.durable = saved.durable;
            node.names = saved.names;
            node.coverage = saved.coverage;
        }
        self.start_without_memory(at);
    }

    /// A secondary becomes the primary. It adds to its rest what the old primary may not have.
    pub fn take_over(&mut self, at: usize) {
        let forgets = self.breaks(Break::SoftBaseForgetsOperations);
        let generation = self.nodes[1 - at]
            .role
            .generation
            .max(self.nodes[at].role.generation)
            + 1;
        let limits = self.limits;
        let node = &mut self.nodes[at];
        node.restart();
        node.drop_names(limits);
        node.marks.rest |= node.waiting;
        node.waiting = 0;
        if !forgets {
            node.marks.rest |= node.marks_after(Interval::ZERO) & bit(RECORD);
        }
        node.role.leads = true;
        node.role.generation = generation;
        node.role.in_sync = false;
        node.role.copy_of = None;
        if !node.role.complete {
            node.role.rest_since = None;
        }
        node.role.complete = true;
    }
}
