//! The witness of a datastore, as the threads that ask it reach it.

use std::sync::Arc;
use std::time::Duration;

use lockstep_roles::{Member, Witness, WitnessCall, WitnessError, WitnessRecord};

/// See the head of this file.
pub(crate) struct BoundWitness {
    pub witness: Arc<dyn Witness>,
    /// This node for the witness.
    pub me: Member,
    /// Limit of one call.
    pub limit: Duration,
}

impl BoundWitness {
    /// Makes a call. Returns the record of the witness after the call.
    pub fn call(&self, call: &WitnessCall) -> Result<Option<WitnessRecord>, WitnessError> {
        match call {
            WitnessCall::Read => self.witness.read(self.limit),
            WitnessCall::Claim(claim) => self.witness.claim(claim, self.limit),
        }
    }
}
