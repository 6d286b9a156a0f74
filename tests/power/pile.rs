//! Many files that no client syncs: more than a node syncs one by one at its stop.

use std::fs;
use std::path::Path;

use lockstep_testbed::chance::{Chance, content, mix};

/// More than the store's own limit, 256.
const FILES: u64 = 300;
/// A whole block and a part of one.
const BYTES: usize = 5600;
/// The directory, below the root.
const DIRECTORY: &str = "pile";

/// The files, with their last written content.
#[derive(Default)]
pub struct Pile {
    key: u64,
}

impl Pile {
    /// Rewrites all files below `root`.
    pub fn rewrite(&mut self, root: &Path, chance: &mut Chance) {
        self.key = chance.any();
        let directory = root.join(DIRECTORY);
        fs::create_dir_all(&directory).unwrap();
        for number in 0..FILES {
            fs::write(directory.join(number.to_string()), self.content(number)).unwrap();
        }
    }

    /// Checks that all files have their written content.
    pub fn check(&self, root: &Path) {
        for number in 0..FILES {
            let found = fs::read(root.join(DIRECTORY).join(number.to_string())).unwrap();
            assert!(found == self.content(number), "file {number} of the pile");
        }
    }

    fn content(&self, number: u64) -> Vec<u8> {
        content(mix(self.key ^ number), BYTES)
    }
}
