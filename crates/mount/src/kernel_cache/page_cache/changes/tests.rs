//! The order of changes, and the stale bytes that they leave in the page cache.

use super::*;

const FILE: Ino = Ino::ROOT;

fn begin(changes: &ChangeTable, kind: ChangeKind, bytes: Range<u64>) -> ContentChange {
    changes.begin(FILE, kind, bytes).unwrap()
}

fn open() -> ChangeTable {
    let changes = ChangeTable::default();
    changes.opened(FILE);
    changes
}

/// A file with pages in the cache.
fn mapped() -> ChangeTable {
    let changes = open();
    changes.page_read(FILE, 0..1 << 20);
    changes
}

fn wait(changes: &ChangeTable, kind: ChangeKind, bytes: Range<u64>) {
    assert!(changes.begin(FILE, kind, bytes.clone()).is_none());
    assert!(changes.wait(FILE, kind, bytes, Box::new(drop)).is_none());
}

/// The parts that may reach the file: first byte, and the byte after the last.
fn fresh(changes: &ChangeTable, bytes: Range<u64>) -> Vec<(u64, u64)> {
    let change = begin(changes, ChangeKind::WriteBack, bytes);
    let parts = changes.fresh_parts(&change);
    assert!(changes.finish(&change, ChangeEnd::Written).ready.is_empty());
    let ends = parts.into_iter().map(|part| (part.start, part.end));
    ends.collect()
}

fn starts(finished: &FinishedChange) -> Vec<u64> {
    let ready = finished.ready.iter();
    ready.map(|(change, _)| change.bytes.start).collect()
}

#[test]
fn changes_of_one_kind_go_side_by_side() {
    let changes = mapped();
    for kind in [ChangeKind::Direct, ChangeKind::WriteBack] {
        let [one, other] = [(); 2].map(|()| begin(&changes, kind, 0..8));
        for change in [one, other] {
            assert!(changes.finish(&change, ChangeEnd::Written).ready.is_empty());
        }
    }
}

#[test]
fn a_write_back_waits_for_a_direct_change_of_its_page_and_the_other_way_round() {
    for (first, second) in [
        (ChangeKind::Direct, ChangeKind::WriteBack),
        (ChangeKind::WriteBack, ChangeKind::Direct),
    ] {
        let changes = mapped();
        let change = begin(&changes, first, 0..8);
        wait(&changes, second, 4000..8192);
        // A change of the next page does not wait.
        let apart = begin(&changes, second, 4096..8192);
        assert!(changes.finish(&apart, ChangeEnd::Written).ready.is_empty());
        assert_eq!(starts(&changes.finish(&change, ChangeEnd::Written)), [4000]);
    }
}

#[test]
fn queued_changes_begin_in_the_order_of_their_arrival() {
    let changes = mapped();
    let first = begin(&changes, ChangeKind::Direct, 0..1);
    wait(&changes, ChangeKind::WriteBack, 1..2);
    // This change queues behind the write-back, although the running direct change alone would let it begin.
    wait(&changes, ChangeKind::Direct, 2..3);
    wait(&changes, ChangeKind::WriteBack, 3..4);
    let mut finished = changes.finish(&first, ChangeEnd::Written);
    assert_eq!(starts(&finished), [1]);
    for next in [2, 3] {
        let (change, _) = finished.ready.pop().unwrap();
        finished = changes.finish(&change, ChangeEnd::Written);
        assert_eq!(starts(&finished), [next]);
    }
}

#[test]
fn a_change_that_need_not_wait_any_more_is_given_back() {
    let changes = mapped();
    let first = begin(&changes, ChangeKind::Direct, 0..1);
    assert!(changes.begin(FILE, ChangeKind::WriteBack, 0..9).is_none());
    changes.finish(&first, ChangeEnd::Written);
    let start: StartChange = Box::new(drop);
    assert!(
        changes
            .wait(FILE, ChangeKind::WriteBack, 0..9, start)
            .is_some()
    );
}

#[test]
fn bytes_are_stale_from_a_direct_change_until_their_page_is_read_again() {
    let changes = mapped();
    let change = begin(&changes, ChangeKind::Direct, 100..5000);
    assert!(changes.finish(&change, ChangeEnd::Written).is_cached);
    assert_eq!(fresh(&changes, 0..8192), [(0, 100), (5000, 8192)]);
    changes.page_read(FILE, 0..10);
    assert_eq!(fresh(&changes, 0..8192), [(0, 4096), (5000, 8192)]);
    changes.page_read(FILE, 4096..8192);
    assert_eq!(fresh(&changes, 0..8192), [(0, 8192)]);
}

/// The file holds no newer bytes, so the bytes that the mapping stored still count.
#[test]
fn a_direct_change_that_failed_leaves_nothing_stale() {
    let changes = mapped();
    let change = begin(&changes, ChangeKind::Direct, 0..100);
    assert!(changes.finish(&change, ChangeEnd::Failed).is_cached);
    assert_eq!(fresh(&changes, 0..4096), [(0, 4096)]);
}

#[test]
fn a_file_without_pages_in_the_cache_costs_nothing() {
    let changes = open();
    let change = begin(&changes, ChangeKind::Direct, 0..100);
    assert!(!changes.finish(&change, ChangeEnd::Written).is_cached);
    assert!(!changes.is_cached(FILE));
    // A page that is read while the change is under way may be older than the change.
    let change = begin(&changes, ChangeKind::Direct, 0..100);
    changes.page_read(FILE, 0..4096);
    assert!(changes.finish(&change, ChangeEnd::Written).is_cached);
    assert_eq!(fresh(&changes, 0..4096), [(100, 4096)]);
}

#[test]
fn the_last_close_forgets_the_file() {
    let changes = mapped();
    changes.opened(FILE);
    changes.closed(FILE);
    assert!(changes.is_cached(FILE));
    let change = begin(&changes, ChangeKind::Direct, 0..100);
    changes.closed(FILE);
    assert!(changes.is_cached(FILE), "a change is under way");
    changes.finish(&change, ChangeEnd::Written);
    assert!(!changes.is_cached(FILE));
    let left = changes.shards.iter().map(|shard| shard.lock().len());
    assert_eq!(left.sum::<usize>(), 0);
}

#[test]
fn too_many_stale_ranges_are_forgotten_once_all_pages_are_dropped() {
    let changes = mapped();
    let direct = |at: u64| {
        let change = begin(&changes, ChangeKind::Direct, at..at + 1);
        changes.finish(&change, ChangeEnd::Written).is_crowded
    };
    let mut pages = (0..=STALE_RANGES_MAX as u64).map(|number| number * 4096);
    let crowded_at = pages.find(|at| direct(*at)).unwrap();
    assert_eq!(crowded_at, (STALE_RANGES_MAX as u64 - 1) * 4096);
    changes.begin_drop(FILE);
    // No second drop begins while the first is under way.
    assert!(!direct(1 << 40));
    assert_eq!(fresh(&changes, 0..4096), [(1, 4096)]);
    changes.end_drop(FILE);
    assert_eq!(fresh(&changes, 0..4096), [(0, 4096)]);
    assert_eq!(
        fresh(&changes, 1 << 40..(1 << 40) + 2),
        [((1 << 40) + 1, (1 << 40) + 2)]
    );
}

#[test]
fn an_inherited_file_counts_as_cached_until_the_kernel_forgets_it() {
    let changes = ChangeTable::default();
    assert!(!changes.is_cached(FILE));
    changes.inherit(Ino::new(100).unwrap());
    assert!(changes.is_cached(FILE));
    assert!(!changes.is_cached(Ino::new(100).unwrap()));
    let write = begin(&changes, ChangeKind::Direct, 0..8);
    assert!(changes.finish(&write, ChangeEnd::Written).is_cached);
    // A close that this process has seen no open for.
    changes.closed(FILE);
    assert_eq!(fresh(&changes, 0..4096), [(8, 4096)]);
    changes.forgotten(FILE);
    assert_eq!(fresh(&changes, 0..4096), [(0, 4096)]);
}

#[test]
fn a_drop_of_all_pages_settles_an_inherited_file() {
    let changes = ChangeTable::default();
    changes.inherit(Ino::new(100).unwrap());
    let write = || {
        let write = begin(&changes, ChangeKind::Direct, 0..8);
        changes.finish(&write, ChangeEnd::Written)
    };
    let first = write();
    assert!(first.is_cached && first.is_crowded);
    changes.begin_drop(FILE);
    changes.end_drop(FILE);
    assert!(!write().is_cached);
    changes.page_read(FILE, 0..4096);
    let last = write();
    assert!(last.is_cached && !last.is_crowded);
}

#[test]
fn a_page_that_is_read_during_the_drop_stays_known() {
    let changes = ChangeTable::default();
    changes.inherit(Ino::new(100).unwrap());
    let write = begin(&changes, ChangeKind::Direct, 0..8);
    assert!(changes.finish(&write, ChangeEnd::Written).is_crowded);
    changes.begin_drop(FILE);
    changes.page_read(FILE, 0..4096);
    changes.end_drop(FILE);
    assert!(changes.is_cached(FILE));
}

/// The effect of a read that shows the bytes before `end`. Returns whether it has told the kernel.
fn show(changes: &ChangeTable, end: u64) -> bool {
    let hides = changes.hides_growth(FILE, end);
    if hides {
        assert!(
            changes.hides_growth(FILE, end),
            "the kernel does not know yet"
        );
        changes.size_shown(FILE, end);
    }
    hides
}

#[test]
fn a_read_that_shows_an_append_first_tells_the_kernel_once() {
    let changes = open();
    assert!(!show(&changes, 10), "nothing was written");
    assert!(!changes.grows(FILE));
    let append = begin(&changes, ChangeKind::Direct, 10..20);
    assert!(show(&changes, 10), "the end is not known");
    assert!(!show(&changes, 10));
    // The service may have done the write: its answer is on the way.
    assert!(show(&changes, 20));
    assert!(changes.finish(&append, ChangeEnd::Written).ready.is_empty());
    assert!(!show(&changes, 20));
    assert!(
        changes.grows(FILE),
        "the program has its answer at this moment"
    );
    let other = begin(&changes, ChangeKind::Direct, 5..15);
    assert!(changes.finish(&other, ChangeEnd::Written).ready.is_empty());
    assert!(!show(&changes, 25), "no write can have made it so long");
}

/// Otherwise each look at a busy file would ask the node.
#[test]
fn an_overwrite_lets_no_file_grow() {
    let changes = open();
    let settle = || {
        changes
            .shard(FILE)
            .lock()
            .get_mut(&FILE)
            .unwrap()
            .growth
            .settle();
    };
    let is_growth = |bytes| {
        settle();
        let write = begin(&changes, ChangeKind::Direct, bytes);
        let grows = changes.grows(FILE);
        assert!(changes.finish(&write, ChangeEnd::Written).ready.is_empty());
        assert_eq!(changes.grows(FILE), grows);
        grows
    };
    assert!(is_growth(0..20));
    assert!(!is_growth(0..20));
    assert!(!is_growth(5..15));
    assert!(is_growth(15..21));
    let hole = begin(&changes, ChangeKind::Direct, 0..90);
    assert!(changes.finish(&hole, ChangeEnd::Changed).ready.is_empty());
    assert!(is_growth(80..90), "a hole makes no file longer");
    let failed = begin(&changes, ChangeKind::Direct, 90..100);
    assert!(changes.finish(&failed, ChangeEnd::Failed).ready.is_empty());
    let cut = begin(&changes, ChangeKind::Direct, 90..100);
    changes.resized(FILE);
    assert!(changes.finish(&cut, ChangeEnd::Written).ready.is_empty());
    assert!(is_growth(90..100), "the cut may have come last");
    assert!(!is_growth(90..100));
}

#[test]
fn a_file_that_was_cut_may_grow_again() {
    let changes = open();
    let append = || begin(&changes, ChangeKind::Direct, 10..20);
    assert!(
        changes
            .finish(&append(), ChangeEnd::Written)
            .ready
            .is_empty()
    );
    assert!(show(&changes, 20));
    for forget in [&(|| changes.resized(FILE)) as &dyn Fn(), &|| {
        changes.forget_sizes();
    }] {
        assert!(
            changes
                .finish(&append(), ChangeEnd::Written)
                .ready
                .is_empty()
        );
        assert!(!show(&changes, 20), "the kernel knows");
        forget();
        assert!(
            changes
                .finish(&append(), ChangeEnd::Written)
                .ready
                .is_empty()
        );
        assert!(show(&changes, 20));
    }
}
