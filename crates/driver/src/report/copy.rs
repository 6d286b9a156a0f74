//! The copy of a node in a status: its content.

use serde::{Deserialize, Serialize};

/// The content of the copy of this node. In JSON the fields stand beside those of the state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyStatus {
    /// The mark on stable storage. On the primary: the secondary holds every acknowledged operation. On the
    /// secondary: this copy did when the connection was lost.
    pub marked_in_sync: bool,
    /// This copy holds every acknowledged operation that this node knows of: an operator may promote this node without
    /// accepting a loss.
    #[serde(default)]
    pub complete: bool,
    /// The write verifier of this copy; `None` before the store is open.
    #[serde(default)]
    pub write_verifier: Option<u64>,
    /// On a secondary without a connection: the moment at which this copy was last in sync, in UTC by the clock of that
    /// machine. `None` on a primary, while the nodes are in sync, and if they never were.
    #[serde(default)]
    pub as_of: Option<String>,
}
