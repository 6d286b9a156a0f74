//! The rest of the source of a resync, after a loss of power at each call: the barriers whose names count then have a rest that names each
//! place in which the copies differ (rule P30). The other copy has the parts that the resync has brought, and marks of mirrored changes.

use lockstep_delta::{
    BarrierEffect, BarrierEvent, BarrierMessage, BarrierName, Interval, MarkAccount, MarkPage,
};
use lockstep_fs::store::{TraceAccess, WalkProgress};
use lockstep_fs::{OpError, Store};
use lockstep_lossy::disk::{Disk, Survivors, Verdict};
use lockstep_types::{BootId, FileName, Ino, MetaOp, MetaRequest, NodeKind};

use crate::harness::{AMPLE, BASE, LAST, SURVIVORS, new_disk, open, open_in, osn_and_time};

const PART: u64 = 64 << 10;
const FILE_PARTS: u64 = 30;
const OLD: u8 = 1;
const NEW: u8 = 2;
/// Written alone before the resync. The last one is never made equal.
const CHANGED: [u64; 3] = [0, 5, 9];
/// Written in the resync, by both nodes.
const MIRRORED: u64 = 20;
/// Written after the resync has lost its connection.
const ALONE: u64 = 12;

/// How far the work has got, as the other node knows.
#[derive(Default)]
struct Seen {
    /// The interval before the marks of the other node.
    marks_after: Option<Interval>,
    /// The barriers of which it has heard.
    heard: Vec<BarrierName>,
    complete: usize,
    /// The parts that it has new.
    new: Vec<u64>,
    is_alone: bool,
}

fn file(store: &Store) -> Result<Ino, OpError> {
    let (osn, time) = osn_and_time(1);
    let ino = store.next_ino()?;
    let name = FileName::new(b"file".as_slice()).unwrap();
    let request = MetaRequest::creation(Ino::ROOT, name, ino, NodeKind::File).request();
    store.commit(&MetaOp { osn, time, request })?;
    Ok(ino)
}

fn write(store: &Store, ino: Ino, part: u64, byte: u8) -> Result<(), OpError> {
    let (osn, time) = osn_and_time(100 * u64::from(byte) + part);
    let data = vec![byte; usize::try_from(PART).unwrap()];
    store.write(ino, part * PART, &data, osn, time)
}

fn is_new(store: &Store, ino: Ino, part: u64) -> bool {
    let mut byte = [0];
    store.read(ino, part * PART, &mut byte).is_ok() && byte == [NEW]
}

/// A barrier, with a change between its turn and its sync.
fn barrier(
    store: &Store,
    nonce: u8,
    seen: &mut Seen,
    meanwhile: impl FnOnce(&mut Seen) -> Result<(), OpError>,
) -> Result<(), OpError> {
    let barriers = store.barriers();
    let nonce = [nonce; 16];
    let effects = barriers.handle(BarrierEvent::Due { nonce });
    let Some(BarrierEffect::Sync(names)) = effects.last() else {
        panic!("{effects:?}");
    };
    let name = names.reached.unwrap();
    seen.heard.push(name);
    meanwhile(seen)?;
    barriers.make_stable()?;
    assert!(barriers.note_names(*names)?);
    barriers.handle(BarrierEvent::Synced);
    let reached = BarrierMessage::Reached(name);
    barriers.handle(BarrierEvent::Received(reached));
    barriers.drop_columns()?;
    seen.complete += 1;
    Ok(())
}

/// Serves alone, brings some of that to the other copy, and serves alone again.
fn work(store: &Store, ino: Ino, seen: &mut Seen) -> Result<(), OpError> {
    let (barriers, delta) = (store.barriers(), store.delta());
    barriers.handle(BarrierEvent::MirroringEnded);
    delta.begin_alone(BASE);
    delta.settle();
    barriers.hide_names()?;
    for part in CHANGED {
        write(store, ino, part, NEW)?;
    }
    delta.keep_in_columns();
    TraceAccess::of(store).end()?;
    let image = delta.begin_image(false);
    delta.image_held(image, None);
    delta.image_arrived(image);
    let walk = delta.begin_walk(BASE, LAST).unwrap();
    let from = barriers.open().next();
    barriers.handle(BarrierEvent::MirroringBegun { from });
    seen.marks_after = Some(barriers.open());
    let finish = |seen: &mut Seen, part: u64| {
        seen.new.push(part);
        let bytes = &(part * PART..(part + 1) * PART);
        delta.walked(walk.job, WalkProgress::Equal { ino, bytes });
    };
    let [first, second, _] = CHANGED;
    finish(seen, first);
    barrier(store, 2, seen, |seen| {
        finish(seen, second);
        seen.new.push(MIRRORED);
        write(store, ino, MIRRORED, NEW)
    })?;
    barrier(store, 3, seen, |_| Ok(()))?;
    barriers.handle(BarrierEvent::MirroringEnded);
    barriers.serve_alone();
    seen.is_alone = true;
    write(store, ino, ALONE, NEW)
}

/// A disk with a file and a barrier.
fn prepared() -> (Disk, Ino) {
    let disk = new_disk();
    let store = open(&disk);
    let ino = file(&store).unwrap();
    for part in 0..FILE_PARTS {
        write(&store, ino, part, OLD).unwrap();
    }
    let from = Interval::new(1);
    let barriers = store.barriers();
    barriers.handle(BarrierEvent::MirroringBegun { from });
    barrier(&store, 1, &mut Seen::default(), |_| Ok(())).unwrap();
    (disk, ino)
}

fn names(page: &MarkPage, ino: Ino, part: u64) -> bool {
    let (start, end) = (part * PART, (part + 1) * PART);
    let covers =
        |(of, from, to): &(u64, u64, u64)| *of == ino.get() && *from <= start && *to >= end;
    page.files_from.is_some_and(|from| ino.get() >= from) || page.bytes.iter().any(covers)
}

/// The knowledge of the store after a loss of power.
enum Found {
    /// It has no base.
    Nothing,
    /// Its rest names each difference.
    Rest,
    /// Its rest lacks a part.
    Lacks,
}

fn look(store: &Store, ino: Ino, seen: &Seen) -> Found {
    let peer = MarkAccount {
        known: seen.heard.clone(),
        covered_after: seen.marks_after,
        served_alone: false,
    };
    let Some(base) = store.delta().base_with(&peer) else {
        return Found::Nothing;
    };
    assert!(base.needs_marks);
    let page = store.delta().tell_marks(base.name, 0);
    let of = CHANGED.into_iter().chain([ALONE]);
    let differs = |part: &u64| is_new(store, ino, *part) != seen.new.contains(part);
    let mut differing = of.filter(differs);
    if differing.all(|part| names(&page, ino, part)) {
        Found::Rest
    } else {
        Found::Lacks
    }
}

/// Loses power at each call in this way. Returns the numbers of losses with a base, of those whose rest lacks a part, and of those without a
/// base behind a barrier of the resync.
fn lose_power_at_each_call(verdict: Verdict) -> (usize, usize, usize) {
    let (before, ino) = prepared();
    let (mut with_base, mut lacking, mut without) = (0, 0, 0);
    for calls in 1.. {
        let disk = before.fork();
        let store = open(&disk);
        store.delta().end_equal();
        let from = store.barriers().open();
        store
            .barriers()
            .handle(BarrierEvent::MirroringBegun { from });
        disk.set_verdict(calls, verdict);
        let mut seen = Seen::default();
        let is_done = work(&store, ino, &mut seen).is_ok();
        for survivors in SURVIVORS {
            let left = disk.after_power_loss(survivors, calls);
            let store = open_in(&left, BootId::from_bytes([2; 16]));
            match look(&store, ino, &seen) {
                Found::Rest => with_base += 1,
                Found::Lacks => lacking += 1,
                Found::Nothing if seen.complete > 0 && !seen.is_alone => without += 1,
                Found::Nothing => {}
            }
        }
        if is_done {
            break;
        }
    }
    (with_base, lacking, without)
}

#[test]
fn a_name_of_a_resync_has_a_rest_that_names_every_difference() {
    for verdict in [Verdict::CrashBefore, Verdict::CrashTorn(13)] {
        let (with_base, lacking, without) = lose_power_at_each_call(verdict);
        assert!(with_base > 20, "{with_base}");
        assert_eq!((lacking, without), (0, 0), "{verdict:?}");
    }
}

/// The disk is full at a barrier of a resync: the barrier before stays, with its rest.
#[test]
fn a_full_disk_leaves_the_rest_of_the_barrier_before() {
    let (disk, ino) = prepared();
    let store = open(&disk);
    store.delta().end_equal();
    let mut seen = Seen::default();
    let stopped = work_until_full(&disk, &store, ino, &mut seen);
    assert!(stopped.is_err());
    assert!(!store.is_poisoned());
    let left = disk.after_power_loss(Survivors::Nothing, 1);
    left.set_capacity(AMPLE);
    let store = open_in(&left, BootId::from_bytes([2; 16]));
    assert!(matches!(look(&store, ino, &seen), Found::Rest));
}

fn work_until_full(disk: &Disk, store: &Store, ino: Ino, seen: &mut Seen) -> Result<(), OpError> {
    let barriers = store.barriers();
    let from = barriers.open();
    barriers.handle(BarrierEvent::MirroringBegun { from });
    work(store, ino, seen)?;
    // Back in a resync, with the name of its first barrier.
    let from = barriers.open().next();
    barriers.handle(BarrierEvent::MirroringBegun { from });
    seen.marks_after = Some(barriers.open());
    seen.heard.clear();
    barrier(store, 4, seen, |_| Ok(()))?;
    barrier(store, 5, seen, |_| {
        disk.fill();
        Ok(())
    })
}
