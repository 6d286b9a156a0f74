//! Acknowledged operations survive the crash of the process of one node or of both nodes.
//!
//! The final content is one more look at every file, after everything else. It must obey the rules
//! of [`reads`](super::reads) for a look. Each change acknowledged since the last loss is present,
//! unless another change may have come after it. A name is present if one acknowledged call made it
//! since the last loss and no other call can have changed it. [`exactly_once`](super::exactly_once)
//! judges the other names.

use super::content;
use super::dump::Dump;
use super::untouched;
use super::violation::Violation;
use crate::history::History;

const INVARIANT: &str = "survives";

/// Judges the final content of the primary's store.
pub fn check(history: &History, last: &Dump) -> Result<(), Violation> {
    let last_loss = history.nodes().losses().last().map_or(0, |loss| loss.at);
    for name in untouched::names(history.calls()) {
        let is_there = last.lookup(name.parent, &name.name) == Some(name.ino);
        if history.calls().get(name.maker).invoked > last_loss && !is_there {
            let what = "a name that was acknowledged is not there".to_owned();
            return Err(Violation::new(INVARIANT, what).calls(history, [name.maker]));
        }
    }
    content::check(INVARIANT, history, Some(last))
}
