//! The role protocol: which of the two nodes serves a datastore, decided without IO (docs/protocol/roles.md).
//!
//! Each node has one [`RoleMachine`]. The driver gives it events, and carries out its effects: it makes records durable,
//! asks the witness, and tells the peer. The model in `tests/model.rs` runs two machines and a witness through every
//! order of events with up to three failures.

pub mod change;
pub mod decision;
pub mod event;
pub mod machine;
pub mod offer;
pub mod promotion;
pub mod query;
pub mod record;
pub mod relabel;
pub mod witness;

pub use change::{RoleChange, RoleChangeKind};
pub use decision::{Decision, LocalCopy, RoleConflict};
pub use event::{Phase, RoleEffect, RoleEvent, RoleSettings, Told};
pub use machine::RoleMachine;
pub use offer::RoleOffer;
pub use promotion::UnrecordedPromotion;
pub use query::{
    AnswerAction, PeerWitness, QueryFacts, QueryResult, Service, WitnessAuthority, WitnessQuery,
};
pub use record::{Member, RoleRecord};
pub use relabel::Labels;
pub use witness::{Claim, ClaimFault, InSyncSet, Witness, WitnessError, WitnessRecord};
