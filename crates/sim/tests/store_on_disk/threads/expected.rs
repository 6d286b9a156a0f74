//! The content that the threads expect in the store, and the content that may be found after a
//! crash.

use std::collections::BTreeMap;

use lockstep_types::{Ino, Timestamp};

use super::super::states::{self, Crash};
use super::{REGION_BYTES, THREADS};

/// A value that changes step by step. A step is first tried, then acknowledged, then perhaps
/// durable.
#[derive(Debug)]
pub struct Steps<T> {
    states: Vec<T>,
    acknowledged: usize,
    durable: usize,
}

impl<T> Steps<T> {
    fn new(first: T) -> Self {
        Self {
            states: vec![first],
            acknowledged: 0,
            durable: 0,
        }
    }

    /// Records that the next step is about to be tried.
    pub fn begin(&mut self, next: T) {
        self.states.push(next);
    }

    /// Records that the last step was acknowledged.
    pub fn acknowledge(&mut self) {
        self.acknowledged = self.states.len() - 1;
    }

    /// Returns the state after the last acknowledged step.
    pub fn now(&self) -> &T {
        &self.states[self.acknowledged]
    }

    /// Records that all acknowledged steps are durable.
    pub fn save_now(&mut self) {
        self.save(self.acknowledged);
    }

    fn save(&mut self, step: usize) {
        self.durable = self.durable.max(step);
    }

    /// Continues with the state that was found after a crash. The state need not be durable.
    fn continue_with(&mut self, found: T) {
        self.begin(found);
        self.acknowledge();
    }

    /// Returns the first state that may be found after a crash. Every later tried state may be
    /// found too.
    fn first_after(&self, crash: Crash) -> usize {
        match crash {
            Crash::Process => self.acknowledged,
            Crash::Power => self.durable,
        }
    }

    fn after(&self, crash: Crash) -> &[T] {
        &self.states[self.first_after(crash)..]
    }
}

impl Steps<Names> {
    /// Continues with the state that was found after a crash. After a power loss the rest of the
    /// log is durable, because the opening of the store makes it durable.
    fn continue_from(&mut self, found: Names, crash: Crash) {
        if crash == Crash::Power {
            *self = Self::new(found);
            return;
        }
        let last = self.states.last();
        if last.is_none_or(|last| last.entries != found.entries) {
            // The last tried step did not happen.
            self.states.truncate(self.acknowledged + 1);
        }
        self.continue_with(found);
    }
}

/// The names in the directory of a thread.
pub type Entries = BTreeMap<String, Ino>;

/// The names, and the number of the operation that made them.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub sequence: u64,
    pub entries: Entries,
}

/// The content of a file: one region of any length, or one region for each thread.
#[derive(Debug)]
pub struct Content {
    pub regions: Vec<Steps<Vec<u8>>>,
    /// The times of its changes, for a file that only one thread changes.
    pub times: Option<Steps<Timestamp>>,
}

impl Content {
    /// Returns an empty file of one thread.
    pub fn new(made: Timestamp) -> Self {
        Self {
            regions: vec![Steps::new(Vec::new())],
            times: Some(Steps::new(made)),
        }
    }

    /// Returns a file of zeros that all threads share.
    pub fn shared() -> Self {
        let region = |_| Steps::new(vec![0; REGION_BYTES]);
        Self {
            regions: (0..THREADS).map(region).collect(),
            times: None,
        }
    }

    /// Returns the region of a thread.
    pub fn region_of(&mut self, thread: usize) -> &mut Steps<Vec<u8>> {
        let only = self.regions.len() == 1;
        &mut self.regions[if only { 0 } else { thread }]
    }
}

/// The state in which a file was found.
#[derive(Debug)]
pub struct Found {
    pub bytes: Vec<u8>,
    pub changed: Timestamp,
}

/// The state in which the store was found.
#[derive(Debug)]
pub struct FoundAll {
    pub names: Vec<Entries>,
    pub files: BTreeMap<Ino, Found>,
}

/// The data that a sync saves.
#[derive(Clone, Copy, Debug)]
pub enum Saves {
    /// The last metadata operation of a thread, which changed the content of a file.
    Operation(usize, Ino),
    /// Every metadata operation.
    Names,
    /// Every metadata operation, and the content of a file. `true`: also the times of the file.
    File(Ino, bool),
    /// Every metadata operation, and the times of each file.
    Times,
    /// Everything.
    Everything,
}

/// The acknowledged operations at the begin of a sync.
#[derive(Debug)]
pub struct Covered {
    names: Vec<usize>,
    regions: Vec<(Ino, Vec<usize>)>,
    times: Vec<(Ino, usize)>,
}

/// The expected content of the store.
#[derive(Debug)]
pub struct Expected {
    /// The names in the directory of each thread.
    pub names: Vec<Steps<Names>>,
    /// The content of each file that ever existed.
    pub contents: BTreeMap<Ino, Content>,
}

impl Expected {
    /// Returns empty directories and an empty shared file, all durable.
    pub fn new(shared: Ino) -> Self {
        let empty = |_| Steps::new(Names::default());
        Self {
            names: (0..THREADS).map(empty).collect(),
            contents: BTreeMap::from([(shared, Content::shared())]),
        }
    }

    /// Returns the data that a sync from now on covers.
    pub fn covered(&self, saves: Saves) -> Covered {
        let has_content = |ino| match saves {
            Saves::Names | Saves::Times => false,
            Saves::Operation(_, file) | Saves::File(file, _) => ino == file,
            Saves::Everything => true,
        };
        let has_times = |ino| match saves {
            Saves::Names => false,
            Saves::Operation(_, file) => ino == file,
            Saves::File(file, times) => times && ino == file,
            Saves::Times | Saves::Everything => true,
        };
        let names = |thread: usize| match saves {
            Saves::Operation(of, _) if of != thread => 0,
            _ => self.names[thread].acknowledged,
        };
        let contents = || self.contents.iter().map(|(ino, content)| (*ino, content));
        let regions = contents().filter(|(ino, _)| has_content(*ino));
        let times = contents().filter(|(ino, _)| has_times(*ino));
        Covered {
            names: (0..THREADS).map(names).collect(),
            regions: regions
                .map(|(ino, content)| {
                    let regions = content.regions.iter();
                    (ino, regions.map(|region| region.acknowledged).collect())
                })
                .collect(),
            times: times
                .filter_map(|(ino, content)| Some((ino, content.times.as_ref()?.acknowledged)))
                .collect(),
        }
    }

    /// Records that a sync has succeeded.
    pub fn save(&mut self, covered: &Covered) {
        for (names, step) in self.names.iter_mut().zip(&covered.names) {
            names.save(*step);
        }
        for (ino, steps) in &covered.regions {
            let regions = &mut self.contents.get_mut(ino).unwrap().regions;
            for (region, step) in regions.iter_mut().zip(steps) {
                region.save(*step);
            }
        }
        for (ino, step) in &covered.times {
            let times = &mut self.contents.get_mut(ino).unwrap().times;
            times.as_mut().unwrap().save(*step);
        }
    }

    /// Checks the names in all directories. Each directory must be in a possible state, and all
    /// directories in a state of the same moment, because the log keeps the operations of all
    /// threads in one order.
    pub fn check_names(&self, found: &[Entries], crash: Crash) {
        let moments: Vec<Vec<(u64, u64)>> = self
            .names
            .iter()
            .zip(found)
            .map(|(names, found)| moments(names, found, crash))
            .collect();
        for (thread, moments) in moments.iter().enumerate() {
            assert!(
                !moments.is_empty(),
                "{crash:?}: thread {thread} finds {:?}, knows {:?}",
                found[thread],
                self.names[thread],
            );
        }
        // A moment that fits all directories begins with an operation in one of them.
        let mut begins = moments.iter().flatten().map(|(begin, _)| *begin);
        let fits = |moment: u64| {
            moments.iter().all(|of_thread| {
                let mut of_thread = of_thread.iter();
                of_thread.any(|(begin, end)| (*begin..*end).contains(&moment))
            })
        };
        assert!(
            begins.any(fits),
            "{crash:?}: no one moment had {found:?}: {moments:?}"
        );
    }

    /// Checks the content of a file.
    pub fn check_content(&self, ino: Ino, found: &Found, crash: Crash) {
        let content = &self.contents[&ino];
        if let [region] = &content.regions[..] {
            check_bytes(ino, &found.bytes, region.after(crash), crash);
        } else {
            assert_eq!(found.bytes.len(), REGION_BYTES * THREADS);
            let pieces = found.bytes.chunks(REGION_BYTES);
            for (region, piece) in content.regions.iter().zip(pieces) {
                check_bytes(ino, piece, region.after(crash), crash);
            }
        }
        if let Some(times) = &content.times {
            let possible = times.after(crash);
            assert!(
                possible.contains(&found.changed),
                "{crash:?}: {ino} was changed at {:?}, none of {possible:?}",
                found.changed,
            );
        }
    }

    /// Continues with the state that was found.
    pub fn continue_with(&mut self, found: FoundAll, sequence: u64, crash: Crash) {
        for (steps, entries) in self.names.iter_mut().zip(found.names) {
            steps.continue_from(Names { sequence, entries }, crash);
        }
        if crash == Crash::Power {
            self.contents.retain(|ino, _| found.files.contains_key(ino));
        }
        for (ino, found) in found.files {
            let content = self.contents.get_mut(&ino).unwrap();
            let is_shared = content.regions.len() > 1;
            let piece_bytes = if is_shared { REGION_BYTES } else { usize::MAX };
            let mut pieces = found.bytes.chunks(piece_bytes);
            for region in &mut content.regions {
                let piece = pieces.next().unwrap_or_default().to_vec();
                region.continue_with(piece);
            }
            if let Some(times) = &mut content.times {
                times.continue_with(found.changed);
            }
        }
    }
}

/// Returns the periods in which a directory had these names, each from one operation to another.
fn moments(names: &Steps<Names>, found: &Entries, crash: Crash) -> Vec<(u64, u64)> {
    let first = names.first_after(crash);
    let states = names.states.iter().enumerate().skip(first);
    let fitting = states.filter(|(_, state)| state.entries == *found);
    fitting
        .map(|(step, state)| {
            // An operation that was not acknowledged may never have happened.
            let next = names.states.get(step + 1);
            let next = next.filter(|_| step < names.acknowledged);
            (state.sequence, next.map_or(u64::MAX, |next| next.sequence))
        })
        .collect()
}

/// Checks that each byte is the byte of some state, and that the length is between the lengths of
/// these states.
fn check_bytes(ino: Ino, found: &[u8], states: &[Vec<u8>], crash: Crash) {
    let states: Vec<&[u8]> = states.iter().map(Vec::as_slice).collect();
    if let Err(why) = states::check_bytes(found, &states) {
        panic!("{crash:?}: {ino}: {why}");
    }
}
