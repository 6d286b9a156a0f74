//! One schedule: two nodes, some clients, and faults. This file only declares the parts.
//!
//! The clients work while faults happen. Then the faults end. Within a bounded time the nodes must
//! be in sync. When the clients have ended too, the nodes must be identical and idle. The checkers
//! then judge all requests and answers. The data that a stopped node leaves is checked at once.

mod baseline;
mod checks;
mod clients;
mod cluster;
mod failure;
mod fault_injector;
mod faults;
pub mod injection;
mod nodes;
mod on_disk;
mod operator;
mod plan;
mod recording;
mod schedule;
mod scripted;
mod settings;
mod snapshots;
mod trash;

pub use baseline::Baseline;
pub use clients::Users;
pub use clients::mount::Mount;
pub use failure::Failure;
pub use faults::held_thread::HeldThread;
pub use faults::{AfterShutdown, CallPoint, CleanShutdown, Crash, Fault};
pub use on_disk::dump::dump;
pub use plan::{CHANGES_ROLES_PERCENT, Ending, Plan, Reduction};
pub use recording::coverage::{Coverage, CrashPoint, FileClass};
pub use recording::tally::Tally;
pub use schedule::{Summary, run, run_with};
pub use scripted::{PRIMARY, SECONDARY, ScriptedCluster};
pub use settings::{ANSWER_LIMIT, IN_SYNC_WITHIN, Settings};
pub use snapshots::SnapshotAct;
