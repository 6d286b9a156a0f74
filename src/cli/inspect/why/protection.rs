//! The knowledge that this node has of the witness, as far as that differs in the effect of a failure.

use lockstep_driver::report::DatastoreStatus;

/// The protection that the witness of a datastore gives, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WitnessProtection {
    /// The datastore has no witness.
    NoWitness,
    /// The witness answers, and lets the secondary take over.
    Protects,
    /// The witness answers or was not asked yet, and does not let the secondary take over.
    DoesNotProtect,
    /// The witness has no record of the datastore, so it decides nothing.
    Empty,
    /// The witness does not answer this node.
    Silent,
}

impl WitnessProtection {
    /// The protection in a status.
    pub(super) const fn of(store: &DatastoreStatus) -> Self {
        let Some(witness) = &store.witness else {
            return Self::NoWitness;
        };
        match (witness.answers, witness.trouble.is_some()) {
            (false, true) => Self::Silent,
            (true, true) => Self::Empty,
            _ if witness.protects => Self::Protects,
            _ => Self::DoesNotProtect,
        }
    }

    /// Whether the witness can decide anything, as far as this node knows.
    pub(super) const fn decides(self) -> bool {
        matches!(self, Self::Protects | Self::DoesNotProtect)
    }
}
