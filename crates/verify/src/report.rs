//! What a comparison found.
//!
//! The list of differences is bounded, the count of them is not.

use std::fmt;

use lockstep_types::Ino;
use serde::Serialize;

/// Most differences that are listed.
pub const LISTED_MAX: usize = 1000;

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Inodes compared.
    pub inodes: u64,
    /// Bytes of content compared, holes included.
    pub bytes: u64,
    /// How many differences there are.
    pub total: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
}

/// Something that is not the same on both nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Number of the inode.
    pub ino: u64,
    /// A path of it on this node, if it has one. Bytes that are no text are replaced.
    pub path: Option<String>,
    /// What differs.
    pub what: What,
}

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The inode exists on one node only.
    Inode {
        /// Where it does.
        only: Side,
    },
    /// The digest, but nothing that is known to be part of it.
    Digest,
    /// An attribute.
    Attribute {
        /// Which.
        name: &'static str,
        /// Its value on this node.
        here: String,
        /// Its value on the peer.
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
        /// First byte of the first block that differs.
        offset: u64,
        /// Bytes up to the end of the last block that differs, or of the file.
        length: u64,
    },
    /// A record that belongs to the inode.
    Record {
        /// What it is a record of.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Where it is, if it is not on both; else its values differ.
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
    /// Whether the nodes hold the same.
    pub const fn is_identical(&self) -> bool {
        self.total == 0
    }

    /// Whether a further difference would only be counted.
    pub const fn is_full(&self) -> bool {
        self.differences.len() >= LISTED_MAX
    }

    pub(crate) fn add(&mut self, ino: Ino, what: What) {
        self.total += 1;
        if !self.is_full() {
            self.differences.push(Difference {
                ino: ino.get(),
                path: None,
                what,
            });
        }
    }

    /// Adds bytes that differ; joined with those before them.
    pub(crate) fn add_content(&mut self, ino: Ino, start: u64, bytes: u64) {
        if let Some(Difference {
            ino: last,
            what: What::Content { offset, length },
            ..
        }) = self.differences.last_mut()
            && *last == ino.get()
            && *offset + *length == start
        {
            *length += bytes;
            return;
        }
        let what = What::Content {
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

impl fmt::Display for What {
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

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{path} (inode {}): {}", self.ino, self.what),
            None => write!(f, "inode {}: {}", self.ino, self.what),
        }
    }
}
