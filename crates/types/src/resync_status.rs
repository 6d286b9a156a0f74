//! The progress of a resync, as a primary knows it, and as it tells it to its secondary.
//!
//! Invariant: a number that is not known is `None`, and never a guess.

use serde::{Deserialize, Serialize};

use crate::settings::Choice;

/// The part of its work that a resync does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResyncPhase {
    /// The nodes settle the operations that were in flight when the connection was lost. No resync follows.
    Recovery,
    /// Names, attributes and extended attributes are sent.
    Namespace,
    /// The content of files is compared, and the differences are sent.
    Content,
    /// The files and records that were sent are compared, before the nodes are in sync.
    Proving,
    /// All is equal. Both nodes make it durable, and note that they are in sync.
    Finish,
}

impl Choice for ResyncPhase {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Recovery, "recovery"),
        (Self::Namespace, "namespace"),
        (Self::Content, "content"),
        (Self::Proving, "proving"),
        (Self::Finish, "finish"),
    ];
}

/// The reason for which a resync waits before it works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResyncWait {
    /// The limit of bytes per second (`resync_bytes_per_second`).
    Limit,
    /// Operations of clients take long (`resync_pause_above_ms`).
    Clients,
}

/// Progress of a resync. The totals are those at the begin of its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResyncStatus {
    /// The phase.
    pub phase: ResyncPhase,
    /// Whether everything is compared, and not only what has changed; `None` before that is decided.
    pub whole: Option<bool>,
    /// Number of regular files; in the phase of the proof, of inodes of any kind.
    pub files_total: Option<u64>,
    /// Those of them that are equal on both nodes now.
    pub files_done: u64,
    /// Bytes of content, holes included.
    pub bytes_total: Option<u64>,
    /// Bytes of content compared, holes included; in the phase of the proof, those that had to be read once more; in the phase of the namespace, bytes of records that were sent.
    pub bytes_done: u64,
    /// Bytes of content, or in the phase of the namespace of records, that were sent.
    pub bytes_sent: u64,
    /// `bytes_done` in a second, over the last seconds.
    pub bytes_per_second: Option<u64>,
    /// Time until the end of the phase at the speed of the last seconds, in milliseconds.
    pub left_ms: Option<u64>,
    /// The reason for which the resync waits.
    pub waits_for: Option<ResyncWait>,
}
