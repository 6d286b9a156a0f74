//! The log against a naive model: a list.

use lockstep_intentlog::{IntentLog, LogError, LogOptions, Position};
use proptest::prelude::*;

use crate::{Found, new_log, open, options, record};

#[derive(Clone, Debug)]
enum Step {
    Append(u64),
    Sync(u64),
    Cut(usize),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..2000u64).prop_map(Step::Append),
        4 => any::<u64>().prop_map(Step::Sync),
        2 => any::<usize>().prop_map(Step::Cut),
        1 => Just(Step::Reopen),
    ]
}

struct Model {
    records: Found,
    kept: Position,
}

impl Model {
    fn cut(&mut self, log: &IntentLog, at: usize) {
        self.records.drain(..at);
        let first = self.records.first().map(|(position, _)| *position);
        self.kept = first.unwrap_or_else(|| log.tail());
        log.cut(self.kept);
    }

    fn append(&mut self, log: &IntentLog, number: u64) {
        match log.append(&record(number)) {
            Ok(position) => self.records.push((position, record(number))),
            Err(LogError::Full { .. }) => self.cut(log, self.records.len()),
            Err(error) => panic!("{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn behaves_as_a_list(
        pages in 2..5u64,
        steps in prop::collection::vec(step(), 0..250),
    ) {
        let options = options(pages * 4096);
        let (disk, mut log) = new_log(options.segment_bytes);
        let mut model = Model { records: Vec::new(), kept: Position::START };
        for step in steps.into_iter().chain([Step::Reopen]) {
            match step {
                Step::Append(number) => model.append(&log, number),
                Step::Sync(up_to) => {
                    log.sync(Position::new(up_to)).unwrap();
                    prop_assert!(log.durable() <= log.tail());
                }
                Step::Cut(at) => model.cut(&log, at % (model.records.len() + 1)),
                Step::Reopen => {
                    let keep_from = Some(model.kept);
                    let (again, found) = open(&disk, &LogOptions { keep_from, ..options }).unwrap();
                    prop_assert_eq!(&found, &model.records);
                    log = again;
                }
            }
        }
    }
}
