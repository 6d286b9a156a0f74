//! A store that was closed cleanly loses nothing at a power loss, under every durability setting.
//! All its data is on stable storage (P12, L1).
//!
//! The next start treats the store as a complete copy, in sync if it was in sync before. So no
//! readable data may be missing. No entry of PAW and SAW may be missing either, because these
//! entries say where the nodes differ.

use lockstep_paw_saw::InFlightEntry;

use super::dump::Dump;
use super::identical;
use super::violation::Violation;
use crate::world::Side;

/// Maximum number of differences in the message. Further differences are only counted.
const TOLD_MAX: usize = 20;

/// The content of a store while no process has it open.
#[derive(Clone, Debug)]
pub struct Store {
    /// All readable data.
    pub dump: Dump,
    /// The entries of PAW.
    pub paw: Vec<InFlightEntry>,
    /// The entries of SAW.
    pub saw: Vec<InFlightEntry>,
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
