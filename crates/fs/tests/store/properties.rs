//! Random operations on the store and on a model, and on two stores as primary and secondary apply them.

use lockstep_fs::store::ImageChunk;
use lockstep_fs::{Store, keys};
use lockstep_types::{MetaOp, Osn};
use proptest::prelude::*;

use crate::harness::{Node, World, read_all};
use crate::steps::{Step, step};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// After every step, including restarts and kills, the store shows the same state as the model.
    #[test]
    fn a_store_does_what_a_file_system_does(steps in prop::collection::vec(step(4), 1..24)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.compare();
        }
        world.node.kill();
        world.compare();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The same operations, on the primary's path and on the secondary's path, make equal stores, no matter
    /// when either of them stops.
    #[test]
    fn two_stores_stay_equal(
        steps in prop::collection::vec((step(6), 0..4u8), 1..40),
    ) {
        let mut pair = Pair { world: World::new(), other: Node::new() };
        for (step, variant) in &steps {
            pair.step(step, *variant);
        }
        pair.compare();
        pair.world.node.kill();
        pair.other.kill();
        pair.compare();
    }
}

/// A primary with its model, and a secondary.
struct Pair {
    world: World,
    other: Node,
}

impl Pair {
    fn step(&mut self, step: &Step, variant: u8) {
        match *step {
            Step::Meta(ref change) => {
                let op = self.world.admit(change);
                self.meta(&op, variant);
            }
            Step::Write {
                file,
                offset,
                length,
                fill,
            } => {
                let write = self.world.admit_write(file, offset, length, fill);
                let (here, there) = (
                    write.to(&self.world.node.store),
                    write.to(&self.other.store),
                );
                assert_eq!(here.is_ok(), there.is_ok());
                self.world.expect_write(&write, &here);
            }
            Step::Checkpoint if variant < 2 => self.other.store.checkpoint().unwrap(),
            Step::Garbage if variant < 2 => drop(self.other.store.collect_garbage().unwrap()),
            Step::Restart if variant < 2 => self.other.restart(),
            Step::Kill if variant < 2 => self.other.kill(),
            _ => self.world.step(step),
        }
        self.world.node.tend();
        self.other.tend();
    }

    /// Validates and logs on the primary, commits on the secondary, then commits on the primary. The primary
    /// may be killed before and after the commit on the secondary.
    fn meta(&mut self, op: &MetaOp, variant: u8) {
        if let Err(refused) = self.world.node.store.validate(op) {
            let there = self
                .other
                .store
                .commit(op)
                .map(drop)
                .map_err(|error| error.errno());
            assert_eq!(there, Err(refused.errno()));
            return self.world.expect(op, &Err(refused));
        }
        self.world.node.store.intents().log(op).unwrap();
        if variant == 0 {
            self.kill_in_doubt(op.osn);
        }
        if variant == 1 {
            self.world.node.store.intents().roll_back(op.osn).unwrap();
            return self.world.node.kill();
        }
        self.other.store.commit(op).unwrap();
        if variant == 2 {
            self.world.node.store.checkpoint().unwrap();
            self.kill_in_doubt(op.osn);
        }
        let done = self.world.node.store.intents().commit(op.osn);
        self.world.expect(op, &done.map(Option::unwrap));
    }

    fn kill_in_doubt(&mut self, osn: Osn) {
        self.world.node.kill();
        assert_eq!(self.world.node.store.intents().in_doubt(), [osn]);
        assert_eq!(self.world.node.store.intents().get(osn).unwrap().0.osn, osn);
    }

    fn compare(&self) {
        let (here, there) = (&self.world.node.store, &self.other.store);
        here.checkpoint().unwrap();
        there.checkpoint().unwrap();
        for table in keys::REPLICATED {
            let chunk =
                |store: &Store| ImageChunk::read(&store.tree(), table, &[], usize::MAX).unwrap();
            assert_eq!(chunk(here), chunk(there));
        }
        for (ino, node) in self.world.model.nodes() {
            if node.kind == lockstep_types::NodeKind::File {
                assert!(
                    read_all(here, ino) == read_all(there, ino),
                    "content of {ino}"
                );
            }
        }
        self.world.compare();
    }
}
