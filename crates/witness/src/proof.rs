//! The proof that the witness can record a claim: a durable change of its store, now and then.
//!
//! A witness on a full disk, or on one that is only read, answers every question from memory. Its nodes would take
//! themselves for protected, and learn the contrary with the claim of a failover. So a witness without a proof answers no
//! question, and tells why.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::answer::CURE_MARK;
use crate::store::WitnessStoreError;

/// Time between two proofs.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

/// Time without a proof, after which the disk counts as one that hangs.
const LIMIT: Duration = Duration::from_secs(15);

/// The last proof.
#[derive(Debug)]
pub(crate) struct RecordingProof(Mutex<LastProof>);

#[derive(Debug)]
struct LastProof {
    at: Instant,
    /// Why the last one has failed.
    trouble: Option<String>,
}

impl Default for RecordingProof {
    /// The store has just been made, or opened and read.
    fn default() -> Self {
        Self(Mutex::new(LastProof {
            at: Instant::now(),
            trouble: None,
        }))
    }
}

impl RecordingProof {
    /// Notes that the store has made a durable change, or why it has not. Returns whether that is news.
    pub(crate) fn note(&self, outcome: Result<(), &WitnessStoreError>) -> bool {
        let trouble = outcome.err().map(|error| {
            format!("it cannot record which node serves, so it does not protect: {error}")
        });
        let mut last = self.0.lock();
        let is_news = last.trouble != trouble;
        *last = LastProof {
            at: Instant::now(),
            trouble,
        };
        is_news
    }

    /// Why a claim could not be recorded now, with the cure.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble_at(Instant::now())
    }

    fn trouble_at(&self, now: Instant) -> Option<String> {
        let last = self.0.lock();
        let is_late = now.saturating_duration_since(last.at) > LIMIT;
        let hangs = || {
            format!(
                "its disk has not answered for more than {} s, so it does not protect{CURE_MARK}check the disk of the witness",
                LIMIT.as_secs()
            )
        };
        last.trouble.clone().or_else(|| is_late.then(hangs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_protects_from_a_proof_until_the_next_is_late_or_fails() {
        let proof = RecordingProof::default();
        let now = Instant::now();
        assert_eq!(proof.trouble_at(now), None);
        let late = proof.trouble_at(now + 2 * LIMIT).unwrap();
        assert!(late.contains("does not protect") && late.contains(CURE_MARK));
        let error = WitnessStoreError::Full;
        assert!(proof.note(Err(&error)));
        assert!(!proof.note(Err(&error)));
        assert!(proof.trouble().unwrap().contains("does not protect"));
        assert!(proof.note(Ok(())));
        assert_eq!(proof.trouble(), None);
    }
}
