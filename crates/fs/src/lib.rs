//! The store of one datastore on one node: namespace, content, recovery after a crash, export.
//!
//! It stands on the disk below as a trait, and knows nothing of peers or mounts. Start with
//! [`store`].

// Tests have threads of their own.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod acl;
pub mod boot;
pub mod error;
pub mod export;
pub mod files;
pub mod keys;
pub mod kv;
pub mod os_backing;
mod overlay;
pub mod plan;
pub mod poison;
pub mod record;
pub mod reserve;
pub mod store;
pub mod times;

pub use error::{OpError, StoreError};
pub use store::Store;
