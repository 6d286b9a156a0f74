//! The reference: a witness that is obviously right.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockstep_link::{Fingerprint, Identity};
use lockstep_roles::{Claim, Witness, WitnessError, WitnessRecord};
use lockstep_types::DatastoreUuid;

use crate::subject::{Nodes, Subject};

/// The records, with the two nodes that each belongs to.
type Records = HashMap<DatastoreUuid, ([Fingerprint; 2], WitnessRecord)>;

pub struct MemorySubject {
    nodes: Nodes,
    state: Arc<Mutex<State>>,
}

struct State {
    is_up: bool,
    known: [Fingerprint; 3],
    records: Records,
}

/// This witness needs no other program.
pub const fn is_installed() -> bool {
    true
}

pub fn start() -> MemorySubject {
    let nodes = Nodes::new();
    let state = State {
        is_up: true,
        known: nodes.known(),
        records: Records::new(),
    };
    MemorySubject {
        nodes,
        state: Arc::new(Mutex::new(state)),
    }
}

impl Subject for MemorySubject {
    fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    fn witness(&self, node: &Identity, peer: &Identity, uuid: DatastoreUuid) -> Box<dyn Witness> {
        let mut pair = [node.fingerprint(), peer.fingerprint()];
        pair.sort();
        Box::new(MemoryWitness {
            state: Arc::clone(&self.state),
            uuid,
            pair,
        })
    }

    fn kill(&mut self) {
        self.state.lock().unwrap().is_up = false;
    }

    fn start_again(&mut self) {
        self.state.lock().unwrap().is_up = true;
    }

    fn kills(&self) -> usize {
        5
    }
}

struct MemoryWitness {
    state: Arc<Mutex<State>>,
    uuid: DatastoreUuid,
    pair: [Fingerprint; 2],
}

impl MemoryWitness {
    fn refused(cause: &str) -> WitnessError {
        WitnessError::Refused {
            witness: "memory".to_owned(),
            cause: cause.to_owned(),
            cure: "none".to_owned(),
        }
    }

    fn current(&self, state: &State) -> Result<Option<WitnessRecord>, WitnessError> {
        if !state.is_up {
            return Err(WitnessError::Unreachable {
                witness: "memory".to_owned(),
                cause: "it is down".to_owned(),
                cure: "start it".to_owned(),
            });
        }
        if self.pair.iter().any(|node| !state.known.contains(node)) {
            return Err(Self::refused("it does not know a node without [[node]]"));
        }
        match state.records.get(&self.uuid) {
            Some((pair, _)) if *pair != self.pair => Err(Self::refused(
                "the record belongs to the nodes of another pair",
            )),
            found => Ok(found.map(|(_, record)| *record)),
        }
    }
}

impl Witness for MemoryWitness {
    fn read(&self, _: Duration) -> Result<Option<WitnessRecord>, WitnessError> {
        self.current(&self.state.lock().unwrap())
    }

    fn claim(&self, claim: &Claim, _: Duration) -> Result<Option<WitnessRecord>, WitnessError> {
        let mut state = self.state.lock().unwrap();
        let current = self.current(&state)?;
        claim
            .check()
            .map_err(|fault| Self::refused(&fault.to_string()))?;
        let after = claim.apply(current);
        if let Some(record) = after {
            state.records.insert(self.uuid, (self.pair, record));
        }
        Ok(after)
    }
}
