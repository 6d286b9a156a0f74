//! One schedule: two nodes, some clients, and faults. This file only declares the parts.
//!
//! The clients work while faults happen. Then the faults end. Within a bounded time the nodes must
//! be in sync. When the clients have ended too, the nodes must be identical and idle. The checkers
//! then judge all requests and answers. The data that a stopped node leaves is checked at once.

mod at_rest;
mod baseline;
mod bounds;
mod clients;
mod cluster;
mod copies;
mod coverage;
mod delays;
mod disk_checks;
mod dump;
mod failed_disks;
mod failure;
mod faults;
mod final_checks;
mod force;
mod forced_acts;
mod held_thread;
mod history_recorder;
pub mod injection;
mod late_program;
mod live_checks;
mod mount;
mod node_disk;
mod nodes;
mod operator;
mod plan;
mod programs;
mod put_back;
mod schedule;
mod scripted;
mod settings;
mod sim_node;
mod stale_caches;
mod standby_program;
mod tables;
mod tally;

pub use baseline::Baseline;
pub use clients::Users;
pub use cluster::Cluster;
pub use coverage::{Coverage, CrashPoint, FileClass};
pub use failure::Failure;
pub use faults::{AfterShutdown, CallPoint, CleanShutdown, Crash, Fault};
pub use held_thread::HeldThread;
pub use mount::Mount;
pub use plan::{CHANGES_ROLES_PERCENT, Ending, Plan, Reduction};
pub use schedule::{Summary, run, run_with};
pub use scripted::{PRIMARY, SECONDARY};
pub use settings::{ANSWER_LIMIT, IN_SYNC_WITHIN, Settings};
pub use tally::Tally;
