//! No read returns what no legal order of operations could have produced.
//!
//! What every byte seen by a client must obey (the rule of `check/register.rs` says it in
//! one sentence and why it accuses nobody wrongly):
//!
//! - it comes from a write that was invoked before the read returned, or was zero, or beyond the end;
//! - no other change of it lies wholly between that write and the read;
//! - once a later value was seen, an earlier one does not come back;
//! - a returned write is seen whole or not at all, and two of them are in one order everywhere;
//! - a loss takes back what was not durable, each byte for itself, and nothing else; a process crash
//!   takes back nothing.

use super::content;
use super::violation::Violation;
use crate::history::History;

/// Judges what clients saw.
pub fn check(history: &History) -> Result<(), Violation> {
    content::check("reads", history, None)
}
