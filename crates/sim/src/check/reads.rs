//! No read returns a result that no legal order of operations can produce.
//!
//! Every byte that a client sees must obey these rules. The rule of `check/content/register.rs` says the
//! same in one sentence. That file also says why the rule never accuses a correct run:
//!
//! - The byte comes from a write that was invoked before the read returned, or it was zero, or it
//!   was beyond the end.
//! - No other change of the byte lies wholly between that write and the read.
//! - After a later value was seen, an earlier value does not return.
//! - A returned write is seen as a whole or not at all. Two such writes have the same order
//!   everywhere.
//! - A loss undoes only non-durable changes, each byte independently. The crash of a process undoes
//!   nothing.

use super::content;
use super::violation::Violation;
use crate::history::History;

/// Judges the observations of the clients.
pub fn check(history: &History) -> Result<(), Violation> {
    content::check("reads", history, None)
}
