//! The result of a comparison.
//!
//! The list of differences is bounded, their count is not. The names of fields and variants appear in JSON.

use std::fmt;

use lockstep_types::Ino;
use serde::Serialize;

use crate::attribution::BlockVerdict;
use crate::side::Side;

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
    /// Number of differences that were repaired.
    pub healed: u64,
    /// Blocks of either node of whose bytes the sums say nothing. Zero if content was read from memory.
    pub void_blocks: u64,
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
    /// Bytes of the content, as the disks have them, or sums of them.
    Blocks {
        /// First byte.
        offset: u64,
        /// Bytes up to the end of the last block, or of the file.
        length: u64,
        /// The wrong side, as far as the nodes know.
        verdict: BlockVerdict,
        /// The outcome of the repair.
        repair: RepairOutcome,
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

/// The outcome of the repair of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// Nothing was to be repaired.
    NotAsked,
    /// The blocks or their sums are right now, on the disk.
    Done {
        /// Whether all old and new versions of the blocks are kept aside.
        kept: bool,
    },
    /// No copy is known to be right: nothing was changed.
    Undecided {
        /// Whether both versions of all blocks are kept aside.
        kept: bool,
    },
    /// The repair has failed.
    Failed {
        /// The cause, for an operator.
        why: String,
    },
}

impl Report {
    /// Whether the nodes are identical, by now.
    pub const fn is_identical(&self) -> bool {
        self.total == self.healed
    }

    /// Notes blocks of whose bytes the sums say nothing. A peer may say any number.
    pub(crate) const fn note_void(&mut self, blocks: u64) {
        self.void_blocks = self.void_blocks.saturating_add(blocks);
    }

    /// Whether a further difference would only be counted.
    pub const fn is_full(&self) -> bool {
        self.differences.len() >= LISTED_MAX
    }

    /// Adds what another comparison has found, of other inodes.
    pub fn add_all(&mut self, other: Self) {
        self.inodes += other.inodes;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.total += other.total;
        self.healed += other.healed;
        self.note_void(other.void_blocks);
        let room = LISTED_MAX.saturating_sub(self.differences.len());
        self.differences
            .extend(other.differences.into_iter().take(room));
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

    /// Adds blocks of a deep comparison; joins them with equal ones directly before.
    pub(crate) fn add_blocks(&mut self, ino: Ino, what: DifferenceKind) {
        if let Some(last) = self.differences.last_mut()
            && last.ino == ino.get()
            && last.what.is_continued_by(&what)
            && let (
                DifferenceKind::Blocks { length, .. },
                DifferenceKind::Blocks { length: more, .. },
            ) = (&mut last.what, &what)
        {
            *length += more;
            return;
        }
        let is_healed = matches!(
            what,
            DifferenceKind::Blocks {
                repair: RepairOutcome::Done { .. },
                ..
            }
        );
        self.healed += u64::from(is_healed);
        self.add(ino, what);
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

impl DifferenceKind {
    /// Whether `next` are the blocks behind these, with all the same said of them.
    fn is_continued_by(&self, next: &Self) -> bool {
        let Self::Blocks {
            offset,
            length,
            verdict,
            repair,
        } = self
        else {
            return false;
        };
        matches!(next, Self::Blocks { offset: at, verdict: other, repair: outcome, .. }
            if *at == offset + length && other == verdict && outcome == repair)
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
            Self::Blocks {
                offset,
                length,
                verdict,
                repair,
            } => {
                let bytes = format!("{length} bytes from byte {offset} on");
                write_verdict(f, &bytes, *verdict)?;
                write!(f, "{repair}")
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

fn write_verdict(f: &mut fmt::Formatter<'_>, bytes: &str, verdict: BlockVerdict) -> fmt::Result {
    match verdict {
        BlockVerdict::Sound => write!(f, "{bytes} are right"),
        BlockVerdict::Unproved => write!(f, "no sum says anything of {bytes}"),
        BlockVerdict::VoidSum(side) => write!(f, "the sums of {side} say nothing of {bytes}"),
        BlockVerdict::WrongBytes(side) => write!(f, "{bytes} are wrong on the disk of {side}"),
        BlockVerdict::WrongSum(side) => write!(
            f,
            "the sums of {bytes} are wrong on {side}; the bytes are right"
        ),
        BlockVerdict::CopiesDiffer => write!(
            f,
            "{bytes} differ, and each node has the bytes of its sums: a bug of Lockstep"
        ),
        BlockVerdict::NoneKnownRight => {
            write!(f, "{bytes} are not known to be right on either node")
        }
        BlockVerdict::UnknownByVoid => write!(
            f,
            "{bytes} differ or do not fit a sum, and the sums of a node say nothing of them"
        ),
    }
}

impl fmt::Display for RepairOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = |kept: &bool| match kept {
            true => "",
            false => " (not all versions kept aside: the folder is full)",
        };
        match self {
            Self::NotAsked => Ok(()),
            Self::Done { kept } => write!(f, "; healed{}", folder(kept)),
            Self::Undecided { kept: true } => write!(f, "; not healed, both versions kept aside"),
            Self::Undecided { kept } => write!(f, "; not healed{}", folder(kept)),
            Self::Failed { why } => write!(f, "; not healed: {why}"),
        }
    }
}
