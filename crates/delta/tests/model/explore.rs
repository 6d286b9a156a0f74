//! Explores every state of the model, breadth first: a path to a broken promise is a shortest one.
//!
//! A state counts by 64 bits of its fingerprint. Two of ten million states have the same bits with a probability of 3 in a
//! million.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use crate::limits::Limits;
use crate::promises::Sight;
use crate::world::{Action, World};

/// A broken promise, and a shortest path to it.
pub struct Broken {
    pub promise: &'static str,
    pub path: Vec<Action>,
}

/// The result of an exploration.
pub struct Found {
    pub states: usize,
    /// The kinds of states that were met.
    pub seen: BTreeSet<Sight>,
    pub broken: Option<Broken>,
}

/// How a state was reached: the number of the state before, and the action.
type Step = (u32, Action);

/// Explores all states.
pub fn explore(limits: Limits) -> Found {
    let hasher = BuildHasherDefault::<Mixer>::default();
    let start = limits.start();
    let mut visited: HashSet<u64, BuildHasherDefault<Mixer>> = HashSet::default();
    visited.insert(hasher.hash_one(&start));
    let mut steps: Vec<Option<Step>> = vec![None];
    let mut seen = BTreeSet::new();
    let mut round: Vec<(u32, World)> = vec![(0, start)];
    let mut actions = Vec::new();
    while !round.is_empty() {
        let mut next_round = Vec::new();
        for (number, world) in round {
            actions.clear();
            if !world.is_settled() {
                world.actions(&mut actions);
            }
            for action in actions.drain(..) {
                let mut next = world.clone();
                next.step(action);
                next.look(&mut seen);
                let next = next.canonical();
                if !visited.insert(hasher.hash_one(&next)) {
                    continue;
                }
                let reached = u32::try_from(steps.len()).unwrap();
                steps.push(Some((number, action)));
                if let Some(promise) = next.broken_promise(action) {
                    let path = path(&steps, reached);
                    return Found {
                        states: steps.len(),
                        seen,
                        broken: Some(Broken { promise, path }),
                    };
                }
                next_round.push((reached, next));
            }
        }
        round = next_round;
    }
    Found {
        states: steps.len(),
        seen,
        broken: None,
    }
}

/// A fast hash of 64 bits.
#[derive(Default)]
struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value ^ 0x5851_f42d_4c95_7f2d) * 0x9e37_79b9_7f4a_7c15;
        let (low, high) = (product & u128::from(u64::MAX), product >> 64);
        self.0 = u64::try_from(low ^ high).unwrap_or(0);
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for eight in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..eight.len()].copy_from_slice(eight);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
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

fn path(steps: &[Option<Step>], mut at: u32) -> Vec<Action> {
    let mut path = Vec::new();
    while let Some((before, action)) = steps[at as usize] {
        path.push(action);
        at = before;
    }
    path.reverse();
    path
}

/// Prints each step of a path with the state after it.
pub fn print_path(limits: Limits, path: &[Action]) {
    let mut world = limits.start();
    for action in path {
        println!("{action:?}");
        world.step(*action);
        for node in &world.nodes {
            println!(
                "    {:?} {:?} {:?} known {:?} {:?}",
                node.memory,
                node.stable,
                node.marks,
                node.barriers
                    .known()
                    .map(|it| it.through.get())
                    .collect::<Vec<_>>(),
                node.coverage
            );
        }
        world = world.canonical();
    }
}
