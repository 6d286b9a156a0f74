//! One state for all states whose differences no later step can notice.
//!
//! - Generations are only compared, and counted up by one or by three. So the lowest number of the records, of the witness
//!   and of the claims becomes 2. A number below it is in an earlier record of a node, as a message or a question has it. No
//!   step depends on its value: such a number becomes 1.
//! - A generation below that of its node that this node has heard of decides nothing. No generation does that the node has heard
//!   of, while there is no operator.
//! - A solo grant of an earlier generation, or of a node that waits for none, decides nothing. The number of grants that have
//!   ended is compared with the number at the begin of a role exchange: it becomes 1, and an earlier one becomes 0.
//! - Whether the witness has answered the last call decides about a disk that hangs only.
//! - The numbers of the witness's changes are only compared for equality, and a claim names the next number. So a gap
//!   becomes a gap of one number.
//! - The two nodes are interchangeable: the protocol knows no first node.
//! - A late claim that expects another record than the present one changes nothing any more: numbers do not come back.
//! - An operation that every node has lost with its power is forgotten.
//! - A generation below that of the other node can get no second primary: the generation of a node only grows.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use lockstep_roles::{Claim, Labels, Member, RoleMachine, SoloEnds, WitnessRecord};
use lockstep_types::Generation;

use crate::breaks::Break;
use crate::link::{Link, Meeting, Offer};
use crate::questions::{Call, Line};
use crate::world::{Disk, Node, World};

/// Most numbers of changes in one state.
const CHANGES_MAX: usize = 16;

/// The label of the lowest generation in a state. Each earlier one has the label before it.
const LOWEST: u64 = 2;

/// The labels of one state, for one of its nodes.
#[derive(Clone, Copy)]
#[allow(clippy::struct_excessive_bools)] // each is a question of its own
struct Canon {
    lowest: u64,
    /// The numbers of changes in use, in their order.
    changes: [u64; CHANGES_MAX],
    count: usize,
    swaps: bool,
    /// The records that can still be the answer to a claim of the node.
    answers: [Option<WitnessRecord>; 2],
    /// The generation of the node.
    own: Generation,
    /// The number of the solo grants of the node that have ended.
    ends: SoloEnds,
    /// A solo grant decides about a later step of the node.
    needs_solo_grant: bool,
    /// The generations that the node has heard of decide about a later step.
    needs_heard: bool,
    /// It matters whether the witness has answered the last call.
    needs_answers: bool,
}

impl Labels for Canon {
    fn generation(&self, old: Generation) -> Generation {
        let number = (old.get() + LOWEST).checked_sub(self.lowest);
        Generation::new(number.unwrap_or(0).max(LOWEST - 1)).unwrap()
    }

    fn heard(&self, old: Generation) -> Generation {
        if old < self.own || !self.needs_heard {
            Generation::FIRST
        } else {
            self.generation(old)
        }
    }

    fn solo_grant(&self, old: Option<Generation>) -> Option<Generation> {
        old.filter(|generation| self.needs_solo_grant && *generation == self.own)
            .map(|generation| self.generation(generation))
    }

    fn solo_ends(&self, old: SoloEnds) -> SoloEnds {
        SoloEnds(u64::from(old == self.ends))
    }

    fn change(&self, old: u64) -> u64 {
        let used = &self.changes[..self.count];
        let below = used.windows(2).filter(|pair| pair[1] <= old);
        below.map(|pair| (pair[1] - pair[0]).min(2)).sum()
    }

    fn member(&self, old: Member) -> Member {
        match (old, self.swaps) {
            (member, false) => member,
            (Member::First, true) => Member::Second,
            (Member::Second, true) => Member::First,
        }
    }

    fn keeps(&self, claimed: &WitnessRecord) -> bool {
        self.answers.contains(&Some(*claimed))
    }

    fn has_answered(&self, old: bool) -> bool {
        old && self.needs_answers
    }
}

impl World {
    /// The state that stands for this one.
    pub fn canonical(mut self) -> Self {
        self.forget();
        let canon = self.labels();
        let [first, second] = self.nodes.each_ref().map(Node::rank);
        match first.cmp(&second) {
            Ordering::Less => self.relabel(&canon, false),
            Ordering::Greater => self.relabel(&canon, true),
            Ordering::Equal => {
                let plain = self.relabel(&canon, false);
                let swapped = self.relabel(&canon, true);
                if swapped.fingerprint() < plain.fingerprint() {
                    swapped
                } else {
                    plain
                }
            }
        }
    }

    /// A number for the state. The failures that are left do not count.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = Mixer(0x243f_6a88_85a3_08d3);
        let Self {
            left,
            nodes,
            witness,
            link,
            was_forced,
            begun,
            acknowledged,
            durable,
            gone,
        } = self;
        (left.swaps, nodes, witness, link, begun).hash(&mut hasher);
        (was_forced, acknowledged, durable, gone).hash(&mut hasher);
        hasher.finish()
    }

    /// Drops the differences that no later step can notice.
    fn forget(&mut self) {
        let (witness, gone) = (self.witness, self.gone);
        let may_apply_all = self.left.breaks == Some(Break::ClaimUncompared);
        let is_live = |claim: &Claim| claim.expected == witness || may_apply_all;
        let generations = self
            .nodes
            .each_ref()
            .map(|node| node.durable.generation.get());
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let line = &mut node.line;
            line.late.retain(is_live);
            if line.late.is_full() && line.late.get(0) == line.late.get(1) {
                line.late.remove(1);
            }
            if let Call::Asked(Some(claim)) = line.call
                && !is_live(&claim)
            {
                line.call = Call::Asked(None);
            }
            node.has_heard &= !line.is_idle();
            line.asked = line.asked.filter(|_| !line.is_idle());
            for set in [&mut node.memory, &mut node.synced, &mut node.holds] {
                *set &= !gone;
            }
            node.led &= !((1 << generations[1 - at]) - 1);
        }
        self.acknowledged &= !gone;
        self.durable &= !gone;
        self.gone = 0;
    }

    fn relabel(&self, canon: &[Canon; 2], swaps: bool) -> Self {
        let mut canon = *canon;
        for canon in &mut canon {
            canon.swaps = swaps;
        }
        let one = self.nodes[0].relabel(&canon[0]);
        let other = self.nodes[1].relabel(&canon[1]);
        Self {
            nodes: if swaps { [other, one] } else { [one, other] },
            witness: self.witness.map(|known| canon[0].known(known)),
            link: match self.link {
                Link::Meeting(meeting) => Link::Meeting(meeting.relabel(&canon)),
                link => link,
            },
            ..*self
        }
    }

    /// The labels for each node: both use the same numbers, but other claims.
    fn labels(&self) -> [Canon; 2] {
        let mut seen = Canon {
            lowest: u64::MAX,
            changes: [0; CHANGES_MAX],
            count: 0,
            swaps: false,
            answers: [None; 2],
            own: Generation::FIRST,
            ends: SoloEnds::default(),
            needs_solo_grant: false,
            needs_heard: self.left.operator.is_any() || !self.left.has_witness,
            needs_answers: self.left.hangs,
        };
        self.witness.iter().for_each(|known| seen.see(known));
        self.nodes.iter().for_each(|node| seen.see_node(node));
        seen.changes[..seen.count].sort_unstable();
        let label = |node: &Node| {
            let mut canon = seen;
            canon.answers = match node.line.call {
                Call::None => [None, None],
                // A claim that is not on its way has made the present record, or none.
                Call::Asked(claim) => [self.witness, claim.map(|claim| claim.new)],
                Call::Answered(record) => [Some(record), None],
            };
            let ends = node.machine.as_ref().map(RoleMachine::solo_ends);
            canon.own = node.durable.generation;
            canon.ends = ends.unwrap_or_default();
            canon.needs_solo_grant = node.session.needs_solo_grant();
            canon
        };
        self.nodes.each_ref().map(label)
    }
}

impl Canon {
    fn see_generation(&mut self, generation: Generation) {
        self.lowest = self.lowest.min(generation.get());
    }

    fn see(&mut self, known: &WitnessRecord) {
        self.see_generation(known.generation);
        if !self.changes[..self.count].contains(&known.change) {
            self.changes[self.count] = known.change;
            self.count += 1;
        }
    }

    fn see_claim(&mut self, claim: &Claim) {
        claim.expected.iter().for_each(|known| self.see(known));
        self.see(&claim.new);
    }

    /// An earlier record than the present one of its node, in a message or in a question, gets the label below the lowest one.
    fn see_node(&mut self, node: &Node) {
        self.see_generation(node.durable.generation);
        let asked = node.line.asked.iter();
        asked.for_each(|record| self.see_generation(record.generation));
        match &node.line.call {
            Call::Asked(Some(claim)) => self.see_claim(claim),
            Call::Answered(known) => self.see(known),
            _ => {}
        }
        node.line
            .late
            .iter()
            .for_each(|claim| self.see_claim(&claim));
    }
}

impl Meeting {
    /// The exchange with other labels. Only the numbers of the nodes depend on the node whose labels they are.
    fn relabel(&self, canon: &[Canon; 2]) -> Self {
        let labels = &canon[0];
        let [first, second] = [0, 1].map(|at| canon[at].solo_ends(self.since[at]));
        let (caller, since) = if labels.swaps {
            (1 - self.caller, [second, first])
        } else {
            (self.caller, [first, second])
        };
        Self {
            caller,
            since,
            told: Offer {
                record: labels.record(self.told.record),
                seen: self.told.seen.map(|seen| labels.record(seen)),
                ..self.told
            },
            seen: self.seen.map(|seen| labels.record(seen)),
            ..*self
        }
    }
}

impl Node {
    /// A number that tells most nodes apart without their names.
    fn rank(&self) -> u64 {
        let record = self.durable;
        let session = match &self.machine {
            Some(_) => self.session.rank() + 1,
            None => 0,
        };
        let bits = [
            record.is_primary(),
            record.is_candidate,
            record.complete,
            record.peer_complete,
            self.lease,
            self.disk == Disk::Answers,
            self.is_forced,
        ];
        let marks = bits
            .into_iter()
            .fold(0, |bits, bit| bits << 1 | u64::from(bit));
        let copies = u64::from(self.memory) << 4 | u64::from(self.synced);
        record.generation.get() << 32 | marks << 24 | session << 16 | copies << 8
    }

    fn relabel(&self, labels: &Canon) -> Self {
        Self {
            durable: labels.record(self.durable),
            unrecorded: self.unrecorded.map(|promotion| labels.promotion(promotion)),
            machine: self.machine.clone().map(|machine| machine.relabel(labels)),
            line: Line {
                call: match self.line.call {
                    Call::Asked(claim) => Call::Asked(claim.map(|claim| labels.claim(claim))),
                    Call::Answered(record) => Call::Answered(labels.known(record)),
                    Call::None => Call::None,
                },
                late: self.line.late.map(|claim| labels.claim(claim)),
                asked: self.line.asked.map(|record| labels.record(record)),
                ..self.line
            },
            led: match labels.lowest.checked_sub(LOWEST) {
                Some(gap) => self.led >> gap,
                None => self.led << (LOWEST - labels.lowest),
            },
            ..*self
        }
    }
}

/// A fast hash of 64 bits.
struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        let (low, high) = (product & u128::from(u64::MAX), product >> 64);
        self.0 = u64::try_from(low ^ high).unwrap_or(0);
    }
}
impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.mix(value.cast_unsigned() as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
