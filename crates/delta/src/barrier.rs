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
    /// runs are not noted: stable storage would have a name again that says nothing about what the node does alone.
    pub const fn end_attempt(&mut self) {
        self.step = BarrierStep::Idle;
        self.syncing = None;
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

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; 16] = [7; 16];

    fn leader() -> BarrierMachine {
        let mut leader = BarrierMachine::after_power_loss(BarrierNames::default());
        let from = Interval::new(1);
        assert_eq!(leader.handle(BarrierEvent::MirroringBegun { from }), []);
        leader
    }

    fn secondary() -> BarrierMachine {
        let mut secondary = BarrierMachine::after_power_loss(BarrierNames::default());
        let from = Interval::new(1);
        assert_eq!(secondary.handle(BarrierEvent::FollowingBegun { from }), []);
        secondary
    }

    /// Has the node receive a message, and sync if the machine asks for it. Returns the other effects.
    fn bring(machine: &mut BarrierMachine, message: BarrierMessage) -> Vec<BarrierEffect> {
        let mut effects = machine.handle(BarrierEvent::Received(message));
        if machine.syncing().is_some() {
            effects.extend(machine.handle(BarrierEvent::Synced));
        }
        effects.retain(|effect| !matches!(effect, BarrierEffect::Sync(_)));
        effects
    }

    fn sent(effects: &[BarrierEffect]) -> Vec<BarrierMessage> {
        let message = |effect: &BarrierEffect| match effect {
            BarrierEffect::Send(message) => Some(*message),
            _ => None,
        };
        effects.iter().filter_map(message).collect()
    }

    /// A whole barrier between two nodes. Returns its name.
    fn whole(leader: &mut BarrierMachine, other: &mut BarrierMachine) -> BarrierName {
        leader.handle(BarrierEvent::Due { nonce: NONCE });
        let barrier = leader.outgoing().unwrap();
        leader.handle(BarrierEvent::Synced);
        let answer = sent(&bring(other, barrier));
        let over = sent(&bring(leader, answer[0]));
        let [BarrierMessage::Complete(name)] = over[..] else {
            panic!("{over:?}");
        };
        bring(other, over[0]);
        name
    }

    #[test]
    fn a_barrier_drops_the_marks_of_its_interval_on_both_nodes() {
        let (mut leader, mut other) = (leader(), secondary());
        let first = leader.open();
        let column = leader.mark(first);
        other.mark(first);
        leader.handle(BarrierEvent::Begun(first));
        assert_eq!(leader.handle(BarrierEvent::Due { nonce: NONCE }), []);
        let second = leader.open();
        assert_eq!(second, first.next());
        leader.mark(second);
        other.mark(second);
        // A second barrier does not begin meanwhile, and an operation of the next interval holds nothing up.
        leader.handle(BarrierEvent::Begun(second));
        assert_eq!(leader.handle(BarrierEvent::Due { nonce: [8; 16] }), []);
        let effects = leader.handle(BarrierEvent::Ended(first));
        let name = BarrierName {
            through: first,
            nonce: NONCE,
        };
        let names = BarrierNames {
            complete: None,
            reached: Some(name),
        };
        let barrier = BarrierMessage::Barrier {
            name,
            complete: None,
        };
        assert_eq!(
            effects,
            [BarrierEffect::Send(barrier), BarrierEffect::Sync(names)]
        );
        assert_eq!(leader.handle(BarrierEvent::Synced), []);
        assert_eq!(
            sent(&bring(&mut other, barrier)),
            [BarrierMessage::Reached(name)]
        );
        let over = bring(&mut leader, BarrierMessage::Reached(name));
        let drop = BarrierEffect::Drop {
            through: first,
            columns: vec![column],
            is_of_this_sync: true,
        };
        let word = BarrierMessage::Complete(name);
        assert_eq!(over, [drop.clone(), BarrierEffect::Send(word)]);
        assert_eq!(bring(&mut other, word), [drop]);
        assert_eq!(other.columns(), leader.columns());
        assert_eq!(bring(&mut other, word), []);
    }

    #[test]
    fn a_lost_word_is_made_up_for_by_the_next_barrier() {
        let (mut leader, mut other) = (leader(), secondary());
        let lost = whole(&mut leader, &mut secondary());
        let mut behind = other.clone();
        whole_without_word(&mut behind, lost);
        other = behind;
        assert_eq!(other.known().filter(|it| *it == lost).count(), 2);
        leader.handle(BarrierEvent::Due { nonce: [9; 16] });
        let barrier = leader.outgoing().unwrap();
        let effects = bring(&mut other, barrier);
        let is_drop = |effect: &BarrierEffect| matches!(effect, BarrierEffect::Drop { through, .. } if *through == lost.through);
        assert!(effects.iter().any(is_drop), "{effects:?}");
    }

    fn whole_without_word(other: &mut BarrierMachine, name: BarrierName) {
        bring(
            other,
            BarrierMessage::Barrier {
                name,
                complete: None,
            },
        );
    }

    #[test]
    fn a_late_word_drops_marks_and_no_rest() {
        let (mut leader, mut other) = (leader(), secondary());
        other.mark(other.open());
        leader.handle(BarrierEvent::Due { nonce: NONCE });
        let barrier = leader.outgoing().unwrap();
        leader.handle(BarrierEvent::Synced);
        let answer = sent(&bring(&mut other, barrier));
        let word = sent(&bring(&mut leader, answer[0]))[0];
        // The nodes part and mirror again before the word arrives.
        let from = leader.open().next();
        other.handle(BarrierEvent::FollowingBegun { from });
        let effects = bring(&mut other, word);
        let [
            BarrierEffect::Drop {
                columns,
                is_of_this_sync,
                ..
            },
        ] = &effects[..]
        else {
            panic!("{effects:?}");
        };
        assert_eq!(columns.len(), 1);
        assert!(!is_of_this_sync);
    }

    #[test]
    fn an_attempt_does_not_push_out_the_barrier_that_both_have() {
        let (mut leader, mut other) = (leader(), secondary());
        let both = whole(&mut leader, &mut other);
        for attempt in 1..4 {
            leader.handle(BarrierEvent::Due {
                nonce: [attempt; 16],
            });
            leader.handle(BarrierEvent::Synced);
            // No message arrives, and the node changes its role, or begins anew.
            let names = leader.names;
            leader = leader.restarted(names);
            let from = leader.open().next();
            leader.handle(BarrierEvent::MirroringBegun { from });
            assert_eq!(leader.names.complete, Some(both));
        }
        let after = BarrierMachine::after_power_loss(leader.names);
        assert!(after.known().any(|it| it == both));
        assert!(other.known().any(|it| it == both));
    }

    #[test]
    fn a_message_counts_over_any_connection_and_twice() {
        let (mut leader, mut other) = (leader(), secondary());
        leader.handle(BarrierEvent::Due { nonce: NONCE });
        let barrier = leader.outgoing().unwrap();
        bring(&mut other, barrier);
        let again = sent(&bring(&mut other, barrier));
        assert_eq!(again.len(), 1);
        assert_eq!(other.outgoing(), Some(again[0]));
        leader.handle(BarrierEvent::Received(again[0]));
        assert_eq!(leader.outgoing(), None);
        let over = leader.handle(BarrierEvent::Synced);
        assert_eq!(sent(&over).len(), 1);
        assert_eq!(bring(&mut leader, again[0]), []);
        assert_eq!(leader.outgoing(), Some(sent(&over)[0]));
    }

    #[test]
    fn a_full_disk_ends_the_attempt_and_keeps_the_marks() {
        let (mut leader, mut other) = (leader(), secondary());
        let first = leader.open();
        leader.mark(first);
        leader.handle(BarrierEvent::Due { nonce: NONCE });
        let barrier = leader.outgoing().unwrap();
        leader.handle(BarrierEvent::Synced);
        other.handle(BarrierEvent::Received(barrier));
        let refusal = sent(&other.handle(BarrierEvent::SyncFailed));
        assert_eq!(bring(&mut leader, refusal[0]), []);
        assert_eq!(leader.columns().after(Interval::ZERO).count(), 1);
        let next = whole(&mut leader, &mut other);
        assert_eq!(next.through, first.next());
        assert_eq!(leader.columns().after(Interval::ZERO).count(), 0);
        // The primary's own disk.
        leader.handle(BarrierEvent::Due { nonce: NONCE });
        assert_eq!(leader.handle(BarrierEvent::SyncFailed), []);
        assert!(leader.syncing().is_none());
    }

    #[test]
    fn one_sync_runs_at_a_time() {
        let (mut leader, mut other) = (leader(), secondary());
        leader.handle(BarrierEvent::Due { nonce: NONCE });
        let early = leader.outgoing().unwrap();
        other.handle(BarrierEvent::Received(early));
        // The primary leaves the sync and comes back with another barrier; both syncs of the first one still run.
        leader.handle(BarrierEvent::MirroringEnded);
        let from = leader.open().next();
        leader.handle(BarrierEvent::MirroringBegun { from });
        let effects = leader.handle(BarrierEvent::Due { nonce: [8; 16] });
        assert_eq!(effects.len(), 1, "{effects:?}");
        let late = leader.outgoing().unwrap();
        assert_eq!(other.handle(BarrierEvent::Received(late)), []);
        for machine in [&mut leader, &mut other] {
            let effects = machine.handle(BarrierEvent::Synced);
            assert!(
                matches!(effects[..], [BarrierEffect::Sync(_)]),
                "{effects:?}"
            );
        }
        assert_eq!(other.outgoing(), None);
        assert_eq!(sent(&other.handle(BarrierEvent::Synced)).len(), 1);
    }

    #[test]
    fn a_node_that_does_not_mirror_makes_no_barrier() {
        let mut machine = secondary();
        assert_eq!(machine.handle(BarrierEvent::Due { nonce: NONCE }), []);
        assert_eq!(machine.open(), Interval::new(1));
        assert_eq!(machine.outgoing(), None);
        let mut leader = leader();
        leader.handle(BarrierEvent::MirroringEnded);
        assert_eq!(leader.handle(BarrierEvent::Due { nonce: NONCE }), []);
    }

    #[test]
    fn a_process_that_starts_marks_no_interval_that_a_barrier_has_ended() {
        let (mut leader, mut other) = (leader(), secondary());
        let name = whole(&mut leader, &mut other);
        let columns = *leader.columns();
        let after = BarrierMachine::of_process(leader.names(), columns);
        assert!(after.open() > name.through);
        let column = leader.mark(Interval::new(9));
        let after = BarrierMachine::of_process(leader.names(), *leader.columns());
        assert_eq!(after.open(), Interval::new(9));
        assert_eq!(after.columns().youngest(column), Some(Interval::new(9)));
    }

    #[test]
    fn a_resync_of_everything_leaves_no_base() {
        let (mut leader, mut other) = (leader(), secondary());
        whole(&mut leader, &mut other);
        other.forget_names();
        assert_eq!(other.known().count(), 0);
    }
}
