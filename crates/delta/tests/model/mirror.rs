//! Writes and the operation while the nodes mirror, recoveries included, and the barriers beside them.

use lockstep_delta::BarrierEvent;

use crate::limits::Break;
use crate::world::{
    Action, Announcing, Here, Link, Operation, PARTS, RECORD, There, World, Write, bit,
};
use lockstep_delta::Interval;

/// The places of the content of a file that the operation creates.
const NEW_FILE: u8 = (1 << PARTS) - 1;

impl World {
    /// Whether clients begin operations that both nodes do.
    pub fn admits(&self) -> bool {
        let held = self.breaks(Break::BarrierHoldsClients) && self.is_barrier_under_way();
        match self.link {
            Link::Synced => !held,
            // The namespace comes first.
            Link::Resync => !held && self.has_namespace(),
            Link::Down | Link::Recovery(_) => false,
        }
    }

    /// Whether the secondary has the namespace of the resync.
    pub fn has_namespace(&self) -> bool {
        self.nodes[self.owner].marks.rest & bit(RECORD) == 0
    }

    /// The parts are alike: the first write goes to the first one.
    pub const fn may_write(&self, place: usize) -> bool {
        let is_free = self.requests & bit(place) == 0;
        is_free && self.left.writes > 0 && (place == 0 || self.left.writes < self.limits.writes)
    }

    pub fn is_barrier_under_way(&self) -> bool {
        self.nodes[self.owner].barriers.is_under_way()
    }

    pub fn mirrored_actions(&self, actions: &mut Vec<Action>) {
        if self.link == Link::Down {
            return;
        }
        let holds = self.breaks(Break::BarrierHoldsClients) && self.is_barrier_under_way();
        let sends = !matches!(self.link, Link::Recovery(left) if left != 0);
        for place in 0..PARTS {
            match self.writes[place] {
                None if self.admits() && self.may_write(place) => {
                    actions.push(Action::Write(place));
                }
                None => {}
                Some(write) => {
                    if write.here == Here::Due && !holds {
                        actions.push(Action::Execute(place));
                    }
                    if write.here == Here::Waits && self.announcing[place].is_none() {
                        actions.push(Action::Announce(place));
                    }
                    match write.there {
                        There::Unsent if sends => actions.push(Action::Deliver(place)),
                        There::Done => actions.push(Action::Answer(place)),
                        There::Unsent | There::Answered => {}
                    }
                }
            }
        }
        match self.operation.map(|operation| operation.there) {
            None if self.admits() && self.left.operations > 0 => actions.push(Action::Operate),
            None => {}
            Some(There::Unsent) => actions.push(Action::Commit),
            Some(There::Done | There::Answered) => actions.push(Action::Apply),
        }
        if let Link::Recovery(left) = self.link {
            let places = (0..PARTS).filter(|place| left & bit(*place) != 0);
            actions.extend(places.map(Action::Recover));
            if left == 0 && self.operation.is_none() && self.writes == [None; PARTS] {
                actions.push(Action::Recovered);
            }
        }
        self.turn_actions(actions);
        let messages = (0..2).filter(|at| self.message(*at).is_some());
        actions.extend(messages.map(Action::Message));
    }

    fn turn_actions(&self, actions: &mut Vec<Action>) {
        for (place, announcing) in self.announcing.iter().enumerate() {
            match announcing {
                Some(it) if it.is_marked => actions.push(Action::Heard(place)),
                Some(_) => actions.push(Action::Announced(place)),
                None => {}
            }
        }
        if self.posted.is_some() {
            actions.push(Action::ReadTurn);
        }
        let begins = match self.link {
            Link::Synced => !self.limits.in_memory() || self.nodes[self.other()].role.complete,
            Link::Resync => {
                !self.limits.in_memory() || self.limits.traces() && self.has_namespace()
            }
            Link::Down | Link::Recovery(_) => false,
        };
        if !begins || self.is_barrier_under_way() || self.left.barriers == 0 {
            return;
        }
        let next = self.nodes[self.owner].barriers.open().next();
        let answers = |it: &Announcing| it.interval == next;
        if self.told != Some(next) {
            actions.push(Action::PostTurn);
            if self.breaks(Break::TurnAfterOperation) {
                actions.push(Action::BarrierDue);
            }
        } else if !self.announcing.iter().flatten().any(answers) {
            actions.push(Action::BarrierDue);
        }
    }

    /// The primary tells which interval comes next, and announces the regions in use for that interval.
    pub fn post_turn(&mut self) {
        let open = self.nodes[self.owner].barriers.open();
        (self.posted, self.told) = (Some(open.next()), Some(open.next()));
        let in_use = self.announced.in_use(open, PARTS);
        for (_, region) in in_use {
            let place = usize::try_from(region).unwrap();
            if self.announcing[place].is_none() {
                self.announce_for(place, open.next());
            }
        }
    }

    /// The secondary reads that word.
    pub fn read_turn(&mut self) {
        let Some(to) = self.posted.take() else { return };
        self.turn_other(to);
    }

    /// A connection begins with a word about the open interval.
    pub fn tell_interval(&mut self) {
        if self.breaks(Break::LinkWithoutTurn) {
            return;
        }
        let open = self.nodes[self.owner].barriers.open();
        self.told = Some(open);
        self.turn_other(open);
    }

    /// The marks of the secondary are whole from the first such word on.
    fn turn_other(&mut self, to: Interval) {
        let other = self.other();
        let node = &mut self.nodes[other];
        node.barriers.handle(BarrierEvent::Turned { to });
        node.coverage.mirror_from(node.barriers.open());
    }

    /// The secondary reads a message that was sent when this interval was open: it has read each word before.
    fn read_in_order(&mut self, interval: Interval) {
        if self.posted.is_some_and(|posted| posted <= interval) {
            self.read_turn();
        }
    }

    pub fn announce(&mut self, place: usize) {
        let open = self.nodes[self.owner].barriers.open();
        self.announce_for(place, open);
    }

    fn announce_for(&mut self, place: usize, interval: Interval) {
        let is_marked = false;
        self.announcing[place] = Some(Announcing {
            interval,
            is_marked,
        });
    }

    pub fn mark_announced(&mut self, place: usize) {
        let (other, places) = (self.other(), self.announced_with(place));
        let Some(announcing) = &mut self.announcing[place] else {
            return;
        };
        announcing.is_marked = true;
        let interval = announcing.interval;
        self.read_in_order(interval);
        if !self.breaks(Break::AnnouncedUnmarked) {
            let breaks = self.limits.breaks;
            let node = &mut self.nodes[other];
            node.mark(node.barriers.open(), places, breaks);
        }
    }

    pub fn hear_announced(&mut self, place: usize) {
        let places = self.announced_with(place);
        let Some(announcing) = self.announcing[place].take() else {
            return;
        };
        self.learn(announcing.interval, places);
        if let Some(write) = &mut self.writes[place]
            && write.here == Here::Waits
            && write.interval <= announcing.interval
        {
            write.here = Here::Due;
        }
    }

    pub fn begin_write(&mut self, place: usize) {
        self.left.writes -= 1;
        let value = self.draw(0);
        let interval = self.nodes[self.owner].barriers.open();
        // Without barriers in a resync, its source has no name: nothing counts that it loses.
        let is_nameless = self.limits.in_memory()
            && self.link == Link::Resync
            && (!self.limits.traces() || self.breaks(Break::ResyncUnannounced));
        let knows = self.knows(interval, place)
            || is_nameless
            || self.breaks(Break::WriteBeforeAnnouncement);
        if !self.breaks(Break::MarkAfterSend) {
            self.nodes[self.owner].mark(interval, bit(place), self.limits.breaks);
        }
        let is_counted = knows || !self.breaks(Break::BarrierSkipsWaiting);
        if is_counted {
            self.tell(self.owner, BarrierEvent::Begun(interval));
        }
        self.writes[place] = Some(Write {
            value,
            interval,
            here: if knows { Here::Due } else { Here::Waits },
            there: There::Unsent,
            is_counted,
        });
        if !knows && self.announcing[place].is_none() {
            self.announce(place);
        }
    }

    pub fn execute(&mut self, place: usize) {
        if let Some(write) = &mut self.writes[place] {
            write.here = Here::Done;
            self.nodes[self.owner].memory[place] = write.value;
        }
        self.end_write(place);
    }

    /// The secondary marks, notes the write in SAW, and makes it.
    pub fn deliver(&mut self, place: usize) {
        let other = self.other();
        let Some(write) = &mut self.writes[place] else {
            return;
        };
        write.there = There::Done;
        let write = *write;
        self.read_in_order(write.interval);
        let node = &mut self.nodes[other];
        node.mark(node.barriers.open(), bit(place), self.limits.breaks);
        node.waiting |= bit(place);
        node.memory[place] = write.value;
    }

    pub fn answer(&mut self, place: usize) {
        if let Some(write) = &mut self.writes[place] {
            write.there = There::Answered;
        }
        self.end_write(place);
    }

    fn end_write(&mut self, place: usize) {
        let is_over = |write: &Write| write.here == Here::Done && write.there == There::Answered;
        let Some(write) = self.writes[place].filter(is_over) else {
            return;
        };
        self.writes[place] = None;
        let other = self.other();
        self.nodes[other].waiting &= !bit(place);
        if self.breaks(Break::MarkAfterSend) {
            self.nodes[self.owner].late |= bit(place);
        }
        if write.is_counted {
            self.tell(self.owner, BarrierEvent::Ended(write.interval));
        }
    }

    pub fn begin_operation(&mut self) {
        self.left.operations -= 1;
        let value = self.draw(0);
        let interval = self.nodes[self.owner].barriers.open();
        self.tell(self.owner, BarrierEvent::Begun(interval));
        self.operation = Some(Operation {
            value,
            interval,
            there: There::Unsent,
            is_counted: true,
            is_first: self.limits.creates,
        });
    }

    /// The secondary commits the operation. A second time changes nothing.
    pub fn commit(&mut self) {
        let other = self.other();
        let open = self.nodes[self.owner].barriers.open();
        let Some(operation) = &mut self.operation else {
            return;
        };
        operation.there = There::Done;
        if !operation.is_counted {
            operation.is_counted = true;
            operation.interval = open;
            let begun = BarrierEvent::Begun(open);
            self.nodes[self.owner].barriers.handle(begun);
        }
        let operation = *operation;
        self.read_in_order(operation.interval);
        let node = &mut self.nodes[other];
        if node.memory[RECORD] != operation.value {
            let mut places = bit(RECORD);
            if self.limits.creates && self.limits.breaks != Some(Break::NewFileUnmarked) {
                places |= NEW_FILE;
            }
            node.mark(node.barriers.open(), places, self.limits.breaks);
            node.memory[RECORD] = operation.value;
        }
    }

    pub fn apply(&mut self) {
        if let Some(operation) = self.operation.take() {
            let node = &mut self.nodes[self.owner];
            node.mark(operation.interval, bit(RECORD), self.limits.breaks);
            node.memory[RECORD] = operation.value;
            self.tell(self.owner, BarrierEvent::Ended(operation.interval));
            if operation.is_first {
                self.learn(operation.interval, NEW_FILE);
            }
        }
    }

    /// A range of a recovery: the bytes of the primary are final.
    pub fn recover(&mut self, place: usize) {
        let Link::Recovery(left) = self.link else {
            return;
        };
        self.link = Link::Recovery(left & !bit(place));
        self.send_place(place);
        if left == bit(place) {
            let other = self.other();
            self.nodes[self.owner].waiting = 0;
            self.nodes[other].waiting = 0;
        }
    }

    /// The primary sends a place as it is, in the open interval. Both nodes mark it before it changes.
    pub fn send_place(&mut self, place: usize) {
        let other = self.other();
        let interval = self.nodes[self.owner].barriers.open();
        let value = self.nodes[self.owner].memory[place];
        self.read_turn();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let open = if at == self.owner {
                interval
            } else {
                node.barriers.open()
            };
            node.mark(open, bit(place), self.limits.breaks);
        }
        self.nodes[other].memory[place] = value;
    }

    pub fn begin_barrier(&mut self) {
        self.left.barriers -= 1;
        let nonce = [self.draw(2); 16];
        self.tell(self.owner, BarrierEvent::Due { nonce });
    }

    pub fn bring_message(&mut self, from: usize) {
        if let Some(message) = self.message(from) {
            self.tell(1 - from, BarrierEvent::Received(message));
        }
    }

    /// A sync for a barrier is over, and its names are noted.
    pub fn become_stable(&mut self, at: usize) {
        let names = self.next_names(at);
        let keeps_rest = !self.breaks(Break::RestUndurable);
        let loses_rest = self.breaks(Break::ProgressUndurable);
        let leads = at == self.owner;
        let (is_in_memory, traces) = (self.limits.in_memory(), self.limits.traces());
        let node = &mut self.nodes[at];
        node.is_nameless = false;
        if leads && keeps_rest && !is_in_memory {
            node.marks.durable |= node.marks.rest;
        }
        if leads && keeps_rest && traces {
            node.marks.durable = node.marks.rest;
        }
        if leads && loses_rest {
            node.marks.durable = 0;
        }
        node.stable = node.memory;
        node.names = names;
        self.lost_since_sync[at] = false;
        self.tell(at, BarrierEvent::Synced);
    }
}
