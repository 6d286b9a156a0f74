//! How a request compares content, and to which end. A part of the wire format of [`message`](crate::message).

use serde::{Deserialize, Serialize};

/// The place from which a node reads content that is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContentSource {
    /// As programs read it: from memory, if the kernel has it there.
    #[default]
    Memory,
    /// From the disk, past the memory.
    Disk,
    /// Not at all: the sums of the files stand for their bytes. A file whose sum says nothing is different from every other one.
    Sums,
}

/// The use of a comparison of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComparePurpose {
    /// A resync makes the content equal, with the space that it takes.
    Resync,
    /// A difference is reported.
    Verify(ContentSource),
    /// The same as in a resync, of bytes of which a sum of the primary says that some are wrong: void sums of equal blocks stay void.
    DoubtedResync,
}

impl ComparePurpose {
    /// Whether content is made equal.
    pub const fn is_resync(self) -> bool {
        matches!(self, Self::Resync | Self::DoubtedResync)
    }
}
