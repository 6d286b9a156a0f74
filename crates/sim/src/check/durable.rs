//! Each change that was acknowledged as durable is in the final content, after any losses in
//! between.
//!
//! `check/synced.rs` says which changes had to be durable. The rules are direct. They do not use
//! the reasoning about losses in `check/content/register.rs`:
//!
//! - The final content has the bytes of a durable change, or a value that is not wholly older than
//!   the change. A value is wholly older if every call that can have produced it returned before
//!   the change was invoked.
//! - A name that one durable call made, and that no other call can have changed, leads to its
//!   inode.

use std::collections::BTreeSet;

use lockstep_types::Ino;

use super::dump::Dump;
use super::synced::Synced;
use super::timeline::{self, File, Touch, Value};
use super::untouched;
use super::violation::Violation;
use crate::history::{Answer, CallId, History};

const INVARIANT: &str = "durable";

/// Judges the final content of the primary's store.
pub fn check(history: &History, last: &Dump) -> Result<(), Violation> {
    check_names(history, last)?;
    for (ino, file) in timeline::files(history) {
        if let Some(look) = timeline::last_look(last, ino) {
            check_file(history, last, ino, &file, &look)?;
        }
    }
    Ok(())
}

fn check_names(history: &History, last: &Dump) -> Result<(), Violation> {
    let synced = Synced::of(history);
    for name in untouched::names(history.calls()) {
        let is_durable = synced.namespace(history.calls().get(name.maker)) != u64::MAX;
        if is_durable && last.lookup(name.parent, &name.name) != Some(name.ino) {
            let what = "a name that was made durable is not there".to_owned();
            return Err(Violation::new(INVARIANT, what).calls(history, [name.maker]));
        }
    }
    Ok(())
}

fn check_file(
    history: &History,
    last: &Dump,
    ino: Ino,
    file: &File,
    look: &Touch,
) -> Result<(), Violation> {
    let durable = || {
        file.changes
            .iter()
            .filter(|change| change.durable != u64::MAX)
    };
    let touches = file.changes.iter().chain([look]);
    let pieces = touches.flat_map(|touch| &touch.pieces);
    let cuts: BTreeSet<_> = pieces.flat_map(|piece| [piece.0, piece.1]).collect();
    for offset in cuts {
        let found = look.at(offset).unwrap_or(Value::Absent);
        let missing = durable().find(|change| is_missing(file, change, offset, found));
        if let Some(change) = missing {
            let what = format!("file #{ino}, byte {offset}: not as it was made durable");
            return Err(accuse(history, last, ino, what, change.call));
        }
    }
    Ok(())
}

/// Returns whether the byte at `offset` can only be older than the value that `change` made durable
/// there.
fn is_missing(file: &File, change: &Touch, offset: u64, found: Value) -> bool {
    let made = change.at(offset);
    let explains = |other: &Touch| {
        other.over >= change.invoked && other.at(offset).is_some_and(|value| leads_to(value, found))
    };
    made.is_some_and(|made| made.excludes(found)) && !file.changes.iter().any(explains)
}

/// Returns whether a byte that was set to `value` may later read as `found`, if only growth of the
/// file happened in between.
fn leads_to(value: Value, found: Value) -> bool {
    match found {
        Value::Mark(_) => value == found,
        Value::Zero => matches!(value, Value::Zero | Value::Cleared | Value::Absent),
        _ => value == Value::Absent,
    }
}

fn accuse(
    history: &History,
    last: &Dump,
    ino: Ino,
    what: String,
    change: Option<CallId>,
) -> Violation {
    let bytes = last.bytes(ino).unwrap_or_default();
    Violation::new(INVARIANT, what)
        .calls(history, change)
        .line(format!("final content: {}", Answer::read(ino, 0, bytes)))
}
