//! The trace of a node that serves alone, after a loss of power at each call: with a base, it names each place in which the store
//! differs from the other copy (rule P28). The other copy has had all that was mirrored, also what this node loses.

use std::ops::ControlFlow;

use lockstep_delta::{
    BarrierEffect, BarrierEvent, BarrierMessage, BarrierName, Interval, MarkAccount,
};
use lockstep_fs::store::{ChangedRecords, DeltaWalk, TraceAccess};
use lockstep_fs::{OpError, Store, StoreError, StoreView, keys};
use lockstep_lossy::disk::{CallClass, Disk, Survivors, Verdict};
use lockstep_types::{AllocateMode, BootId, Errno, FileName, Ino, MetaOp, MetaRequest, NodeKind};

use crate::harness::{AMPLE, BASE, LAST, SURVIVORS, new_disk, open, open_in, osn_and_time};

const PART: u64 = 64 << 10;
const FILE_PARTS: u64 = 40;

/// The account of the other node, which knows the barrier and has no marks.
fn account(base: BarrierName) -> MarkAccount {
    MarkAccount {
        known: vec![base],
        ..MarkAccount::default()
    }
}

/// A client of a store that may stop at any moment.
struct Client<'a> {
    store: &'a Store,
    count: u64,
}

impl<'a> Client<'a> {
    const fn new(store: &'a Store, count: u64) -> Self {
        Self { store, count }
    }

    fn meta(&mut self, request: MetaRequest) -> Result<(), OpError> {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        self.store.commit(&MetaOp { osn, time, request }).map(drop)
    }

    fn make(&mut self, text: &str, ino: Ino) -> Result<(), OpError> {
        self.meta(MetaRequest::creation(Ino::ROOT, name(text), ino, NodeKind::File).request())
    }

    fn create(&mut self, text: &str) -> Result<Ino, OpError> {
        let ino = self.store.next_ino()?;
        self.make(text, ino).map(|()| ino)
    }

    fn write(&mut self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        let byte = u8::try_from(self.count % 251).unwrap_or(1);
        let data = vec![byte; usize::try_from(length).unwrap_or(0)];
        self.store.barriers().mark_write(ino, offset, length);
        self.store.write(ino, offset, &data, osn, time)
    }

    fn remove(&mut self, text: &str, ino: Ino) -> Result<(), OpError> {
        let parent = Ino::ROOT;
        let name = name(text);
        self.meta(MetaRequest::Unlink { parent, name })?;
        self.meta(MetaRequest::Reap { ino })
    }

    fn truncate(&mut self, ino: Ino, size: u64) -> Result<(), OpError> {
        let drop_set_id = false;
        self.meta(MetaRequest::Truncate {
            ino,
            size,
            drop_set_id,
        })
    }
}

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

/// A disk with files, all of which is stable on both nodes, and the name of that barrier.
struct Pair {
    disk: Disk,
    files: [Ino; 4],
    made: Ino,
    base: BarrierName,
}

impl Pair {
    fn new() -> Self {
        Self::beside(|_| ())
    }

    /// The same with further files.
    fn beside(further: impl FnOnce(&mut Client<'_>)) -> Self {
        let disk = new_disk();
        let store = open(&disk);
        let mut client = Client::new(&store, 0);
        further(&mut client);
        let files = ["a", "b", "gone", "kept"].map(|text| client.create(text).unwrap());
        for ino in files {
            client.write(ino, 0, FILE_PARTS * PART).unwrap();
        }
        let made = store.next_ino().unwrap();
        let from = Interval::new(1);
        let barriers = store.barriers();
        barriers.handle(BarrierEvent::MirroringBegun { from });
        let effects = barriers.handle(BarrierEvent::Due { nonce: [1; 16] });
        let Some(BarrierEffect::Sync(names)) = effects.last() else {
            panic!("{effects:?}");
        };
        barriers.make_stable().unwrap();
        assert!(barriers.note_names(*names).unwrap());
        barriers.handle(BarrierEvent::Synced);
        let base = names.reached.unwrap();
        let reached = BarrierMessage::Reached(base);
        barriers.handle(BarrierEvent::Received(reached));
        barriers.drop_columns().unwrap();
        Self {
            disk,
            files,
            made,
            base,
        }
    }

    /// The other copy, with each mirrored change.
    fn other(&self) -> Store {
        let store = open(&self.disk.fork());
        self.mirror(&store).unwrap();
        store
    }

    /// The mirrored changes since the barrier.
    fn mirror(&self, store: &Store) -> Result<(), OpError> {
        let [first, second, gone, _] = self.files;
        let mut client = Client::new(store, 1000);
        client.write(first, 3 * PART, 100)?;
        // The other copy is longer then.
        client.write(first, FILE_PARTS * PART, 3 * PART)?;
        client.make("made", self.made)?;
        client.write(self.made, 0, 2 * PART)?;
        client.truncate(second, 30 * PART)?;
        client.remove("gone", gone)
    }

    /// A primary in sync that has mirrored, without a sync.
    fn primary(&self) -> (Disk, Store) {
        let disk = self.disk.fork();
        let store = open(&disk);
        store.delta().end_equal();
        self.mirror(&store).unwrap();
        (disk, store)
    }

    /// Whether the store names each difference from the other copy; `None` if everything is compared.
    fn check(&self, store: &Store, other: &Store, what: &str) -> Option<()> {
        if !store
            .delta()
            .adopt_base(self.base, BASE, &account(self.base), &[])
        {
            return None;
        }
        let changed = store.delta().adopted_records().unwrap();
        let image = store.delta().begin_image(false);
        store.delta().image_held(image, None);
        store.delta().image_arrived(image);
        let walk = store.delta().begin_walk(BASE, LAST).unwrap();
        let (here, there) = (records(store), records(other));
        let differing = here.iter().filter(|record| !there.contains(record));
        let differing = differing.chain(there.iter().filter(|record| !here.contains(record)));
        for (key, _) in differing {
            assert!(names_record(key, &changed, &walk), "{what}: {key:?}");
        }
        for ino in inodes(&here) {
            let (here, there) = (content(store, ino), content(other, ino));
            for part in 0..FILE_PARTS + 10 {
                let is_equal = part_of(&here, part) == part_of(&there, part);
                let is_named = is_equal || names_part(ino, part, &walk);
                assert!(is_named, "{what}: part {part} of {ino}");
            }
        }
        Some(())
    }
}

/// The node leaves the sync, and has a trace if this returns true.
fn leave(store: &Store) -> Result<bool, StoreError> {
    store.barriers().handle(BarrierEvent::MirroringEnded);
    store.delta().begin_alone(BASE);
    store.delta().settle();
    store.barriers().hide_names()?;
    TraceAccess::of(store).begin()
}

/// The changes of a node that is alone, up to the stop.
fn change(pair: &Pair, store: &Store, from: u64) -> Result<(), OpError> {
    let [first, second, _, kept] = pair.files;
    let mut client = Client::new(store, from);
    client.write(first, 10 * PART + 100, 3 * PART)?;
    let new = client.create(&format!("new {from}"))?;
    client.write(new, 0, 100)?;
    client.write(new, 20 * PART, 100)?;
    client.truncate(second, 7 * PART)?;
    store.checkpoint()?;
    client.write(second, 30 * PART, 10)?;
    client.meta(MetaRequest::Allocate {
        ino: first,
        offset: 20 * PART,
        length: 5000,
        mode: AllocateMode::PunchHole,
    })?;
    if from < 3000 {
        client.remove("kept", kept)?;
    }
    store.checkpoint()?;
    store.collect_garbage()?;
    client.create(&format!("last {from}"))?;
    store.sync_file(new, true)?;
    client.write(first, 0, 10)
}

/// All records that both copies have.
fn records(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    for table in keys::REPLICATED {
        let mut each = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        store.tree().scan(&keys::table(table), &mut each).unwrap();
    }
    found
}

fn inodes(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<Ino> {
    let of_inodes = records
        .iter()
        .filter(|(key, _)| key.first() == Some(&keys::INODES));
    let inodes = of_inodes.filter_map(|(key, _)| keys::ino_of(key));
    inodes.filter(|ino| *ino != Ino::ROOT).collect()
}

/// The content of a file; nothing of a file that is not there.
fn content(store: &Store, ino: Ino) -> Vec<u8> {
    let Ok(attr) = store.tree().getattr(ino) else {
        return Vec::new();
    };
    let mut bytes = vec![0; usize::try_from(attr.size).unwrap()];
    let count = store.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn part_of(content: &[u8], part: u64) -> &[u8] {
    let mut parts = content.chunks(usize::try_from(PART).unwrap());
    parts
        .nth(usize::try_from(part).unwrap())
        .unwrap_or_default()
}

fn names_file(ino: Ino, walk: &DeltaWalk) -> bool {
    walk.rest.is_some_and(|rest| ino.get() >= rest.next)
}

/// Whether the delta has this record, or sends it with the file.
fn names_record(key: &Vec<u8>, records: &ChangedRecords, walk: &DeltaWalk) -> bool {
    let with_file = keys::ino_of(key).filter(|_| key.first() == Some(&keys::INODES));
    records.all
        || records.keys.contains(key)
        || with_file.is_some_and(|ino| names_file(ino, walk) || walk.content.contains_key(&ino))
}

fn names_part(ino: Ino, part: u64, walk: &DeltaWalk) -> bool {
    let file = walk.content.get(&ino);
    let next = file.and_then(|file| file.next(part * PART));
    names_file(ino, walk) || next.is_some_and(|run| run.start == part * PART)
}

/// Loses power at each call in this way, from the begin alone on. Returns the number of losses, and of those with a base.
fn lose_power_at_each_call(pair: &Pair, verdict: Verdict) -> (u64, u64) {
    let other = pair.other();
    let mut with_base = 0;
    for calls in 1.. {
        let (disk, store) = pair.primary();
        disk.set_verdict(calls, verdict);
        let has_trace = leave(&store).unwrap_or(false);
        let done = has_trace && change(pair, &store, 2000).is_ok();
        for survivors in SURVIVORS {
            let what = format!("call {calls}, {survivors:?}");
            let left = disk.after_power_loss(survivors, calls);
            let store = open_in(&left, BootId::from_bytes([2; 16]));
            let found = pair.check(&store, &other, &what);
            assert!(found.is_some() || !has_trace, "{what}: no base");
            with_base += u64::from(found.is_some());
        }
        if done {
            return (calls, with_base);
        }
    }
    (0, 0)
}

#[test]
fn a_loss_of_power_at_any_call_leaves_a_trace_that_names_every_difference() {
    let (calls, with_base) = lose_power_at_each_call(&Pair::new(), Verdict::CrashBefore);
    assert!(calls > 60 && with_base > 100, "{calls}, {with_base}");
}

#[test]
fn a_loss_of_power_in_the_middle_of_any_call_does_so_too() {
    let (calls, _) = lose_power_at_each_call(&Pair::new(), Verdict::CrashTorn(13));
    assert!(calls > 60, "{calls}");
}

/// The trace goes on over a start, and over a kill of that process. A loss of power at any call of the next start, or of the changes
/// behind it, has a trace again.
#[test]
fn a_trace_outlives_a_second_loss_of_power() {
    let pair = Pair::new();
    let other = pair.other();
    let (disk, store) = pair.primary();
    assert!(leave(&store).unwrap());
    change(&pair, &store, 2000).unwrap();
    let lost = disk.after_power_loss(Survivors::Mixed { percent: 60 }, 7);
    let options = |boot| BootId::from_bytes([boot; 16]);
    for calls in (1..).step_by(3) {
        let disk = lost.fork();
        disk.set_verdict(calls, Verdict::CrashBefore);
        let opened = crate::harness::try_open_in(&disk, options(2));
        let done = opened.is_ok_and(|store| {
            assert!(TraceAccess::of(&store).is_active());
            assert!(store.delta().records(BASE, LAST).is_none());
            change(&pair, &store, 3000).is_ok()
        });
        for survivors in SURVIVORS {
            let what = format!("call {calls}, {survivors:?}");
            let left = disk.after_power_loss(survivors, calls);
            let store = open_in(&left, options(3));
            assert!(pair.check(&store, &other, &what).is_some(), "{what}");
        }
        // The same, with a kill of the process before.
        let killed = disk.fork();
        let store = open_in(&killed, options(2));
        assert!(TraceAccess::of(&store).is_active(), "call {calls}");
        let left = killed.after_power_loss(Survivors::Nothing, calls);
        let store = open_in(&left, options(3));
        let what = format!("call {calls}, killed");
        assert!(pair.check(&store, &other, &what).is_some(), "{what}");
        if done {
            assert!(calls > 60);
            return;
        }
    }
}

/// A stop of the process, clean or not, and then a loss of power.
#[test]
fn a_trace_goes_on_over_a_start_of_the_process() {
    let pair = Pair::new();
    let other = pair.other();
    for is_clean in [false, true] {
        let (disk, store) = pair.primary();
        assert!(leave(&store).unwrap());
        change(&pair, &store, 2000).unwrap();
        if is_clean {
            store.close().unwrap();
        }
        let disk = disk.fork();
        let store = open(&disk);
        assert!(TraceAccess::of(&store).is_active(), "clean: {is_clean}");
        change(&pair, &store, 3000).unwrap();
        let left = disk.after_power_loss(Survivors::Nothing, 1);
        let store = open_in(&left, BootId::from_bytes([2; 16]));
        let what = format!("clean: {is_clean}");
        assert!(pair.check(&store, &other, &what).is_some(), "{what}");
    }
}

/// A way in which a trace says nothing any more.
type End = fn(&Store);

/// A change that the trace does not get ends the trace before.
#[test]
fn a_trace_ends_before_a_change_that_it_lacks() {
    let pair = Pair::new();
    let ends: [(&str, End); 4] = [
        ("end", |store| store.delta().end()),
        ("follow", |store| store.delta().follow(BASE)),
        ("equal", |store| store.delta().end_equal()),
        ("lead", |store| store.delta().lead_alone(BASE.next(), false)),
    ];
    for (what, end) in ends {
        for with_records in [false, true] {
            let (disk, store) = pair.primary();
            assert!(leave(&store).unwrap());
            end(&store);
            let mut client = Client::new(&store, 2000);
            if with_records {
                client.create("new").unwrap();
            } else {
                client.write(pair.files[0], 0, 10).unwrap();
            }
            assert!(!TraceAccess::of(&store).is_active(), "{what}");
            for survivors in SURVIVORS {
                let left = disk.after_power_loss(survivors, 1);
                let store = open_in(&left, BootId::from_bytes([2; 16]));
                assert_eq!(store.delta().base_with(&account(pair.base)), None, "{what}");
            }
        }
    }
}

/// A resync is about to begin: from then on a loss of power costs a comparison of everything.
#[test]
fn a_trace_that_has_ended_is_none_after_a_loss_of_power() {
    let pair = Pair::new();
    let (disk, store) = pair.primary();
    assert!(leave(&store).unwrap());
    store.delta().keep_in_columns();
    TraceAccess::of(&store).end().unwrap();
    assert!(
        !TraceAccess::of(&store).begin().unwrap(),
        "while it mirrors"
    );
    let left = disk.after_power_loss(Survivors::Everything, 1);
    let lost = open_in(&left, BootId::from_bytes([2; 16]));
    assert_eq!(lost.delta().base_with(&account(pair.base)), None);
    // The resync has lost its connection.
    store.barriers().serve_alone();
    assert!(TraceAccess::of(&store).begin().unwrap());
    change(&pair, &store, 2000).unwrap();
    let left = disk.after_power_loss(Survivors::Nothing, 1);
    let lost = open_in(&left, BootId::from_bytes([2; 16]));
    assert!(pair.check(&lost, &pair.other(), "again").is_some());
}

/// A disk without room for the trace: the names stay hidden, no change is lost, and the trace begins later.
#[test]
fn a_full_disk_has_no_trace_until_there_is_room() {
    let pair = Pair::new();
    let (disk, store) = pair.primary();
    disk.fill();
    let error = leave(&store).unwrap_err();
    assert!(error.is_full_disk(), "{error}");
    assert!(!store.is_poisoned() && !TraceAccess::of(&store).is_active());
    let left = disk.after_power_loss(Survivors::Everything, 1);
    left.set_capacity(AMPLE);
    let lost = open_in(&left, BootId::from_bytes([2; 16]));
    assert_eq!(lost.delta().base_with(&account(pair.base)), None);
    disk.set_capacity(AMPLE);
    assert!(TraceAccess::of(&store).begin().unwrap());
    // A disk that gets full stops no mark.
    disk.fill();
    Client::new(&store, 2000)
        .write(pair.files[0], 20 * PART, 10)
        .unwrap();
    disk.set_capacity(AMPLE);
    let left = disk.after_power_loss(Survivors::Mixed { percent: 50 }, 3);
    let lost = open_in(&left, BootId::from_bytes([2; 16]));
    assert!(pair.check(&lost, &pair.other(), "full").is_some());
}

/// A sync of the trace that fails poisons the store, and the change is not made.
#[test]
fn a_failed_sync_of_the_trace_stops_the_change() {
    let pair = Pair::new();
    let (disk, store) = pair.primary();
    assert!(leave(&store).unwrap());
    disk.fail_calls(CallClass::Sync, Errno::Io);
    let before = content(&store, pair.files[0]);
    let mut client = Client::new(&store, 2000);
    assert!(client.write(pair.files[0], 20 * PART, 10).is_err());
    disk.stop_failing();
    assert_eq!(content(&store, pair.files[0]), before);
    assert!(client.write(pair.files[0], 20 * PART, 10).is_err());
}

/// More regions than a trace has slots for, of which a store of these tests has 64. The trace then says that the content of each file
/// may differ.
#[test]
fn a_trace_with_too_many_regions_names_all_content() {
    const REGIONS: u64 = 80;
    let mut long = Ino::ROOT;
    let pair = Pair::beside(|client| {
        long = client.create("long").unwrap();
        client.truncate(long, REGIONS << 20).unwrap();
    });
    for changed in [20, REGIONS] {
        let (disk, store) = pair.primary();
        assert!(leave(&store).unwrap());
        let mut client = Client::new(&store, 2000);
        for region in 0..changed {
            client.write(long, region << 20, 10).unwrap();
        }
        assert!(TraceAccess::of(&store).is_active());
        let left = disk.after_power_loss(Survivors::Nothing, 1);
        let store = open_in(&left, BootId::from_bytes([2; 16]));
        let account = account(pair.base);
        assert!(store.delta().adopt_base(pair.base, BASE, &account, &[]));
        let image = store.delta().begin_image(false);
        store.delta().image_held(image, None);
        store.delta().image_arrived(image);
        let walk = store.delta().begin_walk(BASE, LAST).unwrap();
        let is_named = |region| names_part(long, region << 4, &walk);
        assert!((0..changed).all(is_named), "{changed}: {walk:?}");
        let unchanged = pair.files[3];
        assert_eq!(names_file(unchanged, &walk), changed == REGIONS, "{walk:?}");
    }
}
