//! The simulated disk: the calls against a naive model, and each way in which the disk may lose or refuse.

// Clippy knows test functions by their attribute. These helpers are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "disk/calls.rs"]
mod calls;
#[path = "disk/faults.rs"]
mod faults;
#[path = "disk/model.rs"]
mod model;
#[path = "disk/names.rs"]
mod names;
#[path = "disk/observer.rs"]
mod observer;
#[path = "disk/power.rs"]
mod power;

use std::sync::Arc;

use lockstep_lossy::disk::{Disk, DiskOptions, Survivors};
use lockstep_lossy::random::Random;
use lockstep_types::backing::{Backing, BackingFile};

const PAGE: usize = 4096;
const PAGE_BYTES: u64 = PAGE as u64;

fn mounted() -> (Disk, Arc<dyn Backing>) {
    let disk = Disk::default();
    let backing = disk.mount();
    (disk, backing)
}

/// A disk with an empty file `f`, all of it on stable storage.
fn with_file() -> (Disk, Arc<dyn Backing>, Arc<dyn BackingFile>) {
    let (disk, backing) = mounted();
    let file = backing.open_or_create("f").unwrap();
    backing.sync_all().unwrap();
    assert_eq!(disk.unsynced(), 0);
    (disk, backing, file)
}

/// The bytes of a file that must exist.
fn bytes(disk: &Disk, path: &str) -> Vec<u8> {
    disk.read_all(path).unwrap()
}
