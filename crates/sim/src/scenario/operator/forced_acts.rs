//! The acts of an operator who accepts a loss that are not complete.

use crate::scenario::nodes::copies::Copies;
use crate::world::Side;

/// The copy that is kept, once its node serves.
#[derive(Clone, Copy, Debug)]
pub(in crate::scenario) struct Kept {
    pub(in crate::scenario) side: Side,
    /// The other copy has what was acknowledged since this moment, and this one does not.
    pub(in crate::scenario) since: u64,
    /// The other node has served alone since then. Otherwise the two copies are equal but for what is under way.
    pub(in crate::scenario) is_behind: bool,
}

/// The node whose own changes are to be lost.
#[derive(Clone, Copy, Debug)]
pub(in crate::scenario) struct Deposed {
    pub(in crate::scenario) side: Side,
    /// The node has served alone: so it follows nobody before it is demoted. With a witness, a node without data does.
    pub(in crate::scenario) must_be_asked: bool,
}

/// The acts of this operator that are not complete.
#[derive(Debug)]
pub struct ForcedActs {
    /// The copies, as far as a loss depends on them.
    pub copies: Copies,
    pub(in crate::scenario) kept: Option<Kept>,
    /// The node whose own changes are to be lost, and that does not know it yet.
    pub(in crate::scenario) to_demote: Option<Deposed>,
    /// A primary was demoted, and no node leads yet.
    pub(in crate::scenario) lacks_leader: bool,
    /// The operator has accepted a loss in this schedule, has exchanged a disk, or has put a copy back beside a witness.
    pub(in crate::scenario) has_acted: bool,
}

impl ForcedActs {
    /// Returns whether the operator has accepted a loss, has exchanged a disk, or has put a copy back: then no node may lead by
    /// itself.
    pub(in crate::scenario) const fn have_begun(&self) -> bool {
        self.has_acted
    }

    /// Returns no acts.
    pub const fn new() -> Self {
        Self {
            copies: Copies::new(),
            kept: None,
            to_demote: None,
            lacks_leader: false,
            has_acted: false,
        }
    }
}
