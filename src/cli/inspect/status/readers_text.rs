//! The change readers of a node, in the text of `lockstep status` and `lockstep changes`.

use std::time::Duration;

use lockstep_driver::report::{ChangeReaderStatus, DatastoreStatus};

use crate::cli::terminal::duration;

/// The rows for them.
pub(super) fn rows(store: &DatastoreStatus) -> impl Iterator<Item = (&'static str, String)> + '_ {
    let readers = store.sync.copy.readers.iter();
    readers.map(|reader| ("reader", format!("{}: {}", reader.name, describe(reader))))
}

/// A reader in words.
pub(in crate::cli) fn describe(reader: &ChangeReaderStatus) -> String {
    let heard = duration(Duration::from_millis(reader.heard_ms));
    let since = match (&reader.since, reader.marks_lost) {
        (_, true) => "its marks are lost: the next answer is \"everything\"".to_owned(),
        (Some(since), false) => format!("has everything up to {since}"),
        (None, false) => "has confirmed nothing".to_owned(),
    };
    format!("{since}; last heard of {heard} ago")
}
