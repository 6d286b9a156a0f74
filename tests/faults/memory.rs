//! Waiting writes and the place of their bytes (rule P19): in memory up to a limit, beyond it on the disk of the
//! store.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;

use lockstep_testbed::small_disk::SmallDisk;
use lockstep_testbed::{NodeEnvironment, Pair, Which, await_that};
use lockstep_types::limits::{
    BLOCK_BYTES, BYTES_IN_FLIGHT_MAX, SPILL_MEMORY_BYTES_MAX, SPILL_SPARE_BYTES,
};
use rustix::mount::UnmountFlags;

use crate::check;
use crate::slow::{
    Changes, SILENT, WRITE_BYTES, all_end, all_end_well, assert_reads_continue, open, start,
};

/// Programs that write the same bytes.
const RACERS: usize = 300;
/// Programs that write a file each.
const OWNERS: usize = 60;
/// The largest write that is one request wherever its buffer begins in a page: two requests would have two positions
/// in the order.
const BYTES: usize = WRITE_BYTES - BLOCK_BYTES;
/// Threads that take requests from the kernel, in the default configuration.
const MOUNT_THREADS: usize = 8;
/// Threads that bring writes: each may hold one more write, and has a buffer of its own.
const THREADS: u64 = 2 * MOUNT_THREADS as u64;
/// Other memory of a busy node.
const SLACK_BYTES: u64 = 32 << 20;

/// Most memory beyond that of an idle node: the kept bytes, the bytes in flight with their read copy and their copy
/// in the queue of the connection, and the buffers of the threads.
const BOUND_BYTES: u64 = SPILL_MEMORY_BYTES_MAX
    + 2 * BYTES_IN_FLIGHT_MAX
    + 2 * THREADS * (WRITE_BYTES as u64)
    + SLACK_BYTES;

/// Bytes on the disk when all writes wait: neither kept in memory nor in flight.
const ON_DISK_BYTES: u64 = (RACERS + OWNERS) as u64 * BYTES as u64
    - SPILL_MEMORY_BYTES_MAX
    - BYTES_IN_FLIGHT_MAX
    - THREADS * WRITE_BYTES as u64;

/// Free space that the first test needs: the space that stays available while the spill file grows to this size, as
/// much for the content of all waiting writes, and the content of both nodes.
const NEEDED_BYTES: u64 = SPILL_SPARE_BYTES + 3 * (RACERS + OWNERS) as u64 * BYTES as u64;

/// Memory that remains when no write waits any more.
const REST_BYTES: u64 = 64 << 20;

/// Bytes that identify their writer, so that a missing part is found.
fn bytes_of(writer: usize) -> Vec<u8> {
    let number = u32::try_from(writer).unwrap().to_le_bytes();
    number.repeat(BYTES / number.len())
}

fn write(file: File, writer: usize) -> thread::JoinHandle<io::Result<()>> {
    thread::spawn(move || file.write_all_at(&bytes_of(writer), 0))
}

/// The file of the racers. Only one write at a time can extend a file, so the file has its final length from the
/// start.
fn open_contended(pair: &Pair) -> File {
    let contended = open(pair, "contended", 0);
    contended.write_all_at(&bytes_of(0), 0).unwrap();
    contended
}

/// Racers, which write to one file, and owners of a file each.
struct Writers {
    contended: File,
    owned: Vec<File>,
}

impl Writers {
    fn open(pair: &Pair) -> Self {
        Self {
            contended: open_contended(pair),
            owned: (0..OWNERS)
                .map(|number| open(pair, &format!("owned {number}"), 0))
                .collect(),
        }
    }

    /// Begins all writes.
    fn write(self) -> Changes {
        let racer = |writer| write(self.contended.try_clone().unwrap(), writer);
        let owner = |(number, file)| write(file, 1 + RACERS + number);
        let mut changes: Changes = (1..=RACERS).map(racer).collect();
        changes.extend(self.owned.into_iter().enumerate().map(owner));
        changes
    }

    /// Checks that each owner's file below `root` holds the owner's bytes, and the contended file those of one racer.
    /// Returns that racer.
    fn check(root: &Path) -> usize {
        let content = |name: &str| std::fs::read(root.join(name)).unwrap();
        for number in 0..OWNERS {
            let owned = content(&format!("owned {number}"));
            assert!(
                owned == bytes_of(1 + RACERS + number),
                "file of owner {number}"
            );
        }
        let contended = content("contended");
        let winner = (1..=RACERS).find(|racer| contended == bytes_of(*racer));
        winner.expect("the bytes of one racer and no other")
    }
}

/// Checks the memory and disk of a primary that waits for a stopped secondary, that it gives both back, and that only
/// the writers wait.
pub fn of_writes_that_wait_for_a_stopped_secondary() {
    let mut pair = start(
        SILENT,
        [NodeEnvironment::default(), NodeEnvironment::default()],
    );
    assert_room(pair.primary.store());
    let before = pair.primary.resident_bytes();
    let writers = Writers::open(&pair);
    pair.node(Which::Secondary).freeze();
    let changes = writers.write();
    await_that("the bytes of most writes to be on the disk", || {
        kept_on_disk(&pair) >= ON_DISK_BYTES
    });
    assert_reads_continue(&pair);
    pair.node(Which::Secondary).thaw();
    all_end_well(changes);
    assert_bounded(&pair, before);
    await_that("memory and disk to be given back", || {
        pair.primary.resident_bytes() < before + REST_BYTES && kept_on_disk(&pair) == 0
    });
    let winner = Writers::check(&pair.mount());
    pair.stop();
    let copy = pair.outside("copy");
    check::export(pair.node(Which::Secondary), &copy);
    assert_eq!(Writers::check(&copy.join("tree")), winner);
}

/// How a test of writes without space ends.
#[derive(Clone, Copy)]
enum End {
    /// The secondary continues.
    Thaw,
    /// Another process takes the mount away.
    Unmount,
    /// The node is stopped.
    Stop,
}

/// The disk has no space for the bytes of waiting writes either. The node takes no more requests for a while, but
/// memory stays bounded and all writes end well. Meanwhile the mount can be taken away and the node stopped.
pub fn of_writes_that_find_no_room_to_wait() {
    let disk = SmallDisk::make();
    let mut pair = start(SILENT, [disk.environment(), NodeEnvironment::default()]);
    drop(open_contended(&pair));
    let ballast = disk.leave(SPILL_SPARE_BYTES / 2);
    let mut before = pair.primary.resident_bytes();
    for end in [End::Thaw, End::Unmount, End::Stop] {
        let contended = open_contended(&pair);
        pair.node(Which::Secondary).freeze();
        let racer = |racer| write(contended.try_clone().unwrap(), racer);
        let changes: Changes = (1..=RACERS).map(racer).collect();
        await_that(
            "memory to be full, and all threads of the mount to wait",
            || {
                let status = pair.primary.status().unwrap();
                status.work.kept_bytes >= SPILL_MEMORY_BYTES_MAX
                    && pair.primary.threads_in("fuser-", "futex") == MOUNT_THREADS
            },
        );
        assert_eq!(kept_on_disk(&pair), 0);
        assert_bounded(&pair, before);
        match end {
            End::Thaw => {
                pair.node(Which::Secondary).thaw();
                all_end_well(changes);
            }
            End::Unmount => {
                // The mount is still in use, but the kernel gives its requests up.
                let _busy = rustix::mount::unmount(pair.mount(), UnmountFlags::FORCE);
                all_end(&changes);
                pair.primary.await_end();
                pair.node(Which::Secondary).thaw();
                drop(contended);
                pair.primary.start();
                pair.await_in_sync();
                before = pair.primary.resident_bytes();
            }
            End::Stop => {
                pair.primary.stop();
                pair.node(Which::Secondary).thaw();
                all_end(&changes);
            }
        }
    }
    drop(ballast);
}

fn assert_room(store: &Path) {
    let disk = rustix::fs::statvfs(store).unwrap();
    let available = disk.f_bavail * disk.f_frsize;
    let (there, needed) = (available >> 20, NEEDED_BYTES >> 20);
    let message = "this test needs more room for temporary files";
    assert!(
        available >= NEEDED_BYTES,
        "{message}: {needed} MiB, {there} MiB are available"
    );
}

fn assert_bounded(pair: &Pair, before: u64) {
    let most = pair.primary.most_resident_bytes() - before;
    println!("{} MiB of {} MiB", most >> 20, BOUND_BYTES >> 20);
    assert!(most < BOUND_BYTES, "{most} bytes, bound {BOUND_BYTES}");
}

/// Disk space of the file in which the primary keeps the bytes of waiting writes. The file of the disk's probe has a
/// block for as long as the node runs, once the disk was slow.
fn kept_on_disk(pair: &Pair) -> u64 {
    let is_waiting_file = |path: &Path| {
        let path = path.to_string_lossy();
        path.contains("/store/waiting.") && !path.contains("/store/waiting.probe")
    };
    let files = pair.primary.open_files().into_iter();
    files
        .filter(|(path, _)| is_waiting_file(path))
        .map(|(_, metadata)| metadata.blocks() * 512)
        .sum()
}
