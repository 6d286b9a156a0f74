//! Random calls on a file, beside a plain vector of bytes. Then the possible results of a power loss.

use lockstep_lossy::disk::CallClass;
use lockstep_types::Errno;
use lockstep_types::backing::BackingTable;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Allocate(u64, u64, bool),
    Store(u64, Vec<u8>),
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..30_000u64;
    let count = 0..20_000u64;
    let data = (1..255u8, 0..9000usize).prop_map(|(byte, count)| vec![byte; count]);
    let stored = proptest::collection::vec(1..255u8, 0..64);
    prop_oneof![
        3 => (at.clone(), data).prop_map(|(o, d)| Step::Write(o, d)),
        1 => at.clone().prop_map(Step::SetLen),
        1 => (at.clone(), count.clone()).prop_map(|(o, n)| Step::Punch(o, n)),
        1 => (at.clone(), count.clone(), any::<bool>()).prop_map(|(o, n, k)| Step::Zero(o, n, k)),
        1 => (at, count, any::<bool>()).prop_map(|(o, n, k)| Step::Allocate(o, n, k)),
        1 => (0..4000u64, stored).prop_map(|(o, d)| Step::Store(o, d)),
        1 => Just(Step::Sync),
    ]
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

fn apply(file: &dyn BackingFile, table: &dyn BackingTable, step: &Step) {
    match step {
        Step::Write(offset, data) => file.write_at(*offset, data).unwrap(),
        Step::SetLen(length) => file.set_len(*length).unwrap(),
        Step::Punch(offset, count) => file.punch_hole(*offset, *count).unwrap(),
        Step::Zero(offset, count, keep) => file.zero_range(*offset, *count, *keep).unwrap(),
        Step::Allocate(offset, count, keep) => file.allocate(*offset, *count, *keep).unwrap(),
        Step::Store(offset, data) => table.store(index(*offset), data),
        Step::Sync => file.sync().unwrap(),
    }
}

fn put(content: &mut [u8], offset: u64, data: &[u8]) {
    let rest = content.iter_mut().skip(index(offset));
    rest.zip(data).for_each(|(to, from)| *to = *from);
}

fn model(content: &mut Vec<u8>, step: &Step) {
    let grow = |content: &mut Vec<u8>, end: u64| content.resize(content.len().max(index(end)), 0);
    match step {
        Step::Write(offset, data) => {
            if !data.is_empty() {
                grow(content, offset + data.len() as u64);
            }
            put(content, *offset, data);
        }
        Step::SetLen(length) => content.resize(index(*length), 0),
        Step::Punch(offset, count) => put(content, *offset, &vec![0; index(*count)]),
        Step::Zero(offset, count, keep) => {
            if !keep && *count > 0 {
                grow(content, offset + count);
            }
            put(content, *offset, &vec![0; index(*count)]);
        }
        Step::Allocate(offset, count, false) if *count > 0 => grow(content, offset + count),
        Step::Store(offset, data) => put(content, *offset, data),
        Step::Allocate(..) | Step::Sync => {}
    }
}

/// A page of a file, with zeros past its end.
fn page(content: &[u8], number: usize) -> Vec<u8> {
    let rest = content.get(number * PAGE..).unwrap_or_default();
    let mut page = rest[..rest.len().min(PAGE)].to_vec();
    page.resize(PAGE, 0);
    page
}

/// From every page on, the results of `SEEK_DATA` and `SEEK_HOLE` must agree with the bytes.
fn check_seeks(file: &dyn BackingFile, content: &[u8]) {
    let length = content.len() as u64;
    for offset in (0..length).step_by(PAGE / 2) {
        let hole = file.seek_hole(offset).unwrap().unwrap();
        let data = file.seek_data(offset).unwrap();
        assert!(hole == offset || data == Some(offset));
        assert!(hole <= length && data.is_none_or(|data| data < length));
        let gap = index(offset)..index(data.unwrap_or(length));
        assert!(content[gap].iter().all(|byte| *byte == 0));
    }
}

fn survivors() -> impl Strategy<Value = Survivors> {
    prop_oneof![
        Just(Survivors::Nothing),
        Just(Survivors::Everything),
        (0..200u64).prop_map(Survivors::Until),
        (0..=100u8).prop_map(|percent| Survivors::Mixed { percent }),
    ]
}

/// A file, the same file as a table, and its expected bytes.
fn start() -> (Disk, Arc<dyn BackingFile>, Arc<dyn BackingTable>, Vec<u8>) {
    let (disk, backing, file) = with_file();
    let table = backing.open_table("f", PAGE).unwrap();
    backing.sync_all().unwrap();
    (disk, file, table, vec![0; PAGE])
}

proptest! {
    #[test]
    fn files_behave_like_a_vector(steps in proptest::collection::vec(step(), 1..30)) {
        let (disk, file, table, mut content) = start();
        for step in &steps {
            apply(&*file, &*table, step);
            model(&mut content, step);
            let found = bytes(&disk, "f");
            prop_assert!(found == content, "after {step:?}");
            check_seeks(&*file, &content);
        }
        let used = disk.mount().space().unwrap();
        let blocks = file.stat().unwrap().blocks;
        prop_assert_eq!(used.total_bytes - used.free_bytes, blocks * 512);
    }

    #[test]
    fn each_page_is_left_in_one_of_its_states(
        steps in proptest::collection::vec(step(), 1..30),
        survivors in survivors(),
        seed in any::<u64>(),
    ) {
        let (disk, file, table, mut content) = start();
        let mut states = vec![content.clone()];
        for step in &steps {
            apply(&*file, &*table, step);
            model(&mut content, step);
            if matches!(step, Step::Sync) {
                states.clear();
            }
            states.push(content.clone());
        }
        let left = bytes(&disk.after_power_loss(survivors, seed), "f");
        prop_assert!(states.iter().any(|state| state.len() == left.len()), "length");
        for number in 0..left.len().div_ceil(PAGE) {
            let end = left.len().min((number + 1) * PAGE) - number * PAGE;
            let found = &page(&left, number)[..end];
            let is_known = states.iter().any(|state| &page(state, number)[..end] == found);
            prop_assert!(is_known, "page {}", number);
        }
        if survivors == Survivors::Nothing {
            prop_assert!(left == states[0]);
        }
        if survivors == Survivors::Everything {
            prop_assert!(left == content);
        }
    }

    #[test]
    fn nothing_lies_past_the_end_of_what_is_left(
        steps in proptest::collection::vec((step(), proptest::bool::weighted(0.2)), 1..30),
        survivors in survivors(),
        seed in any::<u64>(),
    ) {
        let (disk, file, table, _) = start();
        for (step, then_fails) in &steps {
            apply(&*file, &*table, step);
            if *then_fails {
                disk.fail_call(CallClass::Sync, 1, Errno::Io);
                file.sync().unwrap_err();
            }
        }
        let left = disk.after_power_loss(survivors, seed);
        let mut content = bytes(&left, "f");
        let grown = content.len() + 10 * PAGE;
        left.mount().open("f").unwrap().set_len(grown as u64).unwrap();
        content.resize(grown, 0);
        prop_assert!(bytes(&left, "f") == content);
    }
}
