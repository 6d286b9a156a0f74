//! The trash of a datastore: the commands about it, and their answers.

use serde::{Deserialize, Serialize};

/// A command about the trash of a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrashCommand {
    /// Lists a part of it, in the order of inode numbers, on a node in any role.
    List {
        /// The first inode number.
        from: u64,
    },
    /// Gives a file or a directory its name back.
    Restore(RestoreQuestion),
    /// Takes files and directories out of the trash, so that their space is freed.
    Empty {
        /// Only what was deleted before this moment, in seconds since 1970.
        before: Option<i64>,
    },
}

/// The file or directory that is to get its name back, and the name. Paths begin at the mount, without a slash at either end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreQuestion {
    /// The path at which it was deleted. Empty if `inode` says which one.
    pub path: Vec<u8>,
    /// Its inode number, as in the list.
    pub inode: Option<u64>,
    /// The newest one of the path that was deleted at this moment or before, in seconds since 1970.
    pub at: Option<i64>,
    /// Of a directory, only what was deleted at this moment or later.
    pub since: Option<i64>,
    /// Another path for it, below a directory that exists.
    pub to: Option<Vec<u8>>,
}

/// The answer to a command about the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrashAnswer {
    /// A part of the list.
    Page(TrashPage),
    /// Something has its name again.
    Restored(TrashRestored),
    /// So many files and directories have left the trash.
    Emptied(u64),
}

/// A part of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashPage {
    /// Files and directories in the trash.
    pub entries: Vec<TrashEntry>,
    /// The first inode number of the next part; `None` at the end.
    pub next: Option<u64>,
}

/// A file or a directory in the trash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashEntry {
    /// The inode number, by which `lockstep trash restore --inode` finds it.
    pub inode: u64,
    /// The path from the mount directory at which it was deleted, without a slash in front. Bytes that are no UTF-8 are replaced. It begins with
    /// `?/` if its directory is gone for ever.
    pub path: String,
    /// The path in hexadecimal digits, if it is no UTF-8.
    pub path_hex: Option<String>,
    /// Its kind: `file`, `directory`, `symlink`, `fifo`, `socket`, `char_device` or `block_device`.
    pub kind: String,
    /// The size of a file in bytes; zero for anything else.
    pub size: u64,
    /// The time at which it was deleted, in UTC by the clock of the primary.
    pub deleted: String,
    /// The same in seconds since 1970.
    pub deleted_secs: i64,
    /// The number of the operation that has deleted it: the order of deletions.
    pub osn: String,
}

/// The outcome of giving names back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashRestored {
    /// The path that was asked for, as it is now.
    pub path: String,
    /// Files and directories that have a name again, directories above the path included.
    pub restored: u64,
    /// Those below the path that stay in the trash, since another file has their name: at most the first hundred paths.
    pub skipped: Vec<String>,
    /// How many of them there are.
    pub skipped_total: u64,
}

/// The extent of the trash, as a primary knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashStatus {
    /// Files and directories in the trash.
    pub entries: u64,
    /// Bytes that their contents take on the disk of this node.
    pub bytes: u64,
    /// Most bytes that they may take.
    pub bytes_max: u64,
    /// The time at which the oldest one was deleted; `None` if the trash is empty.
    pub oldest: Option<String>,
    /// How long they are kept: a word of the setting `trash`.
    pub keeps: String,
}
