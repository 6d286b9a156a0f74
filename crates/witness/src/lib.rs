//! The witness: the third party of two nodes, which keeps one small record for each datastore (docs/protocol/roles.md).
//!
//! A node asks through [`WitnessClient`], which blocks its caller up to a limit. Behind it stands the own witness or
//! etcd: a [`WitnessConfig`] says which. [`WitnessServer`] is the own witness: remote procedure calls over TLS, with
//! the certificates and fingerprints of nodes, above a [`WitnessStore`].
//!
//! Invariants: a node reads and claims only for a datastore of which it is one of the two nodes. A record that was told
//! to a node is on stable storage. A lost record is an error, and never an empty answer.
//!
//! tokio and tonic are private to this crate: its interface blocks.

mod address;
mod answer;
mod call_thread;
mod client;
mod config;
mod dialer;
mod entry;
mod etcd;
mod handler;
mod last_answer;
mod listener;
mod operator;
mod own;
mod pair;
mod proof;
mod proto;
mod server;
mod store;
mod wire;

pub use address::{AddressError, EtcdEndpoint, WitnessAddress};
pub use client::{WitnessClient, WitnessSetupError};
pub use config::WitnessConfig;
pub use entry::{EntryError, WitnessEntry};
pub use operator::{OperatorError, WitnessListing, WitnessOperator};
pub use pair::NodePair;
pub use server::{WitnessServer, WitnessServerError, WitnessServerOptions};
pub use store::{DATASTORES_MAX, WitnessStore, WitnessStoreError, WitnessStoreId};
