//! The result of a comparison.
//!
//! The list of differences is bounded, their count is not. The names of fields and variants appear in JSON.

use std::fmt;

use lockstep_types::Ino;
use serde::Serialize;

/// Most differences that are listed.
pub const LISTED_MAX: usize = 1000;

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Inodes compared.
    pub inodes: u64,
    /// Bytes of content compared, holes included.
    pub bytes: u64,
    /// Number of differences.
    pub total: u64,
    /// The first [`LISTED_MAX`] differences.
    pub differences: Vec<InodeDifference>,
}

/// A difference between the nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InodeDifference {
    /// Number of the inode.
    pub ino: u64,
    /// A path of the inode on this node, if there is one. Bytes that are no text are replaced.
    pub path: Option<String>,
    /// The kind of difference.
    pub what: DifferenceKind,
}

/// A kind of difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The inode exists on one node only.
    Inode {
        /// The node with the inode.
        only: Side,
    },
    /// The digest, but no known part of the digest.
    Digest,
    /// An attribute.
    Attribute {
        /// The attribute.
        name: &'static str,
        /// Value on this node.
        here: String,
        /// Value on the peer.
        there: String,
    },
    /// The length of the content on the disk.
    ContentLength {
        /// In bytes on this node.
        here: u64,
        /// In bytes on the peer.
        there: u64,
    },
    /// Bytes of the content.
    Content {
        /// First byte of the first different block.
        offset: u64,
        /// Bytes up to the end of the last different block, or of the file.
        length: u64,
    },
    /// A record that belongs to the inode.
    Record {
        /// The kind of record.
        kind: &'static str,
        /// Name of the record.
        name: String,
        /// The node with the record, if only one node has it; otherwise the values differ.
        only: Option<Side>,
    },
}

/// One of the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The primary, which compares.
    Here,
    /// The secondary.
    There,
}

impl Report {
    /// Whether the nodes are identical.
    pub const fn is_identical(&self) -> bool {
        self.total == 0
    }

    /// Whether a further difference would only be counted.
    pub const fn is_full(&self) -> bool {
        self.differences.len() >= LISTED_MAX
    }

    pub(crate) fn add(&mut self, ino: Ino, what: DifferenceKind) {
        self.total += 1;
        if !self.is_full() {
            self.differences.push(InodeDifference {
                ino: ino.get(),
                path: None,
                what,
            });
        }
    }

    /// Adds different bytes; joins them with the bytes directly before.
    pub(crate) fn add_content(&mut self, ino: Ino, start: u64, bytes: u64) {
        if let Some(InodeDifference {
            ino: last,
            what: DifferenceKind::Content { offset, length },
            ..
        }) = self.differences.last_mut()
            && *last == ino.get()
            && *offset + *length == start
        {
            *length += bytes;
            return;
        }
        let what = DifferenceKind::Content {
            offset: start,
            length: bytes,
        };
        self.add(ino, what);
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here => "this node",
            Self::There => "the peer",
        })
    }
}

impl fmt::Display for DifferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inode { only } => write!(f, "exists on {only} only"),
            Self::Digest => f.write_str("the digests differ"),
            Self::Attribute { name, here, there } => {
                write!(f, "{name} is {here} here and {there} on the peer")
            }
            Self::ContentLength { here, there } => write!(
                f,
                "content on disk is {here} bytes long here and {there} on the peer"
            ),
            Self::Content { offset, length } => {
                write!(f, "content differs in {length} bytes from byte {offset} on")
            }
            Self::Record { kind, name, only } => match only {
                Some(only) => write!(f, "{kind} {name} exists on {only} only"),
                None => write!(f, "{kind} {name} differs"),
            },
        }
    }
}

impl fmt::Display for InodeDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{path} (inode {}): {}", self.ino, self.what),
            None => write!(f, "inode {}: {}", self.ino, self.what),
        }
    }
}
