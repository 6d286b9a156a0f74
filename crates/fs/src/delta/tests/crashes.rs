//! A stop of the process at each change of the table, against a model of the region marks and of the keys.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::changes::PART_BYTES;
use super::kept::{BASE, LAST, Memory, Said, note_keys, open};
use super::*;

const FILES: Range<u64> = 1..12;
/// The parts that the model knows: of three regions, and one far behind.
const PARTS: Range<u64> = 0..48;
const FAR: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Step {
    Note { file: u64, first: u64, parts: u64 },
    Cut { file: u64, first: u64 },
    Keys { first: u8, count: u8 },
    BeginWalk,
    FileBegun,
    Compared { file: u64, first: u64, parts: u64 },
    FileDone { file: u64 },
    Image,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = || FILES;
    let note = (file(), PARTS, 1..20_u64);
    let step = prop_oneof![
        8 => note.prop_map(|(file, first, parts)| Step::Note { file, first, parts }),
        2 => (file(), PARTS).prop_map(|(file, first)| Step::Cut { file, first }),
        2 => (any::<u8>(), 1..8_u8).prop_map(|(first, count)| Step::Keys { first, count }),
        2 => Just(Step::BeginWalk),
        3 => Just(Step::FileBegun),
        4 => (file(), PARTS, 1..20_u64)
            .prop_map(|(file, first, parts)| Step::Compared { file, first, parts }),
        2 => file().prop_map(|file| Step::FileDone { file }),
        1 => Just(Step::Image),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

/// The marks that must be there.
#[derive(Clone, Debug, Default)]
struct Marked {
    noted: BTreeSet<(u64, u64)>,
    open: BTreeSet<(u64, u64)>,
    keys: BTreeSet<Vec<u8>>,
    rest: Option<u64>,
}

impl Marked {
    fn has(&self, place: (u64, u64)) -> bool {
        let by_number = self.rest.is_some_and(|rest| place.0 >= rest);
        by_number || self.noted.contains(&place) || self.open.contains(&place)
    }
}

fn places(file: u64) -> impl Iterator<Item = (u64, u64)> {
    PARTS.chain([FAR]).map(move |part| (file, part))
}

/// A delta, its model, and the walk of a resync.
struct Run {
    memory: std::sync::Arc<Memory>,
    delta: DeltaTracker,
    marked: Marked,
    walk: Option<DeltaWalk>,
}

impl Run {
    fn new(slots: usize, of_everything: bool) -> Self {
        let memory = Memory::new(slots);
        let delta = open(&memory, LastUse::of_test());
        let mut marked = Marked::default();
        if of_everything {
            let image = delta.begin_image(true);
            delta.image_held(image, Some(BASE), Osn::ZERO);
            delta.image_arrived(image);
            marked.rest = Some(1);
        } else {
            delta.begin_alone(BASE, Osn::ZERO);
            delta.settle();
        }
        memory.take_states();
        Self {
            memory,
            delta,
            marked,
            walk: None,
        }
    }

    fn step(&mut self, step: &Step) {
        let bytes = |first: u64, parts: u64| first * PART_BYTES..(first + parts) * PART_BYTES;
        match *step {
            Step::Note { file, first, parts } => {
                self.delta.add_bytes(ino(file), &bytes(first, parts));
                let noted = (first..first + parts).filter(|part| PARTS.contains(part));
                self.marked.noted.extend(noted.map(|part| (file, part)));
            }
            Step::Cut { file, first } => {
                let bytes = first * PART_BYTES..u64::MAX;
                self.delta.add_bytes(ino(file), &bytes);
                let behind = places(file).filter(|(_, part)| *part >= first);
                self.marked.noted.extend(behind);
            }
            Step::Keys { first, count } => {
                let keys: Vec<Vec<u8>> = (0..count)
                    .map(|number| vec![b'i', first.wrapping_add(number)])
                    .collect();
                note_keys(&self.delta, &keys);
                self.marked.keys.extend(keys);
            }
            Step::BeginWalk => {
                self.walk = self.delta.begin_walk(BASE, LAST);
                assert!(self.walk.is_some(), "there is a delta");
                let noted = std::mem::take(&mut self.marked.noted);
                self.marked.open.extend(noted);
            }
            Step::FileBegun => self.begin_file(),
            Step::Compared { file, first, parts } => {
                if let Some(walk) = &self.walk {
                    let bytes = bytes(first, parts);
                    self.delta.walked(
                        walk.job,
                        WalkProgress::Equal {
                            ino: ino(file),
                            bytes: &bytes,
                        },
                    );
                    let equal = first..first + parts;
                    let open = &mut self.marked.open;
                    open.retain(|(of, part)| *of != file || !equal.contains(part));
                }
            }
            Step::FileDone { file } => {
                if let Some(walk) = &self.walk {
                    self.delta.walked(walk.job, WalkProgress::Done(ino(file)));
                    self.marked.open.retain(|(of, _)| *of != file);
                }
            }
            Step::Image => {
                let image = self.delta.begin_image(false);
                self.delta.image_held(image, None, LAST);
                self.delta.image_arrived(image);
                self.walk = None;
            }
            Step::Restart => {
                self.delta = open(&self.memory, LastUse::of_test());
                self.walk = None;
                let open = std::mem::take(&mut self.marked.open);
                self.marked.noted.extend(open);
            }
        }
    }

    /// The walk begins with the next file of those that it compares by their numbers.
    fn begin_file(&mut self) {
        let Some(walk) = &mut self.walk else { return };
        let Some(rest) = &mut walk.rest else { return };
        let file = rest.next;
        rest.next += 1;
        rest.last = Some(1000);
        self.delta.walked(
            walk.job,
            WalkProgress::Begun {
                files: &[ino(file)],
                rest: *rest,
            },
        );
        if self.marked.rest == Some(file) {
            self.marked.rest = Some(file + 1);
            self.marked.open.extend(places(file));
        }
    }
}

/// A change is noted before it is made, and a mark is taken away when it is of no use: at each moment within a step, the marks
/// count that are there before and after it.
fn check(bytes: Vec<u8>, before: &Marked, after: &Marked) {
    let said = Said::by(bytes, LastUse::of_test()).expect("there is a delta");
    for place in FILES.flat_map(places) {
        let is_marked = before.has(place) && after.has(place);
        assert!(
            !is_marked || said.has_part(place.0, place.1),
            "{place:?} is lost: {said:?}"
        );
    }
    for key in &before.keys {
        assert!(said.has_record(key), "{key:?} is lost");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_stop_of_the_process_loses_a_mark(
        steps in steps(),
        slots in 8..40_usize,
        of_everything in any::<bool>(),
    ) {
        let mut run = Run::new(slots, of_everything);
        for step in &steps {
            let before = run.marked.clone();
            run.step(step);
            for state in run.memory.take_states() {
                check(state, &before, &run.marked);
            }
        }
        check(run.memory.bytes(), &run.marked, &run.marked);
    }
}
