//! The outcome of a call to any witness, before it gets the address of the witness.

use std::fmt::Display;
use std::time::Duration;

use lockstep_roles::{WitnessError, WitnessRecord};

/// Separator of an error and its cure.
pub(crate) const CURE_MARK: &str = "\n  cure: ";

/// Identity of the storage that answered: of the own witness's store, or of the cluster of etcd.
pub(crate) type StoreTag = [u8; 16];

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WitnessAnswer {
    pub(crate) record: Option<WitnessRecord>,
    pub(crate) store: StoreTag,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// See [`WitnessError::Unreachable`].
    Unreachable { cause: String, cure: &'static str },
    /// See [`WitnessError::Refused`].
    Refused { cause: String, cure: String },
}

impl CallFailure {
    pub(crate) fn unreachable(cause: impl Into<String>, cure: &'static str) -> Self {
        Self::Unreachable {
            cause: cause.into(),
            cure,
        }
    }

    /// The failure of a call that has reached its limit.
    pub(crate) fn timed_out(limit: Duration, cure: &'static str) -> Self {
        Self::unreachable(format!("no answer within {} ms", limit.as_millis()), cure)
    }

    pub(crate) fn refused(cause: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::Refused {
            cause: cause.into(),
            cure: cure.into(),
        }
    }

    /// A refusal with the cause and the cure that are the text of an error.
    pub(crate) fn refused_by(error: &impl Display) -> Self {
        let text = error.to_string();
        let (cause, cure) = cause_and_cure(&text);
        Self::refused(cause, cure)
    }

    /// The error of a call to the witness at this address.
    pub(crate) fn at(self, witness: &str) -> WitnessError {
        let witness = witness.to_owned();
        match self {
            Self::Unreachable { cause, cure } => WitnessError::Unreachable {
                witness,
                cause,
                cure: cure.to_owned(),
            },
            Self::Refused { cause, cure } => WitnessError::Refused {
                witness,
                cause,
                cure,
            },
        }
    }
}

/// Splits the text of an error. A text without a cure has an empty one.
pub(crate) fn cause_and_cure(text: &str) -> (&str, &str) {
    text.split_once(CURE_MARK).unwrap_or((text, ""))
}

/// The innermost cause of an error of the transport, which wraps the error of the system in texts without information.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.last().map_or_else(String::new, ToString::to_string)
}
