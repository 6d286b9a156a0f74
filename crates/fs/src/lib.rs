//! The store of one datastore on one node: namespace, content, recovery after a crash, export.
//!
//! The store stands on the disk below as a trait, and knows nothing of peers or mounts. Start with [`store`].
//!
//! Modules, from the bottom up: [`paths`]; `backing` (the disk) and [`kv`] (records on it); [`error`]; `store_disk`, `sums`,
//! `under_way` and `namespace`; [`view`] (reading); `content`, `snapshots`, `delta`, `tree` and `metadata_log` (the state); [`store`]
//! (the operations); [`adopt`], [`export`] and [`seed`]. No module uses one further up.

// Tests have threads of their own.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod adopt;
mod backing;
mod content;
mod delta;
pub mod error;
pub mod export;
pub mod kv;
mod metadata_log;
mod namespace;
pub mod paths;
pub mod seed;
mod snapshots;
pub mod store;
mod store_disk;
mod sums;
mod text;
mod tree;
mod under_way;
pub mod view;

pub use backing::overlay::Overlay;
pub use backing::{boot, os_backing, poison, reserve};
pub use error::{OpError, StoreError};
pub use namespace::{InoRanges, keys, plan, record, snapshot_list};
pub use store::Store;
pub use view::StoreView;
