//! The difference between two snapshots, or between a snapshot and the present: the question, and the parts of the answer.

use serde::{Deserialize, Serialize};

/// The begin of a difference that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiffBegin {
    /// All of it, between two moments.
    Moments {
        /// Name of the older snapshot.
        from: String,
        /// Name of the newer snapshot; `None` for the present.
        to: Option<String>,
    },
    /// The rest, from a cursor of an earlier answer on.
    Cursor(String),
}

/// A question for a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffQuestion {
    /// Where the answer begins.
    pub begin: DiffBegin,
    /// Whether the bytes of files are compared and told.
    pub ranges: bool,
    /// Entries after which the answer ends, with a cursor; a few more may come. `None`: at the end of the difference.
    pub entries_max: Option<u64>,
    /// Also if this machine has lost its power before a snapshot was settled.
    pub accepts_torn: bool,
}

/// A moment that a difference begins or ends with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffMoment {
    /// Name of the snapshot.
    pub name: String,
    /// The number of the operation whose moment the snapshot shows. Of a snapshot of one copy, a count follows a plus sign.
    pub osn: String,
    /// When the snapshot was made, in UTC by the clock of the node that has made it.
    pub time: String,
}

/// The begin of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffHead {
    /// The older snapshot.
    pub from: DiffMoment,
    /// The newer snapshot; `None` for the present.
    pub to: Option<DiffMoment>,
}

/// Bytes of a file that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffBytes {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// All of them are zeros at the newer moment.
    pub zeros: bool,
}

/// A difference between the two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffItem {
    /// `created`, `deleted`, `renamed`, `linked`, `unlinked` or `changed`.
    pub change: String,
    /// The path from the mount directory at the newer moment, without a slash in front; at the older moment where the name is gone. Bytes that
    /// are no UTF-8 are replaced.
    pub path: String,
    /// The path in hexadecimal digits, if it is no UTF-8.
    pub path_hex: Option<String>,
    /// A path of the same inode at the older moment, for a renamed or linked one that was there.
    pub old_path: Option<String>,
    /// The same in hexadecimal digits, if it is no UTF-8.
    pub old_path_hex: Option<String>,
    /// The inode.
    pub inode: u64,
    /// Its kind: `file`, `directory`, `symlink`, `fifo`, `socket`, `char_device` or `block_device`.
    pub kind: String,
    /// The size of a file, at the moment of `path`; `None` for anything else.
    pub size: Option<u64>,
    /// The names of the attributes that differ; none of an inode that has come or gone.
    pub attributes: Vec<String>,
    /// Whether extended attributes differ.
    pub xattrs: bool,
    /// The bytes of a file that differ, if they are asked for.
    pub ranges: Vec<DiffBytes>,
    /// An item of the same file came before, and this one has further ranges.
    pub continued: bool,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiffPart {
    /// The begin.
    Head(DiffHead),
    /// A page.
    Page {
        /// The items, perhaps none.
        items: Vec<DiffItem>,
        /// The place behind them, for a later question; `None` at the end of the difference.
        cursor: Option<String>,
    },
}
