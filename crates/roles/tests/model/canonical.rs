//! One state for all states whose differences no later step can notice.
//!
//! - Generations are only compared, and counted up by one. So the lowest number in the state becomes 1.
//! - The numbers of the witness's changes are only compared for equality, and a claim names the next number. So a gap
//!   becomes a gap of one number.
//! - The two nodes are interchangeable: the protocol knows no first node.
//! - A late claim that expects another record than the present one changes nothing any more: numbers do not come back.
//! - An operation that every node has lost with its power is forgotten.
//! - A generation below that of the other node can get no second primary: the generation of a node only grows.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use lockstep_roles::{Claim, Labels, Member, WitnessRecord};
use lockstep_types::Generation;

use crate::world::{Break, Node, Question, World};

/// Most numbers of changes in one state.
const CHANGES_MAX: usize = 16;

/// The labels of one state, for one of its nodes.
#[derive(Clone, Copy)]
struct Canon {
    lowest: u64,
    /// The numbers of changes in use, in their order.
    changes: [u64; CHANGES_MAX],
    count: usize,
    swaps: bool,
    /// The records that can still be the answer to a claim of the node.
    answers: [Option<WitnessRecord>; 2],
}

impl Labels for Canon {
    fn generation(&self, old: Generation) -> Generation {
        Generation::new(old.get() - self.lowest + 1).unwrap()
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
            linked,
            begun,
            acknowledged,
            durable,
            gone,
        } = self;
        (left.swaps, nodes, witness, linked, begun).hash(&mut hasher);
        (acknowledged, durable, gone).hash(&mut hasher);
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
            node.late.retain(is_live);
            if node.late.is_full() && node.late.get(0) == node.late.get(1) {
                node.late.remove(1);
            }
            if let Question::Asked(Some(claim)) = node.question
                && !is_live(&claim)
            {
                node.question = Question::Asked(None);
            }
            for set in [&mut node.memory, &mut node.disk, &mut node.holds] {
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
        };
        self.witness.iter().for_each(|known| seen.see(known));
        self.nodes.iter().for_each(|node| seen.see_node(node));
        seen.changes[..seen.count].sort_unstable();
        let answers = self.nodes.each_ref().map(|node| match node.question {
            Question::NotAsked => [None, None],
            // A claim that is not on its way has made the present record, or none.
            Question::Asked(claim) => [self.witness, claim.map(|claim| claim.new)],
            Question::Answered(record) => [Some(record), None],
        });
        answers.map(|answers| {
            let mut canon = seen;
            canon.answers = answers;
            canon
        })
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

    fn see_node(&mut self, node: &Node) {
        self.see_generation(node.durable.generation);
        for told in node.inbox.iter() {
            self.see_generation(told.record.generation);
            told.seen
                .iter()
                .for_each(|seen| self.see_generation(seen.generation));
        }
        match &node.question {
            Question::Asked(Some(claim)) => self.see_claim(claim),
            Question::Answered(known) => self.see(known),
            _ => {}
        }
        node.late.iter().for_each(|claim| self.see_claim(&claim));
        if let Some(machine) = &node.machine {
            self.see_generation(machine.durable().generation);
            let peer = machine.greeting().seen;
            if let Some(record) = peer {
                self.see_generation(record.generation);
            }
        }
    }
}

impl Node {
    /// A number that tells most nodes apart without their names.
    fn rank(&self) -> u64 {
        let record = self.durable;
        let phase = self.phase().map_or(0, |phase| phase as u64 + 1);
        let bits = [
            record.is_primary(),
            record.is_candidate,
            record.complete,
            record.peer_complete,
            self.lease,
        ];
        let marks = bits
            .into_iter()
            .fold(0, |bits, bit| bits << 1 | u64::from(bit));
        let copies = u64::from(self.memory) << 4 | u64::from(self.disk);
        record.generation.get() << 32
            | marks << 24
            | phase << 16
            | copies << 8
            | self.inbox.len() as u64
    }

    fn relabel(&self, labels: &Canon) -> Self {
        Self {
            durable: labels.record(self.durable),
            machine: self.machine.clone().map(|machine| machine.relabel(labels)),
            inbox: self.inbox.map(|told| labels.told(told)),
            question: match self.question {
                Question::Asked(claim) => Question::Asked(claim.map(|claim| labels.claim(claim))),
                Question::Answered(record) => Question::Answered(labels.known(record)),
                Question::NotAsked => Question::NotAsked,
            },
            late: self.late.map(|claim| labels.claim(claim)),
            led: self.led >> (labels.lowest - 1),
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
