//! Snapshots of a store that is stopped at any call of the disk: each one that was made, and not deleted, shows its moment afterwards.
//! With a deliberate bug in the keeping of blocks, one of them does not. A snapshot that an operation makes of content that is not synced says after a
//! loss of power that it is torn, or shows its moment.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_fs::snapshot_list::{SnapshotBytes, SnapshotKind};
use lockstep_fs::store::{CopyBefore, FallbackAccess, ImageChunk, SnapshotAccess};
use lockstep_fs::{OpError, StoreView, keys};
use lockstep_sim::disk::{Call, CallClass, CallKind, Survivors};
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::{AllocateMode, Errno, MetaOp, SnapshotId, SnapshotName, Timestamp};

use super::*;

const BLOCK: u64 = 4096;
const SURVIVORS: [Survivors; 3] = [
    Survivors::Nothing,
    Survivors::Everything,
    Survivors::Mixed { percent: 40 },
];

/// The names and contents that a snapshot has to show.
type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// The snapshots of a store at some moment.
#[derive(Clone, Default)]
struct Expected {
    made: BTreeMap<SnapshotId, Files>,
    /// Those whose bytes are on stable storage.
    settled: BTreeSet<SnapshotId>,
    /// A snapshot whose deletion has begun may be there or not.
    deleting: Option<SnapshotId>,
}

/// How a script makes its snapshots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Of this copy, when all of it is synced.
    Local,
    /// By an operation, at any moment.
    Operation,
}

/// One run of the script on a disk that stops at some call.
struct Script {
    store: Store,
    way: Way,
    count: u64,
    files: Files,
    inos: BTreeMap<Vec<u8>, Ino>,
    expected: Expected,
}

impl Script {
    fn new(store: Store, way: Way) -> Self {
        Self {
            store,
            way,
            count: 0,
            files: Files::new(),
            inos: BTreeMap::new(),
            expected: Expected::default(),
        }
    }

    fn number(&mut self) -> (Osn, Timestamp) {
        self.count += 1;
        let time = Timestamp {
            secs: 1_000 + i64::try_from(self.count).unwrap(),
            nanos: 0,
        };
        (osn(self.count), time)
    }

    fn commit(&mut self, request: MetaRequest) -> Result<(), OpError> {
        let (osn, time) = self.number();
        self.store.commit(&MetaOp { osn, time, request }).map(drop)
    }

    fn create(&mut self, name: &[u8]) -> Result<(), OpError> {
        let ino = self.store.next_ino()?;
        let name_of = FileName::new(name).unwrap();
        self.commit(creation(Ino::ROOT, name_of, ino, NodeKind::File))?;
        self.inos.insert(name.to_vec(), ino);
        self.files.insert(name.to_vec(), Vec::new());
        Ok(())
    }

    fn write(&mut self, name: &[u8], offset: u64, data: &[u8]) -> Result<(), OpError> {
        let (number, time) = self.number();
        self.store
            .write(self.inos[name], offset, data, number, time)?;
        let file = self.files.get_mut(name).unwrap();
        let from = index(offset);
        let to = from + data.len();
        file.resize(file.len().max(to), 0);
        file[from..to].copy_from_slice(data);
        Ok(())
    }

    fn truncate(&mut self, name: &[u8], size: u64) -> Result<(), OpError> {
        self.commit(MetaRequest::Truncate {
            ino: self.inos[name],
            size,
            drop_set_id: false,
        })?;
        self.files.get_mut(name).unwrap().resize(index(size), 0);
        Ok(())
    }

    fn punch(&mut self, name: &[u8], offset: u64, length: u64) -> Result<(), OpError> {
        self.commit(MetaRequest::Allocate {
            ino: self.inos[name],
            offset,
            length,
            mode: AllocateMode::PunchHole,
        })?;
        let file = self.files.get_mut(name).unwrap();
        file[index(offset)..index(offset + length)].fill(0);
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> Result<(), OpError> {
        let ino = self.inos[name];
        self.commit(MetaRequest::Unlink {
            parent: Ino::ROOT,
            name: FileName::new(name).unwrap(),
        })?;
        self.files.remove(name);
        self.commit(MetaRequest::Reap { ino })?;
        self.store.collect_garbage()?;
        Ok(())
    }

    /// Makes a snapshot.
    fn take(&mut self) -> Result<SnapshotId, OpError> {
        if self.way == Way::Operation {
            return self.take_by_operation();
        }
        self.store.sync_everything()?;
        let kind = SnapshotKind::Fallback {
            is_exact: true,
            own_of: None,
        };
        let snapshots = SnapshotAccess::of(&self.store);
        let id = snapshots.create_local("s".to_owned(), kind, Timestamp::default())?;
        self.expected.made.insert(id, self.files.clone());
        Ok(id)
    }

    fn take_by_operation(&mut self) -> Result<SnapshotId, OpError> {
        let (osn, time) = self.number();
        let request = MetaRequest::SnapshotCreate {
            name: SnapshotName::new(osn.to_string()).unwrap(),
            kind: SnapshotKind::User,
            inos_below: self.store.image().inos_below(),
        };
        let applied = self.store.commit(&MetaOp { osn, time, request })?;
        assert!(applied.must_be_durable());
        self.store.sync_applied(&applied)?;
        let id = SnapshotId::of_operation(osn);
        self.expected.made.insert(id, self.files.clone());
        Ok(id)
    }

    /// Puts the bytes of all snapshots on stable storage.
    fn settle(&mut self) -> Result<(), OpError> {
        SnapshotAccess::of(&self.store).settle()?;
        self.expected
            .settled
            .extend(self.expected.made.keys().copied());
        Ok(())
    }

    fn delete(&mut self, id: SnapshotId) -> Result<(), OpError> {
        self.expected.deleting = Some(id);
        match self.way {
            Way::Local => drop(SnapshotAccess::of(&self.store).delete(id)?),
            Way::Operation => {
                self.commit(MetaRequest::SnapshotDelete { id })?;
                SnapshotAccess::of(&self.store).resume_deletions()?;
            }
        }
        self.expected.made.remove(&id);
        self.expected.deleting = None;
        Ok(())
    }

    /// Every kind of change around three snapshots, of which the second and the first are deleted.
    fn run(&mut self) -> Result<(), OpError> {
        let pattern: Vec<u8> = (0..40 * index(BLOCK))
            .map(|at| (at / 100).to_le_bytes()[0] | 1)
            .collect();
        for name in [b"large", b"other"] {
            self.create(name)?;
            self.write(name, 0, &pattern)?;
        }
        self.write(b"other", 60 * BLOCK, b"behind a hole")?;
        let first = self.take()?;
        self.write(b"large", 5 * BLOCK + 100, &[0xf1; 300])?;
        self.write(b"large", 7 * BLOCK, &[0xf2; 9000])?;
        self.write(b"other", 50 * BLOCK, b"in the hole")?;
        self.create(b"young")?;
        self.write(b"young", 0, &[0xf3; 5000])?;
        self.store.checkpoint()?;
        self.truncate(b"other", 20 * BLOCK + 7)?;
        self.settle()?;
        let second = self.take()?;
        self.punch(b"large", 6 * BLOCK, 12 * BLOCK)?;
        self.write(b"other", 45 * BLOCK, b"in the hole that was cut off")?;
        self.write(b"other", 0, &[0xf4; 4096])?;
        self.write(b"young", 4000, &[0xf5; 5000])?;
        self.remove(b"other")?;
        let third = self.take()?;
        self.write(b"large", 0, &vec![0xf6; 20 * index(BLOCK)])?;
        self.remove(b"young")?;
        self.settle()?;
        self.delete(second)?;
        self.write(b"large", 30 * BLOCK, &[0xf7; 8192])?;
        self.delete(first)?;
        self.write(b"large", 36 * BLOCK, &[0xf8; 4096])?;
        self.delete(third)?;
        Ok(())
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// The content of a file as a view shows it.
fn read_view(view: &dyn StoreView, ino: Ino) -> Vec<u8> {
    let size = view.file_times(ino).unwrap().unwrap().size;
    let mut bytes = vec![0xee; usize::try_from(size).unwrap()];
    view.read_raw(ino, 0, &mut bytes).unwrap();
    bytes
}

fn show(view: &dyn StoreView) -> Files {
    let mut files = Files::new();
    let mut each = |_, entry: lockstep_fs::record::NamedEntry| {
        let name = entry.name.as_bytes().to_vec();
        files.insert(name, read_view(view, entry.ino));
        std::ops::ControlFlow::Continue(())
    };
    view.readdir(Ino::ROOT, 0, &mut each).unwrap();
    files
}

/// The first fault of the snapshots on a disk after a stop.
fn fault(disk: &Disk, boot: u8, expected: &Expected) -> Option<String> {
    let store = open(disk, boot).unwrap().store;
    for (id, files) in &expected.made {
        let torn = is_torn(&store, *id);
        if torn && (boot == BOOT || expected.settled.contains(id)) {
            return Some(format!("{id} is torn"));
        }
        match SnapshotAccess::of(&store).view(*id) {
            Some(view) if !torn && show(&view) != *files => {
                return Some(differing(&show(&view), files));
            }
            None if expected.deleting != Some(*id) => return Some(format!("{id} is gone")),
            _ => {}
        }
    }
    // The rest of a deletion goes, and the snapshots stay.
    SnapshotAccess::of(&store).resume_deletions().unwrap();
    let whole = expected
        .made
        .iter()
        .filter(|(id, _)| !is_torn(&store, **id));
    let views = whole.filter_map(|(id, files)| {
        let view = SnapshotAccess::of(&store).view(*id)?;
        Some((show(&view), files))
    });
    let mut views = views.filter(|(shown, files)| shown != *files);
    views.next().map(|(shown, files)| differing(&shown, files))
}

/// A local one is made of content that was synced before, which the store does not know.
fn is_torn(store: &Store, id: SnapshotId) -> bool {
    let record = SnapshotAccess::of(store).get(id);
    record.is_some_and(|record| record.bytes == SnapshotBytes::Torn && !id.is_local())
}

/// The first difference of two states.
fn differing(shown: &Files, files: &Files) -> String {
    let file = files
        .iter()
        .find(|(name, bytes)| shown.get(*name) != Some(bytes));
    let Some((name, bytes)) = file else {
        return "a file too many".to_owned();
    };
    let name = String::from_utf8_lossy(name);
    let Some(is) = shown.get(name.as_bytes()) else {
        return format!("{name} is missing");
    };
    let first = is.iter().zip(bytes).position(|(is, was)| is != was);
    let lengths = (is.len(), bytes.len());
    format!("{name} differs from {first:?} on, {lengths:?}")
}

/// Stops the script at its call `nth`: the process is killed, or the machine loses power. Returns a fault, and whether the script
/// ended before the call.
fn stopped_at(nth: u64, way: Way) -> (Option<String>, bool) {
    let disk = made_disk();
    let store = open(&disk, BOOT).unwrap().store;
    let verdict = match nth % 3 {
        0 => Verdict::CrashBefore,
        1 => Verdict::CrashAfter,
        _ => Verdict::CrashTorn(4096),
    };
    at_call(&disk, nth, verdict);
    let mut script = Script::new(store, way);
    let ended = script.run().is_ok();
    let Script { expected, .. } = script;
    let killed = || fault(&disk.fork(), BOOT, &expected).map(|it| format!("killed: {it}"));
    let power = |survivors| {
        let after = disk.after_power_loss(survivors, nth);
        let fault = fault(&after, NEXT_BOOT, &expected);
        fault.map(|it| format!("without power, {survivors:?}: {it}"))
    };
    let found = killed().or_else(|| SURVIVORS.into_iter().find_map(power));
    (found.map(|it| format!("call {nth}, {it}")), ended)
}

/// The first fault of a stop at the call `first` of the script or a later one.
fn first_fault(first: u64, way: Way) -> Option<String> {
    for nth in first.. {
        let (found, ended) = stopped_at(nth, way);
        if found.is_some() || ended {
            return found;
        }
    }
    None
}

#[test]
fn a_snapshot_survives_a_stop_at_any_call() {
    for way in [Way::Local, Way::Operation] {
        assert_eq!(first_fault(1, way), None);
    }
}

/// Each bug shows at some call behind the given one.
#[test]
fn a_bug_in_the_keeping_of_blocks_is_found() {
    for (mutant, first) in [
        (Mutant::KeepAfterWrite, 50),
        (Mutant::KeepUnsynced, 50),
        (Mutant::KeepTwice, 50),
        (Mutant::KeepNoHole, 50),
        (Mutant::KeepForNewestOnly, 120),
        (Mutant::BodyUnrecovered, 130),
    ] {
        activate(Some(mutant));
        let found = first_fault(first, Way::Local);
        activate(None);
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

#[test]
fn a_bug_in_the_making_of_snapshots_by_operations_is_found() {
    for mutant in [
        Mutant::FoldUnlogged,
        Mutant::TornUnnoted,
        Mutant::SettledUnsynced,
    ] {
        activate(Some(mutant));
        let found = first_fault(1, Way::Operation);
        activate(None);
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

/// A write whose old bytes find no room fails. The same write keeps them once there is room.
#[test]
fn a_block_that_cannot_be_kept_does_not_change() {
    let changes = || {
        let disk = made_disk();
        let store = open(&disk, BOOT).unwrap().store;
        let mut script = Script::new(store, Way::Local);
        script.create(b"file").unwrap();
        script.write(b"file", 0, &[1; 8192]).unwrap();
        let id = script.take_by_operation().unwrap();
        disk.fail_calls(CallClass::Write, Errno::NoSpace);
        script.write(b"file", 0, &[2; 4096]).unwrap_err();
        disk.stop_failing();
        script.write(b"file", 0, &[3; 4096]).unwrap();
        let view = SnapshotAccess::of(&script.store).view(id).unwrap();
        show(&view) != script.expected.made[&id]
    };
    assert!(!changes());
    activate(Some(Mutant::TouchedBeforeSync));
    let changes = changes();
    activate(None);
    assert!(changes, "TouchedBeforeSync is not found");
}

/// Has each write to a pack find no room.
fn fill_packs(disk: &Disk) {
    disk.observe(Some(Arc::new(|call: &Call<'_>| {
        match (call.kind, call.path.starts_with("packs/")) {
            (CallKind::Write, true) => Verdict::Fail(Errno::NoSpace),
            _ => Verdict::Go,
        }
    })));
}

/// A snapshot of the own copy gives way to a change whose old bytes find no room: no later opening shows the snapshot. One of the datastore
/// stays, and the change fails.
#[test]
fn a_snapshot_of_the_own_copy_gives_way_on_a_full_disk() {
    let shows_other_bytes = |boot: u8| {
        let disk = made_disk();
        let store = open(&disk, BOOT).unwrap().store;
        let mut script = Script::new(store, Way::Local);
        script.create(b"file").unwrap();
        script.write(b"file", 0, &[1; 8192]).unwrap();
        let id = script.take().unwrap();
        fill_packs(&disk);
        script.write(b"file", 0, &[2; 4096]).unwrap();
        disk.observe(None);
        script
            .store
            .sync_file(script.inos[&b"file"[..]], true)
            .unwrap();
        let expected = script.expected.made[&id].clone();
        let disk = if boot == BOOT {
            disk.fork()
        } else {
            disk.after_power_loss(Survivors::Nothing, 1)
        };
        let store = open(&disk, boot).unwrap().store;
        let view = SnapshotAccess::of(&store).view(id);
        let shows_other = view.is_some_and(|view| show(&view) != expected);
        SnapshotAccess::of(&store).resume_deletions().unwrap();
        assert!(shows_other || SnapshotAccess::of(&store).all().is_empty());
        shows_other
    };
    assert!(!shows_other_bytes(BOOT) && !shows_other_bytes(NEXT_BOOT));
    activate(Some(Mutant::GivenUpUnmarked));
    let found = shows_other_bytes(NEXT_BOOT);
    activate(None);
    assert!(found, "GivenUpUnmarked is not found");
}

#[test]
fn a_snapshot_of_the_datastore_does_not_give_way() {
    let disk = made_disk();
    let mut script = Script::new(open(&disk, BOOT).unwrap().store, Way::Local);
    script.create(b"file").unwrap();
    script.write(b"file", 0, &[1; 8192]).unwrap();
    let id = script.take_by_operation().unwrap();
    let expected = script.files.clone();
    let own = script.take().unwrap();
    fill_packs(&disk);
    script.write(b"file", 0, &[2; 4096]).unwrap_err();
    disk.observe(None);
    assert!(SnapshotAccess::of(&script.store).get(own).is_none());
    script.write(b"file", 0, &[3; 4096]).unwrap();
    let view = SnapshotAccess::of(&script.store).view(id).unwrap();
    assert!(show(&view) == expected);
}

/// Makes the records of a copy those of another store, as a resync does.
fn load_image(copy: &Store, from: &Store) {
    from.checkpoint().unwrap();
    copy.image().begin().unwrap();
    for table in keys::REPLICATED {
        let chunk = ImageChunk::read(&from.tree(), table, &[], usize::MAX).unwrap();
        copy.image().load_chunk(&chunk).unwrap();
    }
    copy.image().prepare_finish().unwrap();
    copy.image().finish(osn(1000), 1000).unwrap();
}

fn begin_fallback(store: &Store) {
    let copy = CopyBefore {
        is_exact: true,
        own_of: None,
        time: Timestamp::default(),
    };
    assert!(FallbackAccess::of(store).begin(copy).unwrap());
}

/// Two resyncs, of which the first one ends early: the first one removes a file, and the second one brings another file of its number. Returns
/// whether the fallback, and the copy that is put back, are those from before.
fn keeps_its_fallback() -> bool {
    let mut script = Script::new(open(&made_disk(), BOOT).unwrap().store, Way::Local);
    script.create(b"old").unwrap();
    script
        .write(b"old", 0, &vec![3; 10 * index(BLOCK)])
        .unwrap();
    begin_fallback(&script.store);
    let empty = open(&made_disk(), BOOT).unwrap().store;
    load_image(&script.store, &empty);
    begin_fallback(&script.store);
    let mut other = Script::new(open(&made_disk(), BOOT).unwrap().store, Way::Local);
    other.create(b"new").unwrap();
    other.write(b"new", 0, &[5; 9]).unwrap();
    load_image(&script.store, &other.store);
    let replica = script.store.replica();
    replica
        .put_blocks(other.inos[&b"new"[..]], 0, &[5; 9])
        .unwrap();
    let fallback = FallbackAccess::of(&script.store);
    let (id, _) = fallback.get().unwrap().unwrap();
    let view = SnapshotAccess::of(&script.store).view(id).unwrap();
    let is_kept = show(&view) == script.files;
    is_kept && fallback.put_back().unwrap() && show(&script.store.tree()) == script.files
}

#[test]
fn a_fallback_is_the_copy_from_before_the_first_resync() {
    assert!(keeps_its_fallback());
    for mutant in [Mutant::FallbackOverwritten, Mutant::KeepOfSuccessor] {
        activate(Some(mutant));
        let keeps = keeps_its_fallback();
        activate(None);
        assert!(!keeps, "{mutant:?} is not found");
    }
}
