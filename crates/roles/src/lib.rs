//! The role protocol: which of the two nodes serves a datastore, decided without IO (docs/protocol/roles.md).
//!
//! Each node has one [`RoleMachine`], which lives as long as the datastore is open. The driver brings it events with the facts of
//! the moment, and carries out its effects. The model in `tests/model.rs` runs two machines and a witness through every order of
//! events with a bounded number of failures.
//!
//! | file | subject |
//! |---|---|
//! | `record`, `witness`, `promotion` | what is durable: the record of a node, the record of the witness, a promotion that the witness must still know |
//! | `facts`, `offer`, `event` | what a machine is told, and what it asks for |
//! | `change`, `conflict` | what is decided: a change of the role, or why there is none |
//! | `rules`, `solo`, `start` | the rules for two records; the right to serve alone; the part of a node that starts |
//! | `query`, `question`, `forced` | a question to the witness, from the first call to the last answer; the steps of a promotion by force |
//! | `machine` | the machine: role exchange, questions to the witness, commands of an operator |
//! | `relabel` | other labels for a machine, for the model |

pub mod change;
pub mod conflict;
pub mod event;
pub mod facts;
#[cfg(test)]
mod fixture;
mod forced;
pub mod machine;
pub mod offer;
pub mod promotion;
pub mod query;
mod question;
pub mod record;
pub mod relabel;
mod rules;
pub mod solo;
pub mod start;
pub mod witness;

pub use change::{RoleChange, RoleChangeKind, ServicePart};
pub use conflict::{CommandRefusal, RoleConflict};
pub use event::{
    Answered, Asker, Offered, QuestionOver, QuestionTimes, RoleEffect, RoleEvent, SessionEvent,
    Settle, WitnessCall,
};
pub use facts::{LocalCopy, RoleFacts, RoleSettings, SessionState};
pub use machine::{RoleMachine, WitnessReport};
pub use offer::RoleOffer;
pub use promotion::UnrecordedPromotion;
pub use query::PeerWitness;
pub use record::{Member, RoleRecord};
pub use relabel::Labels;
pub use solo::SoloEnds;
pub use start::{first_part, needs_no_peer};
pub use witness::{Claim, ClaimFault, InSyncSet, Witness, WitnessError, WitnessRecord};
