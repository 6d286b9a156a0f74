//! Which role this node has in a datastore, and everything that changes the role (docs/protocol/roles.md).
//!
//! | file | subject |
//! |---|---|
//! | `keeper` | the owner of the session and of the changes of the role |
//! | `switch` | one change of the role: a session ends, a record is made durable, a session begins |
//! | `commands` | the commands of an operator: planned failover, demotion |
//! | `promotion`, `forced_claim` | the promotion by an operator, and the claim for a promotion by force |
//! | `exchange` | the role exchange with the other node |
//! | `incomplete_mark` | a secondary that calls its copy incomplete, so that the primary may serve alone |
//! | `witness_loop` | the questions to the witness, and what follows from the answers |
//! | `claims`, `named_calls` | the calls of the witness for one question |
//! | `lease_expiry` | the end of the lease |
//! | `disk_stall` | a node whose own disk hangs |
//! | `dialer` | the connection, or the exchange of roles, with the other node |

mod claims;
mod commands;
mod dialer;
pub(crate) mod disk_stall;
mod exchange;
mod forced_claim;
mod incomplete_mark;
pub(crate) mod keeper;
pub(crate) mod lease_expiry;
mod named_calls;
mod promotion;
mod switch;
pub(crate) mod witness_loop;
