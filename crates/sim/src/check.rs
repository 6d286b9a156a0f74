//! The judges of a history: one file per invariant, each a pure function of the evidence.
//!
//! No check may raise a false alarm: whatever a legal order of operations could have brought is
//! accepted, and where a question is too costly to decide, it is left open. The head of each file
//! says why its rule holds for every correct run.
//!
//! The evidence: the [`History`] (what was asked, answered and done to the nodes), [`Dump`]s of the
//! stores at the end, and [samples](bounded::Sample) of the counters on the way.

pub mod bounded;
pub mod closed;
mod content;
mod dump;
pub mod durable;
mod ending;
mod evidence;
pub mod exactly_once;
pub mod identical;
pub mod in_time;
pub mod leaks;
mod namespace;
pub mod one_primary;
mod order;
pub mod reads;
mod register;
mod search;
mod step;
pub mod survives;
mod synced;
mod timeline;
mod touches;
mod untouched;
mod violation;

pub use dump::{Body, Dump, Entry, Inode};
pub use violation::Violation;

use crate::history::History;

/// Judges a history and the store of the primary at its end, after all calls have ended: every
/// invariant that needs no more than these. The first violation, if there is one; `false` if there is
/// none, but a question had to be left undecided.
pub fn history(history: &History, last: &Dump) -> Result<bool, Violation> {
    one_primary::check(history)?;
    // What clients saw is judged again together with the end: alone only to name what is wrong.
    let survives = survives::check(history, last);
    if survives.is_err() {
        reads::check(history)?;
    }
    durable::check(history, last)?;
    survives?;
    exactly_once::decide(history, last)
}
