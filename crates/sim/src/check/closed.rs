//! A store that was closed in order loses nothing with power, whatever its durability is: all that it held is
//! on stable storage (P12, L1).
//!
//! The next start takes it for a copy that is whole, in sync if it was. So nothing may be missing of what can
//! be read, nor of PAW and SAW, which say where the nodes differ.

use lockstep_paw_saw::Entry;

use super::dump::Dump;
use super::identical;
use super::violation::Violation;
use crate::world::Side;

/// Differences told; more are counted.
const TOLD_MAX: usize = 20;

/// What a store holds while nobody has it open.
#[derive(Clone, Debug)]
pub struct Store {
    /// What can be read.
    pub dump: Dump,
    /// The entries of PAW.
    pub paw: Vec<Entry>,
    /// The entries of SAW.
    pub saw: Vec<Entry>,
}

/// Judges the store of a node before a loss of power and after it.
pub fn check(node: Side, before: &Store, after: &Store) -> Result<(), Violation> {
    let mut lost = identical::differences(&before.dump, &after.dump);
    let tables = [
        ("PAW", &before.paw, &after.paw),
        ("SAW", &before.saw, &after.saw),
    ];
    for (name, before, after) in tables {
        if before != after {
            lost.push(format!("{name}: {before:?} here, {after:?} there"));
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    let what = format!(
        "{node:?} was closed in order, and a loss of power has changed its store in {} ways (before it \
         here, after it there)",
        lost.len()
    );
    let violation = Violation::new("closed", what);
    Err(lost
        .into_iter()
        .take(TOLD_MAX)
        .fold(violation, Violation::line))
}
