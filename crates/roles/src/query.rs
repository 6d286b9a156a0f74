//! A question to the witness, and what an answer may decide.

use crate::promotion::UnrecordedPromotion;

/// The witness of the peer, as the peer told at the last role exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerWitness {
    /// The peer asks the same witness; or the nodes have not met since the start of this process.
    #[default]
    Same,
    /// The peer asks another witness: each of the two could let another node serve.
    Other,
    /// The peer asks none: it never takes over by itself.
    None,
}

/// A question to the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WitnessQuery {
    /// Primary: may this node serve without the peer?
    Alone,
    /// Secondary: may this node take over?
    TakeOver,
    /// Primary: the secondary may take over from now on.
    Protect,
    /// Primary by the command of an operator: only this node serves.
    Tell(UnrecordedPromotion),
    /// How do things stand?
    Look,
}

/// What an answer of the witness may decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WitnessAuthority {
    /// Both nodes ask the witness.
    Full,
    /// Only this node asks a witness: neither node takes over.
    NoTakeover,
    /// The peer asks another witness, or has the newer copy: no answer leads to a change.
    None,
}
