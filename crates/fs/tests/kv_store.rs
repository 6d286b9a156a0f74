//! The metadata store on disks that are damaged, full or lose power, and the in-memory table in front of the
//! store against a plain map.

// Clippy knows test functions by their attribute. These helpers are test code too.
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
#[path = "kv_store/memtable.rs"]
mod memtable;
#[path = "kv_store/model.rs"]
mod model;
#[path = "kv_store/redb.rs"]
mod redb;

use lockstep_lossy::disk::Disk;

/// A disk with one file, on stable storage.
fn disk_with(path: &str, content: &[u8]) -> Disk {
    let disk = Disk::default();
    disk.put(path, content).unwrap();
    disk
}

/// The bytes of a file that must exist.
fn content(disk: &Disk, path: &str) -> Vec<u8> {
    disk.read_all(path).unwrap()
}
