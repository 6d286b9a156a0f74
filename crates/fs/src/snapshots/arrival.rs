//! The arrival of a snapshot on a node that lacks its bytes, from the node that has them (rule P37).
//!
//! The node that has them reads the values that it has kept for the snapshot ([`source`]); the other one puts these values under the label of
//! the snapshot ([`sink`]). The values come in pages, in the order of the index of kept values. A value that came already may come again.

pub mod sink;
pub mod source;

use lockstep_types::{Hash128, Ino, SnapshotId};
use serde::{Deserialize, Serialize};

use crate::snapshots::packs::touch::NewTouch;

/// The values that arrive for a snapshot. Both nodes have every later value in common: `until` is whole on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalWindow {
    /// The snapshot.
    pub of: SnapshotId,
    /// The oldest newer snapshot that is whole on both nodes: values with labels up to this one, without it, arrive.
    pub until: SnapshotId,
    /// The snapshot that was made for the arrival. Zeros with labels from `until` up to this one arrive, if they are behind the size that `until` sees: a node
    /// that did not know the size that the snapshot sees has not kept them. The same as `until` if both nodes have these zeros.
    pub last: SnapshotId,
}

/// A place between the values of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalPlace {
    /// The key of the last entry of the index of which everything has come; empty at the begin.
    #[serde(with = "serde_bytes")]
    after: Vec<u8>,
    /// The chunk of the next entry, the content of a file, that comes next.
    chunk: u64,
}

/// A value that arrives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrivalItem {
    /// A record as the snapshot sees it.
    Record {
        /// The key.
        #[serde(with = "serde_bytes")]
        key: Vec<u8>,
        /// The value; `None` if there is no such record.
        value: Option<serde_bytes::ByteBuf>,
    },
    /// Blocks of a file as the snapshot sees them.
    Blocks(NewTouch),
    /// All blocks with bytes of a file that is freed on both nodes, in a range of chunks. The others are zeros.
    Content {
        /// The file.
        ino: Ino,
        /// The first chunk.
        from: u64,
        /// The first chunk behind the range.
        to: u64,
        /// The blocks, by chunk.
        touches: Vec<NewTouch>,
    },
}

/// Some values of a window, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalPage {
    /// The values.
    pub items: Vec<ArrivalItem>,
    /// The place of the next page; `None` at the end.
    pub next: Option<ArrivalPlace>,
    /// Changes when a value may have moved to a place that a page has passed: the arrival begins anew then.
    pub stamp: Hash128,
}
