//! The answers of a node to a change reader: the changes, and the list of readers.

use serde::{Deserialize, Serialize};

/// The begin of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesHead {
    /// The point to be confirmed, once the reader has taken all of the answer.
    pub point: String,
    /// The point since which changes are told; `None` if everything may have changed.
    pub since: Option<String>,
    /// One word for the reason for which everything may have changed; `None` if entries follow.
    pub everything: Option<String>,
    /// The same for people.
    pub reason: Option<String>,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// An entry that may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeEntry {
    /// `new`, `changed` or `removed`.
    pub change: String,
    /// The path from the mount directory, without a slash in front. Bytes that are no UTF-8 are replaced.
    pub path: String,
    /// The path in hexadecimal digits, if it is no UTF-8.
    pub path_hex: Option<String>,
    /// The inode; `None` for a name that is gone.
    pub inode: Option<u64>,
    /// The size of a file; `None` for anything else.
    pub size: Option<u64>,
    /// Attributes or extended attributes may have changed.
    pub attributes: bool,
    /// The bytes of a file that may have changed, if the reader has asked for them.
    pub ranges: Vec<ChangedRange>,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangesPart {
    /// The begin.
    Head(ChangesHead),
    /// Entries; a long answer has many of them.
    Entries(Vec<ChangeEntry>),
}

/// The question of a change reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangesQuestion {
    /// Its name.
    pub reader: String,
    /// The point up to which it has everything, as text.
    pub since: Option<String>,
    /// Whether it wants the bytes that have changed.
    pub ranges: bool,
}

/// A command about the change readers of a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReaderCommand {
    /// Lists them.
    List,
    /// A reader has everything up to a point.
    Confirm {
        /// Its name.
        reader: String,
        /// The point, as text.
        point: String,
    },
    /// Removes a reader.
    Remove {
        /// Its name.
        reader: String,
    },
}

/// A change reader in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeReaderStatus {
    /// Its name.
    pub name: String,
    /// The point that it has confirmed.
    pub since: Option<String>,
    /// When it was registered, in UTC by the clock of that machine.
    pub registered: String,
    /// Time since it was last heard of, in milliseconds.
    pub heard_ms: u64,
    /// Its marks are lost: the next answer is "everything".
    pub marks_lost: bool,
}
