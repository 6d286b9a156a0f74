//! Acknowledged operations survive the crash of a process, of one node or of both.
//!
//! The final content is one more look at every file, after everything else, and must obey what
//! [`reads`](super::reads) demands of a look: what was acknowledged since the last loss is there,
//! unless something else may have come after it. Names that one acknowledged call made since the
//! last loss, and that no other call can have changed, are there; the other names are judged by
//! [`exactly_once`](super::exactly_once).

use super::content;
use super::dump::Dump;
use super::untouched;
use super::violation::Violation;
use crate::history::History;

const INVARIANT: &str = "survives";

/// Judges the final content of the primary's store.
pub fn check(history: &History, last: &Dump) -> Result<(), Violation> {
    let last_loss = history.losses().last().map_or(0, |loss| loss.at);
    for name in untouched::names(history) {
        let is_there = last.lookup(name.parent, &name.name) == Some(name.ino);
        if history.call(name.maker).invoked > last_loss && !is_there {
            let what = "a name that was acknowledged is not there".to_owned();
            return Err(Violation::new(INVARIANT, what).calls(history, [name.maker]));
        }
    }
    content::check(INVARIANT, history, Some(last))
}
