//! The barrier on both nodes, as a machine with events and effects.
//!
//! A barrier makes everything up to an interval stable on both nodes, and then drops the region marks up to there. The primary
//! *turns* to the next interval, *drains* the operations of the earlier ones, has both nodes *sync*, and lets both *drop*. One
//! machine takes either part: as the primary's after [`BarrierEvent::MirroringBegun`], as the secondary's by messages.
//!
//! The machine lies in memory that outlives the process. [`BarrierMachine::restarted`] is the machine after a start of the
//! process or a change of the role, [`BarrierMachine::after_power_loss`] after a loss of power.
//!
//! Invariants:
//! - No operation waits for a barrier: an operation takes the interval that is open, at any moment.
//! - The name of a barrier exists only once every operation up to its interval is over on both nodes.
//! - `complete` is a barrier that both nodes have reached; no mark of a later interval is dropped.
//! - One sync of a node runs at a time, so the names on stable storage never go back.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::barrier_events::{BarrierEffect, BarrierEvent, BarrierMessage};
use crate::columns::{Column, MarkColumns};
use crate::interval::{BarrierName, BarrierNames, Interval};

/// The step of the barrier under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum BarrierStep {
    Idle,
    /// The primary waits for the operations up to an interval.
    Draining {
        through: Interval,
        nonce: [u8; 16],
    },
    /// The primary waits for both syncs.
    Leading {
        name: BarrierName,
        is_there: bool,
    },
    /// The secondary is to reach a barrier.
    Following(BarrierName),
}

/// The barriers of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BarrierMachine {
    /// The interval of new operations; on a secondary the youngest one of which it has heard.
    open: Interval,
    columns: MarkColumns,
    /// The names on stable storage.
    names: BarrierNames,
    complete: Option<BarrierName>,
    /// The last barrier of which this node has heard, reached or not.
    heard: Option<BarrierName>,
    step: BarrierStep,
    /// The names of the sync that runs.
    syncing: Option<BarrierNames>,
    mirrors: bool,
    /// The first interval since the nodes have begun to mirror the last time.
    from: Interval,
    /// How many operations of each interval are under way on the primary.
    operations: BTreeMap<Interval, u32>,
}

impl BarrierMachine {
    /// The machine of a node that begins with these names on its stable storage: of a new store, or after a loss of power.
    pub fn after_power_loss(names: BarrierNames) -> Self {
        let reached = names.reached.or(names.complete);
        Self {
            open: reached.map_or(Interval::ZERO, |it| it.through.next()),
            columns: MarkColumns::default(),
            names,
            complete: names.complete,
            heard: names.reached,
            step: BarrierStep::Idle,
            syncing: None,
            mirrors: false,
            from: Interval::ZERO,
            operations: BTreeMap::new(),
        }
    }

    /// The machine of a process that starts without a loss of power: the marks of the last process are there, the operations and the
    /// barrier under way are gone. The name of an attempt that this node has not reached is gone, too.
    pub fn of_process(names: BarrierNames, columns: MarkColumns) -> Self {
        let machine = Self::after_power_loss(names);
        // An interval that a barrier has ended takes no mark: a base would leave the mark out.
        let over = machine.known().map(|name| name.through.next());
        let marked = Column::BOTH.into_iter();
        let marked = marked.filter_map(|column| columns.youngest(column));
        let open = over.chain(marked).fold(machine.open, Ord::max);
        Self {
            open,
            columns,
            ..machine
        }
    }

    /// The machine of the next process, or of the next role of the node, with the names of its stable storage: the operations and
    /// the barrier under way are gone, the marks are not. A sync that ran is over.
    #[must_use]
    pub fn restarted(self, names: BarrierNames) -> Self {
        Self {
            names,
            step: BarrierStep::Idle,
            syncing: None,
            mirrors: false,
            operations: BTreeMap::new(),
            ..self
        }
    }

    /// The interval to which a new operation belongs.
    pub const fn open(&self) -> Interval {
        self.open
    }

    /// The names on stable storage.
    pub const fn names(&self) -> BarrierNames {
        self.names
    }

    /// The columns with marks.
    pub const fn columns(&self) -> &MarkColumns {
        &self.columns
    }

    /// Each barrier whose name this node knows.
    pub fn known(&self) -> impl Iterator<Item = BarrierName> + use<> {
        let Self {
            names,
            complete,
            heard,
            ..
        } = *self;
        [names.complete, names.reached, complete, heard]
            .into_iter()
            .flatten()
    }

    /// The copy has no base any more: a resync of everything begins. The caller has removed the names from stable storage. The
    /// barrier under way ends, and the names of a sync that runs are not noted.
    pub fn forget_names(&mut self) {
        self.names = BarrierNames::default();
        self.complete = None;
        self.heard = None;
        self.end_attempt();
    }

    /// The names are only in memory from now on, since the node serves alone. The barrier under way ends, and the names of a sync that
    /// runs are not noted: stable storage would have a name again that says nothing about the changes made alone.
    pub const fn end_attempt(&mut self) {
        self.step = BarrierStep::Idle;
        self.syncing = None;
    }

    /// Takes the last complete barrier into the names of stable storage, before its marks are dropped there: the next attempt must not
    /// take the place of its name. Returns the names to be noted, if others are there. A sync that runs notes them itself.
    pub fn take_complete(&mut self) -> Option<BarrierNames> {
        let names = BarrierNames {
            complete: self.complete,
            ..self.names
        };
        if names == self.names || self.syncing.is_some() {
            return None;
        }
        self.names = names;
        Some(names)
    }

    /// The marks of every interval are gone, with the coverage that counts on them.
    pub fn forget_marks(&mut self) {
        self.columns = MarkColumns::default();
    }

    /// The column for a mark of this interval.
    pub fn mark(&mut self, interval: Interval) -> Column {
        self.open = self.open.max(interval);
        self.columns.place(interval)
    }

    /// The message that the other node may lack.
    pub fn outgoing(&self) -> Option<BarrierMessage> {
        match self.step {
            BarrierStep::Leading {
                name,
                is_there: false,
            } => Some(BarrierMessage::Barrier {
                name,
                complete: self.complete,
            }),
            BarrierStep::Following(name) => {
                let is_reached = self.names.reached == Some(name);
                is_reached.then_some(BarrierMessage::Reached(name))
            }
            _ if self.mirrors => self.complete.map(BarrierMessage::Complete),
            _ => None,
        }
    }

    /// Whether the primary has a barrier under way.
    pub const fn is_under_way(&self) -> bool {
        matches!(
            self.step,
            BarrierStep::Draining { .. } | BarrierStep::Leading { .. }
        )
    }

    /// Whether this node mirrors as the primary.
    pub const fn mirrors(&self) -> bool {
        self.mirrors
    }

    /// Whether this primary mirrors, and a barrier would drop any mark.
    pub fn is_due(&self) -> bool {
        self.mirrors() && !self.columns.are_empty()
    }

    /// The names to be noted by the sync that runs for a barrier.
    pub const fn syncing(&self) -> Option<BarrierNames> {
        self.syncing
    }

    /// Takes an event, and returns what is to be done, in order.
    pub fn handle(&mut self, event: BarrierEvent) -> Vec<BarrierEffect> {
        let mut effects = Vec::new();
        match event {
            BarrierEvent::MirroringBegun { from } => self.begin(from, true),
            BarrierEvent::FollowingBegun { from } => self.begin(from, false),
            BarrierEvent::Turned { to } if !self.mirrors => self.open = self.open.max(to),
            BarrierEvent::Turned { .. } => {}
            BarrierEvent::MirroringEnded => {
                self.mirrors = false;
                self.step = BarrierStep::Idle;
            }
            BarrierEvent::Due { nonce } => self.turn(nonce),
            BarrierEvent::Begun(interval) => *self.operations.entry(interval).or_default() += 1,
            BarrierEvent::Ended(interval) => self.end(interval),
            BarrierEvent::Synced => self.note_sync(&mut effects),
            BarrierEvent::SyncFailed => self.give_up(&mut effects),
            BarrierEvent::Received(message) => self.receive(message, &mut effects),
        }
        self.go_on(&mut effects);
        effects
    }

    fn begin(&mut self, from: Interval, mirrors: bool) {
        self.open = self.open.max(from);
        self.from = from;
        self.mirrors = mirrors;
        self.step = BarrierStep::Idle;
    }

    fn turn(&mut self, nonce: [u8; 16]) {
        if self.mirrors && self.step == BarrierStep::Idle {
            let through = self.open;
            self.open = through.next();
            self.step = BarrierStep::Draining { through, nonce };
        }
    }

    fn end(&mut self, interval: Interval) {
        if let Some(count) = self.operations.get_mut(&interval) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.operations.remove(&interval);
            }
        }
    }

    fn note_sync(&mut self, effects: &mut Vec<BarrierEffect>) {
        let Some(names) = self.syncing.take() else {
            return;
        };
        self.names = names;
        if let BarrierStep::Following(name) = self.step
            && names.reached == Some(name)
        {
            effects.push(BarrierEffect::Send(BarrierMessage::Reached(name)));
        }
    }

    fn give_up(&mut self, effects: &mut Vec<BarrierEffect>) {
        let failed = self.syncing.take().and_then(|names| names.reached);
        match self.step {
            BarrierStep::Leading { name, .. } if failed == Some(name) => {
                self.step = BarrierStep::Idle;
            }
            BarrierStep::Following(name) if failed == Some(name) => {
                self.step = BarrierStep::Idle;
                effects.push(BarrierEffect::Send(BarrierMessage::Unreached(name)));
            }
            _ => {}
        }
    }

    fn receive(&mut self, message: BarrierMessage, effects: &mut Vec<BarrierEffect>) {
        match (message, &mut self.step) {
            (BarrierMessage::Barrier { name, complete }, _) if !self.mirrors => {
                if let Some(complete) = complete {
                    self.complete(complete, effects);
                }
                if self.names.reached == Some(name) {
                    effects.push(BarrierEffect::Send(BarrierMessage::Reached(name)));
                }
                self.heard = Some(name);
                self.open = self.open.max(name.through.next());
                self.step = BarrierStep::Following(name);
            }
            (BarrierMessage::Complete(name), _) if !self.mirrors => self.complete(name, effects),
            (BarrierMessage::Reached(of), BarrierStep::Leading { name, is_there })
                if of == *name =>
            {
                *is_there = true;
            }
            (BarrierMessage::Unreached(of), BarrierStep::Leading { name, .. }) if of == *name => {
                self.step = BarrierStep::Idle;
            }
            _ => {}
        }
    }

    /// Both nodes have reached a barrier. A node takes this word only for the last barrier that it has reached itself.
    fn complete(&mut self, name: BarrierName, effects: &mut Vec<BarrierEffect>) {
        if self.names.reached != Some(name) || self.complete == Some(name) {
            return;
        }
        self.complete = Some(name);
        effects.push(BarrierEffect::Drop {
            through: name.through,
            columns: self.columns.drop_through(name.through),
            is_of_this_sync: name.through >= self.from,
        });
    }

    /// Takes the next step, if nothing is left to wait for.
    fn go_on(&mut self, effects: &mut Vec<BarrierEffect>) {
        if let BarrierStep::Draining { through, nonce } = self.step {
            let is_drained = self.operations.range(..=through).next().is_none();
            if is_drained {
                let name = BarrierName { through, nonce };
                self.heard = Some(name);
                self.step = BarrierStep::Leading {
                    name,
                    is_there: false,
                };
                effects.extend(self.outgoing().map(BarrierEffect::Send));
            }
        }
        let name = match self.step {
            BarrierStep::Leading { name, .. } | BarrierStep::Following(name) => name,
            BarrierStep::Idle | BarrierStep::Draining { .. } => return,
        };
        if self.names.reached != Some(name) {
            if self.syncing.is_none() {
                let names = BarrierNames {
                    complete: self.complete,
                    reached: Some(name),
                };
                self.syncing = Some(names);
                effects.push(BarrierEffect::Sync(names));
            }
        } else if let BarrierStep::Leading { is_there: true, .. } = self.step {
            self.step = BarrierStep::Idle;
            self.complete(name, effects);
            effects.push(BarrierEffect::Send(BarrierMessage::Complete(name)));
        }
    }
}
