//! Writes and the operation while the nodes mirror, recoveries included, and the barriers beside them.

use lockstep_delta::BarrierEvent;

use crate::limits::Break;
use crate::world::{Action, Here, Link, Operation, PARTS, RECORD, There, World, Write, bit};

impl World {
    /// Whether clients begin operations that both nodes do.
    pub fn admits(&self) -> bool {
        let held = self.breaks(Break::BarrierHoldsClients) && self.is_barrier_under_way();
        match self.link {
            Link::Synced => !held,
            // The namespace comes first.
            Link::Resync => !held && self.nodes[self.owner].marks.rest & bit(RECORD) == 0,
            Link::Down | Link::Recovery(_) => false,
        }
    }

    /// The parts are alike: the first write goes to the first one.
    pub const fn may_write(&self, place: usize) -> bool {
        self.left.writes > 0 && (place == 0 || self.left.writes < self.limits.writes)
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
        let begins =
            matches!(self.link, Link::Synced | Link::Resync) && !self.is_barrier_under_way();
        if begins && self.left.barriers > 0 {
            actions.push(Action::BarrierDue);
        }
        let messages = (0..2).filter(|at| self.message(*at).is_some());
        actions.extend(messages.map(Action::Message));
    }

    pub fn begin_write(&mut self, place: usize) {
        self.left.writes -= 1;
        let value = self.draw(0);
        let interval = self.nodes[self.owner].barriers.open();
        let knows = self.knows(interval, place) || self.breaks(Break::WriteBeforePeerMark);
        if !self.breaks(Break::MarkAfterSend) {
            let places = self.marked_by(place);
            self.nodes[self.owner].mark(interval, places, self.limits.breaks);
        }
        let is_counted = knows || !self.breaks(Break::BarrierSkipsDeferred);
        if is_counted {
            self.tell(self.owner, BarrierEvent::Begun(interval));
        }
        self.writes[place] = Some(Write {
            value,
            interval,
            here: if knows { Here::Due } else { Here::Deferred },
            there: There::Unsent,
            is_counted,
        });
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
        let (other, places) = (self.other(), self.marked_by(place));
        let Some(write) = &mut self.writes[place] else {
            return;
        };
        write.there = There::Done;
        let write = *write;
        let node = &mut self.nodes[other];
        let interval = match self.limits.breaks {
            Some(Break::BarrierByArrival) => node.barriers.open(),
            _ => write.interval,
        };
        node.mark(interval, places, self.limits.breaks);
        node.waiting |= bit(place);
        node.memory[place] = write.value;
    }

    pub fn answer(&mut self, place: usize) {
        let places = self.marked_by(place);
        let Some(write) = &mut self.writes[place] else {
            return;
        };
        write.there = There::Answered;
        if write.here == Here::Deferred {
            write.here = Here::Due;
        }
        let interval = write.interval;
        self.learn(interval, places);
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
        let node = &mut self.nodes[other];
        if node.memory[RECORD] != operation.value {
            let interval = match self.limits.breaks {
                Some(Break::BarrierByArrival) => node.barriers.open(),
                _ => operation.interval,
            };
            node.mark(interval, bit(RECORD), self.limits.breaks);
            node.memory[RECORD] = operation.value;
        }
    }

    pub fn apply(&mut self) {
        if let Some(operation) = self.operation.take() {
            let node = &mut self.nodes[self.owner];
            node.mark(operation.interval, bit(RECORD), self.limits.breaks);
            node.memory[RECORD] = operation.value;
            self.tell(self.owner, BarrierEvent::Ended(operation.interval));
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
        for node in &mut self.nodes {
            node.mark(interval, bit(place), self.limits.breaks);
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
        let node = &mut self.nodes[at];
        if leads && keeps_rest {
            node.marks.durable |= node.marks.rest;
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
