//! The sums of a store after any changes, against its bytes.

use lockstep_types::AllocateMode;
use proptest::prelude::*;

use super::*;
use crate::store::SumTotals;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Cut(u64),
    Allocate(AllocateMode, u64, u64),
    Adopt(u64, u64),
    NewEra,
    Restart,
    Kill,
    LosePower(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || {
        prop_oneof![
            0..600_000_u64,
            (0..150_u64).prop_map(|block| block * 4096),
            (0..40_u64).prop_map(|block| block * 4096),
        ]
    };
    let length = || prop_oneof![1..20_000_u64, (1..12_u64).prop_map(|blocks| blocks * 4096)];
    let mode = prop_oneof![
        Just(AllocateMode::Allocate),
        Just(AllocateMode::AllocateKeepSize),
        Just(AllocateMode::PunchHole),
        Just(AllocateMode::ZeroRange),
        Just(AllocateMode::ZeroRangeKeepSize),
    ];
    let step = prop_oneof![
        8 => (place(), length(), 0..3_u8).prop_map(|(at, length, byte)| Step::Write(at, length, byte)),
        3 => place().prop_map(Step::Cut),
        3 => (mode, place(), length()).prop_map(|(mode, at, length)| Step::Allocate(mode, at, length)),
        2 => (place(), length()).prop_map(|(at, length)| Step::Adopt(at, length)),
        1 => Just(Step::NewEra),
        1 => Just(Step::Restart),
        1 => Just(Step::Kill),
        1 => (0..100_u8).prop_map(Step::LosePower),
    ];
    prop::collection::vec(step, 1..25)
}

struct Run {
    test: TestStore,
    ino: Ino,
}

impl Run {
    fn step(&mut self, step: &Step) {
        let ino = self.ino;
        match *step {
            Step::Write(offset, length, byte) => {
                let bytes = (0..length).map(|at| byte.wrapping_mul((at % 250) as u8));
                self.test.write(ino, offset, &bytes.collect::<Vec<_>>());
            }
            Step::Cut(size) => self.test.commit(MetaRequest::Truncate {
                ino,
                size,
                drop_set_id: false,
            }),
            Step::Allocate(mode, offset, length) => {
                self.test.commit(MetaRequest::Allocate {
                    ino,
                    mode,
                    offset,
                    length,
                });
            }
            Step::Adopt(offset, length) => {
                let bytes = self.test.bytes(ino);
                let at = |place: u64| usize::try_from(place).unwrap().min(bytes.len());
                let right = &bytes[at(offset)..at(offset + length)];
                self.test.store.sums().adopt(ino, offset, right).unwrap();
            }
            Step::NewEra => {
                let sums = self.test.store.sums();
                sums.take_secret(&SumSecret::new([6; 32])).unwrap();
                sums.take_secret(&secret()).unwrap();
            }
            Step::Restart | Step::Kill => {
                let void = self.test.check(ino);
                if matches!(step, Step::Restart) {
                    self.test.restart();
                } else {
                    self.test.kill();
                }
                assert_eq!(self.test.check(ino), void);
            }
            Step::LosePower(percent) => {
                self.test.lose_power(Survivors::Mixed { percent });
                self.test.check(ino);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn sums_fit_the_bytes_after_any_changes(steps in steps()) {
        let mut test = TestStore::new();
        let ino = test.make("file");
        test.store.sync_everything().unwrap();
        let mut run = Run { test, ino };
        for step in &steps {
            run.step(step);
            run.test.check(ino);
        }
        assert_eq!(run.test.store.sums().totals(), SumTotals::default());
        let name = FileName::new(b"file").unwrap();
        run.test.commit(MetaRequest::Unlink { parent: Ino::ROOT, name });
        run.test.commit(MetaRequest::Reap { ino });
        run.test.store.collect_garbage().unwrap();
        assert_eq!(run.test.store.sums().totals(), SumTotals::default());
        let kept = run.test.disk.files().into_iter().filter(|path| path.starts_with("sums/"));
        let kept: Vec<String> = kept.filter(|path| !path.starts_with("sums/slots.")).collect();
        assert_eq!(kept, ["sums/era"]);
    }
}
