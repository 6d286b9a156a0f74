//! The checks of a history. Each file holds one invariant. Each check is a pure function of the
//! evidence. The parts of a large check stand in a folder beside it: `check/exactly_once` searches for an order of
//! the metadata operations, `check/content` judges the bytes of a file.
//!
//! No check may raise a false alarm. A check accepts every result that a legal order of operations
//! can produce. Where a question is too costly to decide, the check leaves the question undecided.
//! The head of each file says why its rule holds for every correct run.
//!
//! The evidence has three parts:
//!
//! - the [`History`]: the requests, the answers, and the events of the nodes
//! - the [`Dump`]s of the stores at the end
//! - [samples](bounded::Sample) of the counters, taken during the run

pub mod bounded;
pub mod closed;
mod content;
mod dump;
pub mod durable;
pub mod exactly_once;
pub mod identical;
pub mod in_time;
pub mod leaks;
pub mod one_primary;
pub mod reads;
pub mod sums;
pub mod survives;
mod synced;
mod timeline;
mod untouched;
pub mod verifier;
mod violation;

pub use dump::{Body, Dump, Entry, Inode};
pub use violation::Violation;

use crate::history::History;

/// Judges a history and the primary's store at its end, after all calls have ended. Checks every
/// invariant that needs only these two. Returns the first violation as the error, if there is one.
/// Returns `false` if there is no violation, but a check left a question undecided.
pub fn history(history: &History, last: &Dump) -> Result<bool, Violation> {
    one_primary::check(history.nodes())?;
    // `survives` judges the answers of the clients together with the end. `reads` judges the
    // answers alone. It runs only to name the violation.
    let survives = survives::check(history, last);
    if survives.is_err() {
        reads::check(history)?;
    }
    durable::check(history, last)?;
    survives?;
    exactly_once::decide(history, last)
}
