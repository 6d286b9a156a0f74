//! A stop of the process at each change of a table, against a model of the marks of mirrored intervals and of the rest.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_delta::{BarrierEvent, BarrierName};
use proptest::prelude::*;

use super::columns::{
    Since, TableBytes, Tables, base_with, begin, change, change_key, complete, turn,
};
use super::kept::{BASE, LAST};
use super::*;

const FILES: Range<u64> = 1..10;
const PARTS: Range<u64> = 0..40;

#[derive(Clone, Debug)]
enum Step {
    Change { file: u64, part: u64 },
    Key(u8),
    Turn,
    Complete,
    DropColumns,
    LeaveSync,
    MirrorAgain,
    Equal,
    Compared { file: u64, part: u64 },
    FileDone { file: u64 },
    Image,
    End,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (FILES, PARTS).prop_map(|(file, part)| Step::Change { file, part }),
        3 => any::<u8>().prop_map(Step::Key),
        4 => Just(Step::Turn),
        4 => Just(Step::Complete),
        3 => Just(Step::DropColumns),
        2 => Just(Step::LeaveSync),
        2 => Just(Step::MirrorAgain),
        2 => Just(Step::Equal),
        3 => (FILES, PARTS).prop_map(|(file, part)| Step::Compared { file, part }),
        2 => FILES.prop_map(|file| Step::FileDone { file }),
        1 => Just(Step::Image),
        1 => Just(Step::End),
        2 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// A place that the other copy may lack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Part(u64, u64),
    Key(Vec<u8>),
}

/// The places that must be named.
#[derive(Clone, Debug, Default)]
struct Model {
    now: u64,
    /// The last moment at which the other copy has got a place.
    given: BTreeMap<Place, u64>,
    rest: BTreeSet<Place>,
    /// The moment of the turn of each barrier that may be a base.
    turns: BTreeMap<BarrierName, u64>,
    /// The barrier under way.
    reached: Option<BarrierName>,
    is_alone: bool,
    mirrors: bool,
    /// The mark says "in sync".
    is_in_sync: bool,
}

impl Model {
    fn note(&mut self, place: Place) {
        self.now += 1;
        if self.is_alone {
            self.rest.insert(place.clone());
        }
        if self.mirrors || !self.is_alone {
            self.given.insert(place, self.now);
        }
    }

    /// The places leave the rest.
    fn give(&mut self, is_given: impl Fn(&Place) -> bool) {
        self.now += 1;
        let given: Vec<Place> = self
            .rest
            .iter()
            .filter(|it| is_given(it))
            .cloned()
            .collect();
        for place in given {
            self.rest.remove(&place);
            self.given.insert(place, self.now);
        }
    }

    fn must_name(&self, place: &Place, base: BarrierName) -> bool {
        let Some(turn) = self.turns.get(&base) else {
            return true;
        };
        self.rest.contains(place) || self.given.get(place).is_some_and(|at| at > turn)
    }
}

struct Run {
    tables: Tables,
    delta: DeltaTracker,
    model: Model,
    names: Vec<BarrierName>,
    walk: Option<DeltaWalk>,
    nonce: u8,
}

impl Run {
    fn new(slots: usize) -> Self {
        let tables = Tables::new(slots);
        let delta = tables.open(LastUse::of_test());
        begin(&delta);
        delta.settle();
        let model = Model {
            mirrors: true,
            is_in_sync: true,
            ..Model::default()
        };
        Self {
            tables,
            delta,
            model,
            names: Vec::new(),
            walk: None,
            nonce: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        let part_bytes = |part: u64| part * changes::PART_BYTES..(part + 1) * changes::PART_BYTES;
        match *step {
            Step::Change { file, part } => {
                change(&self.delta, file, part);
                self.model.note(Place::Part(file, part));
            }
            Step::Key(number) => {
                let key = vec![b'n', number];
                change_key(&self.delta, &key);
                self.model.note(Place::Key(key));
            }
            Step::Turn => {
                self.nonce = self.nonce.wrapping_add(1);
                if let Some(name) = turn(&self.delta, self.nonce) {
                    self.names.push(name);
                    self.model.turns.insert(name, self.model.now);
                    self.model.reached = Some(name);
                }
            }
            Step::Complete => {
                if let Some(name) = self.model.reached.take() {
                    complete(&self.delta, name);
                    self.model.turns.retain(|other, _| *other >= name);
                }
            }
            Step::DropColumns => self.delta.barriers().drop_columns(),
            Step::LeaveSync => self.leave_sync(),
            Step::MirrorAgain => self.mirror_again(),
            Step::Equal => self.get_equal(),
            Step::Compared { file, part } => {
                if let Some(walk) = &self.walk {
                    self.delta.walked(
                        walk.job,
                        WalkProgress::Equal {
                            ino: ino(file),
                            bytes: &part_bytes(part),
                        },
                    );
                    self.equal(|place| *place == Place::Part(file, part));
                }
            }
            Step::FileDone { file } => {
                if let Some(walk) = &self.walk {
                    self.delta.walked(walk.job, WalkProgress::Done(ino(file)));
                    self.equal(|place| matches!(place, Place::Part(of, _) if *of == file));
                }
            }
            Step::Image => self.send_image(),
            Step::End => self.end(),
            Step::Restart => self.restart(),
        }
    }

    /// A resync has made places equal. Later changes stay in the rest, so only places of before may leave.
    fn equal(&mut self, is_equal: impl Fn(&Place) -> bool) {
        let walk = self.walk.as_ref().map(|walk| walk.content.clone());
        let content = walk.unwrap_or_default();
        let is_of_walk = |place: &Place| {
            matches!(place, Place::Part(file, part) if content
                .get(&ino(*file))
                .and_then(|run| run.next(part * changes::PART_BYTES))
                .is_some_and(|run| run.start == part * changes::PART_BYTES))
        };
        self.model
            .give(|place| is_equal(place) && is_of_walk(place));
    }

    fn leave_sync(&mut self) {
        if self.model.is_in_sync {
            self.delta.begin_alone(BASE, Osn::ZERO);
            self.delta.settle();
            self.model.give(|_| true);
            self.model.is_alone = true;
            self.model.is_in_sync = false;
        }
        self.delta.barriers().handle(BarrierEvent::MirroringEnded);
        self.model.mirrors = false;
        self.model.reached = None;
        self.walk = None;
    }

    fn mirror_again(&mut self) {
        if !self.model.mirrors {
            begin(&self.delta);
            self.delta.keep_in_columns();
            self.model.mirrors = true;
            self.send_image();
        }
    }

    fn send_image(&mut self) {
        if self.model.mirrors && self.model.is_alone {
            let image = self.delta.begin_image(false);
            self.delta.image_held(image, None, LAST);
            self.delta.image_arrived(image);
            self.walk = self.delta.begin_walk(BASE, LAST);
            // The records stay in the rest on the table; the other copy has got them.
            self.model.now += 1;
            let keys: Vec<Place> = self.model.rest.iter().cloned().collect();
            for place in keys.into_iter().filter(|it| matches!(it, Place::Key(_))) {
                self.model.rest.remove(&place);
                self.model.given.insert(place, self.model.now);
            }
        }
    }

    fn get_equal(&mut self) {
        if self.model.mirrors && !self.model.is_in_sync {
            self.delta.end_equal();
            self.model.give(|_| true);
            self.model.is_alone = false;
            self.model.is_in_sync = true;
            self.walk = None;
        }
    }

    fn end(&mut self) {
        self.delta.end();
        self.delta.settle();
        let Model { now, mirrors, .. } = self.model;
        self.model = Model {
            now,
            mirrors,
            is_in_sync: self.model.is_in_sync,
            reached: self.model.reached,
            ..Model::default()
        };
        self.walk = None;
    }

    fn restart(&mut self) {
        self.delta = self.tables.open(LastUse::of_test());
        go_on(&self.delta, self.model.is_in_sync);
        if self.model.is_in_sync {
            self.model.give(|_| true);
            self.model.is_alone = true;
        }
        self.model.mirrors = false;
        self.model.reached = None;
        self.walk = None;
    }
}

/// The begin of the session of a primary.
fn go_on(delta: &DeltaTracker, is_in_sync: bool) {
    if is_in_sync {
        delta.begin_alone(BASE, Osn::ZERO);
        delta.settle();
    } else {
        delta.lead_alone(BASE, false);
    }
}

/// A change is noted before it is made: at each moment within a step, the places count that must be named before and after it.
fn check(run: &Run, bytes: TableBytes, before: &Model, after: &Model) {
    let tables = Tables::of(bytes, run.tables.disk.fork());
    let delta = tables.open(LastUse::of_test());
    go_on(&delta, after.is_in_sync);
    let Some(base) = base_with(&delta, &run.names) else {
        return;
    };
    assert!(
        before.turns.contains_key(&base) || after.turns.contains_key(&base),
        "{base:?} is no base"
    );
    let since = Since::of(&delta, base);
    let places = before.rest.iter().chain(before.given.keys());
    for place in places {
        let is_due = before.must_name(place, base) && after.must_name(place, base);
        let is_there = match place {
            Place::Part(file, part) => since.has_part(*file, *part),
            Place::Key(key) => since.has_key(key),
        };
        assert!(!is_due || is_there, "{place:?} is lost: {since:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn no_stop_of_the_process_loses_a_mark_of_an_interval(steps in steps(), slots in 8..40_usize) {
        let mut run = Run::new(slots);
        for step in &steps {
            let before = run.model.clone();
            run.tables.take_states();
            run.step(step);
            for state in run.tables.take_states() {
                check(&run, state, &before, &run.model);
            }
            check(&run, run.tables.bytes(), &run.model, &run.model);
        }
    }
}

#[test]
fn the_model_has_bases() {
    let mut run = Run::new(16);
    for step in [
        Step::Change { file: 1, part: 1 },
        Step::Turn,
        Step::Complete,
        Step::Change { file: 1, part: 2 },
        Step::LeaveSync,
        Step::Change { file: 2, part: 2 },
        Step::MirrorAgain,
        Step::Restart,
        Step::MirrorAgain,
        Step::Compared { file: 2, part: 2 },
        Step::Equal,
    ] {
        run.step(&step);
        run.delta.settle();
    }
    let delta = Tables::of(run.tables.bytes(), run.tables.disk.fork()).open(LastUse::of_test());
    let base = base_with(&delta, &run.names).unwrap();
    assert!(run.model.turns.contains_key(&base));
}
