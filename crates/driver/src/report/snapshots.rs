//! The snapshots of a datastore: the commands about them, and the list.

use serde::{Deserialize, Serialize};

/// A command about the snapshots of a datastore. Names are as the operator has given them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotCommand {
    /// Lists them, on a node in any role.
    List,
    /// The same, with the space that only each one takes: reads the index of kept values.
    ListSpace,
    /// Makes one.
    Create {
        /// Its name.
        name: String,
        /// Whether it is made between the commands of the configuration.
        hooks: bool,
    },
    /// Gives one another name.
    Rename {
        /// Its name.
        name: String,
        /// Its name from now on.
        to: String,
    },
    /// Deletes one.
    Delete {
        /// Its name.
        name: String,
    },
    /// Puts a hold on one, so that it cannot be deleted.
    Hold {
        /// Its name.
        name: String,
        /// The name of the hold.
        hold: String,
    },
    /// Takes a hold off one.
    Release {
        /// Its name.
        name: String,
        /// The name of the hold.
        hold: String,
    },
}

/// A snapshot in the list of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotStatus {
    /// Its name.
    pub name: String,
    /// The number of the operation whose moment the snapshot shows. Of a snapshot of one copy, a count follows a plus sign.
    pub osn: String,
    /// When it was made, in UTC by the clock of the node that has made it.
    pub time: String,
    /// Why it was made: `user`, `schedule`, `fallback` or `lost`.
    pub kind: String,
    /// State of its bytes on this node: `settled`, `unsettled`, `torn`, `missing` or `deleting`.
    pub state: String,
    /// Whether it is a snapshot of the copy of this node alone.
    pub local: bool,
    /// The names of the holds that keep it from being deleted, the oldest first.
    pub holds: Vec<String>,
    /// About the bytes that its deletion gives back on this node; `None` if they were not asked for.
    pub alone_bytes: Option<u64>,
    /// About the number of kept records that only it sees; `None` if it was not asked for.
    pub alone_records: Option<u64>,
}
