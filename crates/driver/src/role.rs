//! Which role this node has in a datastore, and everything that changes the role (docs/protocol/roles.md).
//!
//! | file | subject |
//! |---|---|
//! | `keeper` | what the threads and the commands of a datastore do about its role |
//! | `current_role` | the owner of the session of the present role |
//! | `switch` | one change of the role: a session ends, a record is made durable, a session begins |
//! | `facts`, `effects` | what the role machine decides by, and how its effects are carried out |
//! | `commands` | the commands of an operator: planned failover, demotion, promotion |
//! | `exchange` | the role exchange with the other node |
//! | `witness_loop` | the times at which the witness is asked |
//! | `bound_witness` | the calls of the witness |
//! | `lease_expiry` | the end of the lease |
//! | `disk_stall` | a node whose own disk hangs |
//! | `dialer` | the connection, or the exchange of roles, with the other node |

mod bound_witness;
mod commands;
pub(crate) mod current_role;
mod dialer;
pub(crate) mod disk_stall;
mod effects;
mod exchange;
mod facts;
pub(crate) mod keeper;
pub(crate) mod lease_expiry;
mod reconfigure;
mod switch;
pub(crate) mod witness_loop;
