//! How long the kernel takes to drop the caches of many inodes, as programs see it that look again and again at a few of them.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_testbed::await_that;
use memmap2::{Mmap, MmapOptions};

/// Threads that make the files.
const MAKERS: usize = 16;
/// Files in a directory.
const IN_DIRECTORY: usize = 1000;
/// Files at which programs look, spread over all.
const SAMPLES: usize = 32;
/// A program looks again after this time.
const AGAIN: Duration = Duration::from_millis(2);
/// The kernel answers from its caches at once. A look that lasts for longer waits for the node.
const WAITS: Duration = Duration::from_millis(700);

fn path(mount: &Path, number: usize) -> PathBuf {
    let directory = mount.join(format!("d{}", number / IN_DIRECTORY));
    directory.join(format!("f{}", number % IN_DIRECTORY))
}

/// Makes files of a few bytes.
pub fn make(mount: &Path, count: usize) {
    for directory in 0..count.div_ceil(IN_DIRECTORY) {
        fs::create_dir(mount.join(format!("d{directory}"))).unwrap();
    }
    thread::scope(|scope| {
        for maker in 0..MAKERS {
            scope.spawn(move || {
                for number in (maker..count).step_by(MAKERS) {
                    fs::write(path(mount, number), "old").unwrap();
                }
            });
        }
    });
}

/// Has the kernel know the attributes of each file.
pub fn know(mount: &Path, count: usize) {
    for number in 0..count {
        assert_eq!(fs::metadata(path(mount, number)).unwrap().size(), 3);
    }
}

/// A look that is made again and again.
struct Look {
    /// Microseconds from the begin of all looks to the last answer.
    answered_us: Arc<AtomicU64>,
}

/// The looks of one kind: at attributes, or at pages.
pub struct Looks {
    begun: Instant,
    looks: Vec<Look>,
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

impl Looks {
    fn begin<T: Send + 'static>(mut looks: Vec<T>, ask: fn(&mut T)) -> Self {
        let begun = Instant::now();
        let begin_one = |mut place: T| {
            let answered_us = Arc::new(AtomicU64::new(0));
            let noted = Arc::clone(&answered_us);
            thread::spawn(move || {
                while Arc::strong_count(&noted) > 1 {
                    ask(&mut place);
                    noted.store(us(begun.elapsed()), Ordering::SeqCst);
                    thread::sleep(AGAIN);
                }
            });
            Look { answered_us }
        };
        let looks: Vec<Look> = looks.drain(..).map(begin_one).collect();
        await_that("the first looks", || {
            let answered = |look: &Look| look.answered_us.load(Ordering::SeqCst) > 0;
            looks.iter().all(answered)
        });
        Self { begun, looks }
    }

    fn samples(mount: &Path, count: usize) -> impl Iterator<Item = File> {
        let numbers = (0..SAMPLES).map(move |sample| sample * (count - 1) / (SAMPLES - 1));
        numbers.map(move |number| File::open(path(mount, number)).unwrap())
    }

    /// Looks at the attributes of files that are open: no name is looked up.
    pub fn at_attributes(mount: &Path, count: usize) -> Self {
        Self::begin(Self::samples(mount, count).collect(), |file: &mut File| {
            // A node that follows may answer with an error.
            let _answer = file.metadata();
        })
    }

    /// Looks at mapped pages.
    pub fn at_pages(mount: &Path, count: usize) -> Self {
        // SAFETY: no process truncates the files.
        let map = |file: File| unsafe { MmapOptions::new().map(&file) }.unwrap();
        let mappings = Self::samples(mount, count).map(map).collect();
        Self::begin(mappings, |mapping: &mut Mmap| {
            // SAFETY: the byte is mapped. It is read where it lies.
            let _byte = unsafe { std::ptr::read_volatile(&raw const mapping[0]) };
        })
    }

    /// Waits until no look is answered. Returns the time from `since` to the last answer of the first look that waits, and to that
    /// of the last one.
    pub fn await_end(&self, since: Instant) -> [Duration; 2] {
        let answered = |look: &Look| Duration::from_micros(look.answered_us.load(Ordering::SeqCst));
        await_that("all looks to wait", || {
            let now = self.begun.elapsed();
            let waits = |look: &Look| now.saturating_sub(answered(look)) > WAITS;
            self.looks.iter().all(waits)
        });
        let before = since.duration_since(self.begun);
        let answers = self
            .looks
            .iter()
            .map(|look| answered(look).saturating_sub(before));
        let [first, last] = [answers.clone().min(), answers.max()];
        [first.unwrap(), last.unwrap()]
    }
}
