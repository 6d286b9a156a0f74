//! A promotion by force, which takes several steps.

use crate::promotion::UnrecordedPromotion;
use crate::question::Question;

/// The step of a promotion by force that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ForcedPromotion {
    /// The node reads the record of the witness, and then records that it is a candidate.
    Read,
    /// The candidature is being recorded.
    Stand(UnrecordedPromotion),
    /// The witness is told. Then the candidate leads, or the primary that waits for the solo grant serves alone.
    Tell(UnrecordedPromotion, Box<Question>),
}
