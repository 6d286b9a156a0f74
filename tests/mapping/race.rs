//! Threads that change the same pages of one file by `write`, through mappings, and by punching holes.
//!
//! Each word of a page belongs to one thread. So each thread knows the value of its words, although other threads change
//! the rest of the page. A thread checks the word before each change, through the mapping and by `read`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use memmap2::MmapRaw;
use rustix::fs::FallocateFlags;

const PAGE: usize = 4096;
const PAGES: usize = 8;
const OWNERS: usize = 4;
/// Changes that each owner makes.
const CHANGES: u64 = 2_000;
/// Start of the bytes in a page that have no owner: holes are punched there.
const HOLES: usize = 2048;

/// Runs the threads on a new file; panics if a word does not hold the value that its owner wrote.
pub fn run(path: &Path) {
    open(path).set_len((PAGES * PAGE) as u64).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| punch(&open(path), &ended));
        let begin = |number| scope.spawn(move || Owner::new(path, number).run());
        let owners: Vec<_> = (0..OWNERS).map(begin).collect();
        let wrong = owners
            .into_iter()
            .filter_map(|owner| owner.join().unwrap().err());
        let wrong: Vec<String> = wrong.collect();
        ended.store(true, Ordering::SeqCst);
        assert!(wrong.is_empty(), "{wrong:?}");
    });
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

/// One word of each page, and the expected values.
struct Owner {
    number: usize,
    file: File,
    mapping: MmapRaw,
    words: [u64; PAGES],
}

impl Owner {
    fn new(path: &Path, number: usize) -> Self {
        let file = open(path);
        Self {
            number,
            mapping: MmapRaw::map_raw(&file).unwrap(),
            file,
            words: [0; PAGES],
        }
    }

    fn run(mut self) -> Result<(), String> {
        let mut random = self.number as u64;
        for change in 1..=CHANGES {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let page = usize::try_from(random >> 33).unwrap() % PAGES;
            self.look(page)
                .map_err(|wrong| format!("before change {change}: {wrong}"))?;
            self.change(page, change, (random >> 48) % 9);
        }
        Ok(())
    }

    fn mapped(&self, page: usize) -> &AtomicU64 {
        let at = page * PAGE + self.number * 8;
        // SAFETY: the word lies within the mapping, is aligned, and lives as long as the mapping.
        unsafe { AtomicU64::from_ptr(self.mapping.as_mut_ptr().add(at).cast()) }
    }

    fn offset(&self, page: usize) -> u64 {
        (page * PAGE + self.number * 8) as u64
    }

    fn look(&self, page: usize) -> Result<(), String> {
        let mut read = [0; 8];
        self.file
            .read_exact_at(&mut read, self.offset(page))
            .unwrap();
        let (read, expected) = (u64::from_ne_bytes(read), self.words[page]);
        let mapped = self.mapped(page).load(Ordering::SeqCst);
        if (read, mapped) == (expected, expected) {
            return Ok(());
        }
        let number = self.number;
        Err(format!(
            "word {number} of page {page} reads {read}, mapped {mapped}, and was set to {expected}"
        ))
    }

    fn change(&mut self, page: usize, value: u64, how: u64) {
        self.words[page] = value;
        if how < 4 {
            let bytes = value.to_ne_bytes();
            return self.file.write_all_at(&bytes, self.offset(page)).unwrap();
        }
        self.mapped(page).store(value, Ordering::SeqCst);
        if how == 8 {
            self.file.sync_data().unwrap();
        }
    }
}

/// Fills the bytes without an owner, and punches holes into them.
fn punch(file: &File, ended: &AtomicBool) {
    let holes = (0..PAGES).cycle().map(|page| (page * PAGE + HOLES) as u64);
    for start in holes.take_while(|_| !ended.load(Ordering::SeqCst)) {
        file.write_all_at(&[1; 512], start).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, punch, start + 100, 1000).unwrap();
    }
}
