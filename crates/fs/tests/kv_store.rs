//! The metadata store on disks that are damaged, full or cut off from power, and the in-memory
//! table before it against a plain map.

// Clippy knows test functions by their attribute; the helpers here are test code all the same.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods
)]

#[path = "kv_store/blocks.rs"]
mod blocks;
#[path = "kv_store/crash.rs"]
mod crash;
#[path = "kv_store/damage.rs"]
mod damage;
#[path = "kv_store/disk.rs"]
mod disk;
#[path = "kv_store/memtable.rs"]
mod memtable;
#[path = "kv_store/model.rs"]
mod model;
#[path = "kv_store/redb.rs"]
mod redb;
