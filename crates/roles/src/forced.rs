//! A promotion by force, which takes several steps.

use crate::promotion::UnrecordedPromotion;
use crate::question::Question;

/// A promotion by force that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ForcedPromotion {
    pub step: ForcedStep,
    pub question: Option<Question>,
}

/// The steps of a promotion by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ForcedStep {
    /// A primary that waits for the solo grant tells the witness, and then serves alone.
    TellThenServeAlone(UnrecordedPromotion),
    /// The node reads the record of the witness, and then records that it is a candidate.
    ReadThenStand,
    /// The candidature is being recorded.
    Stand(UnrecordedPromotion),
    /// The candidate tells the witness, and then leads.
    TellThenLead(UnrecordedPromotion),
}
