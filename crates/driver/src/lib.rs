//! The driver of one datastore on this node. The protocol core decides; the driver executes the decisions with the store,
//! the connection and the clients.
//!
//! | module | owns |
//! |---|---|
//! | `datastore` | the façade: an engine, the keeper of the role, and maintenance |
//! | `engine` | configuration, store, host, durable marks, the notes for operators, the answers of the witness: the parts that outlive a session |
//! | `session` | a primary's or a secondary's session, and the loop that executes the core's effects |
//! | `replication` | the core, its generation and the connection; the exchange of roles and the greeting before |
//! | `durable` | the state of a node on stable storage beside its store: the role file, the tables of writes in flight |
//! | `ops` | operations of clients on the primary |
//! | `peer` | the connection, and the requests over it |
//! | `role` | the keeper of the role: the session, and everything that changes the role |
//! | `jobs` | work that no client has asked for: the resync and the comparison, barriers, the mark of the sync |
//! | `maintenance` | periodic work |
//! | `open` | opening a store: checks and recovery, a repaired disk |
//! | `host` | time and threads |
//! | `service`, `client` | the interface for clients |
//! | `service_gate` | the gate for the requests of clients: the standing, the lease, the tenure |
//! | `status`, `report` | the facts for operators and tests |
//!
//! Rules of the threads:
//! - Only the threads of a resync or a comparison wait for the peer to read (rule P19).
//! - The reader, which reads from the peer, never waits for the peer, for a disk flush or for a read from the disk. It
//!   hands such work to the courier thread if the work has an order, and to the worker pool otherwise.
//! - Some of the threads that serve clients are never inside a change (`berths`), so reads and lookups continue whatever
//!   the disk does.
//! - A thread that brings a write waits for room for the bytes, if at all, where it holds nothing (`write_backpressure`).

// Tests have threads of their own.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod client;
pub mod config;
mod datastore;
mod durable;
mod engine;
mod host;
mod jobs;
mod maintenance;
mod open;
mod ops;
mod peer;
mod replication;
pub mod report;
mod role;
mod service;
mod service_gate;
mod session;
mod status;

pub use datastore::Datastore;
pub use durable::DatastoreError;
pub use durable::copy_status::caveats;
pub use durable::machine_count::MACHINE_COUNT_BYTES;
pub use durable::role_file::marks::RoleMarks;
pub use durable::tables::TableError;
pub use host::alarm::GateAlarm;
pub use host::{Alarm, Gate, Host, Job, OsHost, RoomLimits, SpillLimits};
pub use host::{memory, threads};
pub use open::adopt::{AdoptRequest, AdoptionError, adopt_on_this_machine};
pub use open::clear_poison::{ClearError, Cleared, Repair, clear_poison};
pub use open::import::{ImportRequest, Imported, SeedImportError, import_on_this_machine};
pub use open::{Place, Prepared, make_store, make_store_on_this_machine, prepare};
pub use ops::spill::SpillLoad;
pub use peer::dial::{Dial, DialError, Dialer, Halves};
pub use replication::greeting::refuse;
pub use role::keeper::RoleKeeper;
pub use service::DatastoreHandle;
pub use status::RESTART_WITHOUT_LEASE;
pub use status::usage::DatastoreUsage;
