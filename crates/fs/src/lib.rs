//! One node's store: the namespace, content and snapshots of a datastore, on the disk below.

pub mod kv;
pub mod os_backing;
