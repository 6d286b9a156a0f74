//! Threads that store to one mapping, beside a thread that syncs the file and changes its size.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{assert_identical, await_in_sync, fail_over};
use lockstep_testbed::{Pair, await_that};
use memmap2::{Advice, MmapMut};

const PAGE: usize = 4096;
const PAGES: usize = 64;
const THREADS: usize = 8;

/// Pages of a large mapping: 64 MiB.
const MANY_PAGES: usize = 16_384;

/// Stores of all threads between two failovers.
const STORES: u64 = 500;

/// Time between two stores of a thread.
const PAUSE: Duration = Duration::from_micros(100);

/// A new file of so many pages, and a mapping of it. Nothing but the mapping writes to the file.
fn new_mapping(path: &Path, pages: usize) -> (File, MmapMut) {
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.unwrap();
    file.set_len((pages * PAGE) as u64).unwrap();
    // SAFETY: nothing but the mapping writes to these pages of the file.
    let mapping = unsafe { MmapMut::map_mut(&file) }.unwrap();
    (file, mapping)
}

struct Progress {
    stores: AtomicU64,
    stop: AtomicBool,
}

impl Progress {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn await_more(&self) {
        let wanted = self.stores.load(Ordering::SeqCst) + STORES;
        await_that("stores", || {
            assert!(self.goes_on(), "a thread has failed");
            self.stores.load(Ordering::SeqCst) >= wanted
        });
    }
}

/// Ends all threads when one of them ends, or the test.
struct Stop<'a>(&'a Progress);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// Stores to pages in turn, and checks what it has stored before.
fn store(own: &mut [u8], progress: &Progress) {
    let _stop = Stop(progress);
    let mut last = vec![0_u64; own.len() / PAGE];
    let mut number = 0;
    while progress.goes_on() {
        let at = usize::try_from(number * 7).unwrap() % last.len();
        let bytes = own[at * PAGE..].first_chunk_mut().unwrap();
        assert_eq!(u64::from_le_bytes(*bytes), last[at], "page {at}");
        number += 1;
        last[at] = number;
        *bytes = number.to_le_bytes();
        progress.stores.fetch_add(1, Ordering::SeqCst);
        // The nodes share the processors with this thread.
        thread::sleep(PAUSE);
    }
}

fn sync_and_resize(file: &File, progress: &Progress) {
    let _stop = Stop(progress);
    let mapped = (PAGES * PAGE) as u64;
    let mut round = 0;
    while progress.goes_on() {
        // A change that was asked while the other node served is refused.
        match file.set_len(mapped + round % 3) {
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => thread::sleep(PAUSE),
            outcome => outcome.unwrap(),
        }
        file.sync_data().unwrap();
        round += 1;
    }
    file.set_len(mapped).unwrap();
}

fn fail_over_there_and_back(pair: &mut Pair, rounds: u64, progress: &Progress) {
    for round in 0..rounds {
        progress.await_more();
        await_in_sync(pair, A, 2 * round + 1);
        fail_over(pair, A, 2 * round + 1);
        await_in_sync(pair, B, 2 * round + 2);
        fail_over(pair, B, 2 * round + 2);
    }
    progress.await_more();
}

fn content(root: &Path) -> Vec<u8> {
    let mut content = vec![0; PAGES * PAGE];
    let file = File::open(root.join("shared")).unwrap();
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

/// The threads run on A. The role goes to B and back.
pub fn threads_go_on(pair: &mut Pair, rounds: u64) {
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let (file, mut mapping) = new_mapping(&on_a.join("shared"), PAGES);
    mapping.advise(Advice::Random).unwrap();
    let progress = Progress {
        stores: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let _stop = Stop(&progress);
        for own in mapping.chunks_mut(PAGES / THREADS * PAGE) {
            scope.spawn(|| store(own, &progress));
        }
        scope.spawn(|| sync_and_resize(&file, &progress));
        fail_over_there_and_back(pair, rounds, &progress);
    });
    mapping.flush().unwrap();
    let stored = mapping.to_vec();
    await_in_sync(pair, A, 2 * rounds + 1);
    assert_identical(pair.node(A));
    fail_over(pair, A, 2 * rounds + 1);
    assert!(content(&on_b) == stored, "a store is lost");
}

/// A program on A has stored to all pages of a large mapping, and has synced nothing.
pub fn many_dirty_pages_reach_the_other_node(pair: &mut Pair) {
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let (_file, mut mapping) = new_mapping(&on_a.join("large"), MANY_PAGES);
    for (number, page) in mapping.chunks_mut(PAGE).enumerate() {
        page.fill(u8::try_from(number % 251).unwrap() + 1);
    }
    fail_over(pair, A, 1);
    let there = File::open(on_b.join("large")).unwrap();
    let mut page = vec![0; PAGE];
    for number in 0..MANY_PAGES {
        there
            .read_exact_at(&mut page, (number * PAGE) as u64)
            .unwrap();
        let expected = u8::try_from(number % 251).unwrap() + 1;
        assert!(
            page.iter().all(|byte| *byte == expected),
            "page {number} is lost"
        );
    }
}
