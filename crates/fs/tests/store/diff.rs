//! The differences between snapshots, against those of deep copies of a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_fs::store::{
    DiffAttribute, DiffChange, DiffCursor, DiffEntry, DiffPage, DiffPlace, DiffRange, DiffReader,
    DiffWish, ImageChunk, SnapshotAccess, SnapshotMark,
};
use lockstep_fs::{Store, keys};
use lockstep_model::{Body, Model};
use lockstep_types::{
    Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode, SnapshotId, SnapshotKind, SnapshotName,
};
use proptest::prelude::*;

use crate::durability::Client;
use crate::harness::{Node, osn_and_time};
use crate::snapshots::{PastStep, PastWorld, past_step};
use crate::steps::{Step, step};

const BLOCK: usize = 4096;
/// Work of a page that has the whole difference.
const WHOLE: usize = 1 << 20;

/// A name: its directory, and the name there.
type Name = (Ino, FileName);

fn mark(store: &Store, id: SnapshotId) -> SnapshotMark {
    let time = SnapshotAccess::of(store).get(id).unwrap().time;
    SnapshotMark { id, time }
}

/// The two moments of a difference; `None` for the present.
type Moments = (SnapshotId, Option<SnapshotId>);

/// Reads a page. The cursor of the page was a text meanwhile, and the reader is a new one.
fn page(store: &Store, (from, to): Moments, place: DiffPlace, wish: DiffWish) -> DiffPage {
    let cursor = DiffCursor {
        from: mark(store, from),
        to: to.map(|to| mark(store, to)),
        place,
    };
    let read: DiffCursor = cursor.to_string().parse().unwrap();
    assert_eq!(read, cursor);
    let mut reader = DiffReader::at(store, &read).unwrap();
    let page = reader.page(&read.place, wish).unwrap();
    if let Some(next) = &page.next {
        assert!(*next > read.place, "{next:?}");
    }
    page
}

const fn wish(work: usize) -> DiffWish {
    DiffWish { work, bytes: true }
}

/// The whole difference, page by page.
fn diff(store: &Store, moments: Moments, wish: DiffWish) -> Vec<DiffEntry> {
    let (mut found, mut next) = (Vec::new(), Some(DiffPlace::BEGIN));
    while let Some(place) = next.take() {
        let page = page(store, moments, place, wish);
        found.extend(page.entries);
        next = page.next;
    }
    joined(found)
}

/// Puts the ranges of continued entries behind those of the first one.
fn joined(found: Vec<DiffEntry>) -> Vec<DiffEntry> {
    let mut joined: Vec<DiffEntry> = Vec::new();
    for entry in found {
        if !entry.continued {
            joined.push(entry);
            continue;
        }
        assert_eq!(entry.change, DiffChange::Changed);
        assert!(entry.attributes.is_empty() && !entry.xattrs && !entry.ranges.is_empty());
        let first = joined.iter_mut().find(|it| {
            let has_bytes = !matches!(it.change, DiffChange::Linked | DiffChange::Unlinked);
            it.node == entry.node && has_bytes && it.change != DiffChange::Deleted
        });
        let first = first.unwrap();
        assert_eq!((&first.path, first.size), (&entry.path, entry.size));
        for range in entry.ranges {
            match first.ranges.last_mut() {
                Some(last)
                    if last.bytes.end == range.bytes.start && last.is_zero == range.is_zero =>
                {
                    last.bytes.end = range.bytes.end;
                }
                _ => first.ranges.push(range),
            }
        }
    }
    joined
}

fn names(model: &Model, ino: Ino) -> BTreeSet<Name> {
    let Ok(node) = model.node(ino) else {
        return BTreeSet::new();
    };
    node.links.clone()
}

fn is_named(model: &Model, ino: Ino) -> bool {
    model.node(ino).is_ok() && !model.is_orphan(ino)
}

fn path(model: &Model, (directory, name): &Name) -> Vec<u8> {
    let mut path = name.as_bytes().to_vec();
    let mut at = *directory;
    while at != Ino::ROOT {
        let (above, name) = model.node(at).unwrap().links.first().unwrap().clone();
        path = [name.as_bytes(), b"/", &path].concat();
        at = above;
    }
    path
}

fn paths(model: &Model, names: &BTreeSet<Name>) -> BTreeSet<Vec<u8>> {
    names.iter().map(|name| path(model, name)).collect()
}

fn content(model: &Model, ino: Ino) -> Option<Vec<u8>> {
    model.content(ino).ok().map(lockstep_model::Content::bytes)
}

fn expected_attributes(old: &Model, new: &Model, ino: Ino) -> Vec<DiffAttribute> {
    let (before, now) = (old.attr(ino).unwrap(), new.attr(ino).unwrap());
    let all = [
        (DiffAttribute::Mode, before.mode != now.mode),
        (DiffAttribute::Flags, before.flags != now.flags),
        (DiffAttribute::Owner, before.uid != now.uid),
        (DiffAttribute::Group, before.gid != now.gid),
        (DiffAttribute::Links, before.nlink != now.nlink),
        (
            DiffAttribute::Size,
            now.kind == NodeKind::File && before.size != now.size,
        ),
        (DiffAttribute::Atime, before.atime != now.atime),
        (DiffAttribute::Mtime, before.mtime != now.mtime),
        (DiffAttribute::Ctime, before.ctime != now.ctime),
        (DiffAttribute::Target, old.target(ino) != new.target(ino)),
        (DiffAttribute::Device, before.rdev != now.rdev),
    ];
    let changed = all.into_iter().filter(|(_, differs)| *differs);
    changed.map(|(attribute, _)| attribute).collect()
}

/// Whether a block, which may be the last one and short, differs.
fn block(bytes: &[u8], number: usize) -> &[u8] {
    let start = (number * BLOCK).min(bytes.len());
    let end = ((number + 1) * BLOCK).min(bytes.len());
    &bytes[start..end]
}

/// Checks the ranges of a file: they bring the older content to the newer one, and no block within the older size is there in vain.
fn check_ranges(old: Option<&[u8]>, new: &[u8], ranges: &[DiffRange]) {
    let mut applied = old.unwrap_or_default().to_vec();
    applied.resize(new.len(), 0);
    let older = applied.clone();
    let mut last = 0;
    for DiffRange { bytes, is_zero } in ranges {
        assert!(bytes.start >= last && bytes.start < bytes.end, "{ranges:?}");
        last = bytes.end;
        let range = usize::try_from(bytes.start).unwrap()..usize::try_from(bytes.end).unwrap();
        assert!(range.start % BLOCK == 0 && (range.end % BLOCK == 0 || range.end == new.len()));
        let source = &new[range.clone()];
        if *is_zero {
            assert!(source.iter().all(|byte| *byte == 0));
        }
        applied[range].copy_from_slice(source);
    }
    assert!(applied == new, "{ranges:?}");
    let within = old.map_or(0, |old| old.len().div_ceil(BLOCK));
    for number in 0..within.min(new.len().div_ceil(BLOCK)) {
        let offset = (number * BLOCK) as u64;
        let is_told = ranges.iter().any(|range| range.bytes.contains(&offset));
        let differs = block(&older, number) != block(new, number);
        assert_eq!(is_told, differs, "block {number}");
    }
}

/// The entries about one inode.
#[derive(Default)]
struct Telling<'a> {
    /// The entry of the inode itself; two if another one has its number.
    own: Vec<&'a DiffEntry>,
    linked: BTreeSet<Vec<u8>>,
    unlinked: BTreeSet<Vec<u8>>,
}

fn told(entries: &[DiffEntry]) -> BTreeMap<Ino, Telling<'_>> {
    let mut told: BTreeMap<Ino, Telling<'_>> = BTreeMap::new();
    for entry in entries {
        let of = told.entry(entry.node.0).or_default();
        let is_new = match entry.change {
            DiffChange::Linked => of.linked.insert(entry.path.clone()),
            DiffChange::Unlinked => of.unlinked.insert(entry.path.clone()),
            _ => {
                of.own.push(entry);
                true
            }
        };
        assert!(is_new, "told twice: {entry:?}");
    }
    told
}

impl Telling<'_> {
    fn own(&self) -> Option<&DiffEntry> {
        assert!(self.own.len() <= 1, "told twice: {:?}", self.own);
        self.own.first().copied()
    }

    /// The only entry of the inode of this kind of change.
    fn only(&self, change: DiffChange) -> &DiffEntry {
        let mut all = self.own.iter().filter(|entry| entry.change == change);
        let (first, second) = (all.next(), all.next());
        assert!(second.is_none(), "told twice: {:?}", self.own);
        first.unwrap()
    }
}

fn check(old: &Model, new: &Model, entries: &[DiffEntry], bytes: bool) {
    let told = told(entries);
    let all: BTreeSet<Ino> = old.nodes().chain(new.nodes()).map(|(ino, _)| ino).collect();
    assert!(told.keys().all(|ino| all.contains(ino)));
    let nothing = Telling::default();
    for ino in all {
        let told = told.get(&ino).unwrap_or(&nothing);
        let kinds = [old, new].map(|model| model.node(ino).map(|node| node.kind));
        match (is_named(old, ino), is_named(new, ino)) {
            (true, true) if kinds[0] == kinds[1] => check_same(old, new, ino, told, bytes),
            (was_here, is_here) => {
                let count = usize::from(was_here) + usize::from(is_here);
                assert_eq!(told.own.len(), count, "{ino}: {:?}", told.own);
                if is_here {
                    check_created(new, ino, told, bytes);
                }
                if was_here {
                    check_deleted(old, ino, told);
                }
                assert!(is_here || told.linked.is_empty());
                assert!(was_here || told.unlinked.is_empty());
            }
        }
    }
}

fn check_created(new: &Model, ino: Ino, told: &Telling<'_>, bytes: bool) {
    let own = told.only(DiffChange::Created);
    assert_eq!(own.from, None);
    let mut all = told.linked.clone();
    assert!(all.insert(own.path.clone()));
    assert_eq!(all, paths(new, &names(new, ino)));
    assert_eq!(own.node.1, new.node(ino).unwrap().kind);
    if let Some(content) = content(new, ino) {
        assert_eq!(own.size, Some(content.len() as u64));
        if bytes {
            check_ranges(None, &content, &own.ranges);
        }
    }
}

fn check_deleted(old: &Model, ino: Ino, told: &Telling<'_>) {
    let own = told.only(DiffChange::Deleted);
    assert!(own.from.is_none() && own.ranges.is_empty());
    let mut all = told.unlinked.clone();
    assert!(all.insert(own.path.clone()));
    assert_eq!(all, paths(old, &names(old, ino)));
}

fn check_same(old: &Model, new: &Model, ino: Ino, told: &Telling<'_>, bytes: bool) {
    let (before, now) = (names(old, ino), names(new, ino));
    let gone: BTreeSet<Name> = before.difference(&now).cloned().collect();
    let come: BTreeSet<Name> = now.difference(&before).cloned().collect();
    let (mut all_gone, mut all_come) = (told.unlinked.clone(), told.linked.clone());
    let is_renamed = told
        .own()
        .is_some_and(|own| own.change == DiffChange::Renamed);
    if let Some(own) = told.own().filter(|_| is_renamed) {
        assert!(all_gone.insert(own.from.clone().unwrap()) && all_come.insert(own.path.clone()));
    }
    assert_eq!(all_gone, paths(old, &gone), "{ino}");
    assert_eq!(all_come, paths(new, &come), "{ino}");
    if before.is_disjoint(&now) && ino != Ino::ROOT {
        assert!(is_renamed);
    }
    let attributes = expected_attributes(old, new, ino);
    let node = |model: &Model| model.node(ino).unwrap().xattrs.clone();
    let xattrs = node(old) != node(new);
    let bodies = content(old, ino).zip(content(new, ino));
    let bodies = bodies.filter(|_| bytes);
    let has_bytes = bodies.as_ref().is_some_and(|(old, new)| old != new);
    let Some(own) = told.own() else {
        assert!(attributes.is_empty() && !xattrs && !has_bytes, "{ino}");
        return;
    };
    assert_eq!(own.attributes, attributes, "{ino}");
    assert_eq!(own.xattrs, xattrs, "{ino}");
    let path_now = own.path.clone();
    if !is_renamed {
        assert_eq!(own.change, DiffChange::Changed);
        let paths = paths(new, &now.intersection(&before).cloned().collect());
        let is_root = ino == Ino::ROOT && path_now == b".";
        assert!(is_root || paths.contains(&path_now), "{ino}");
    }
    if let Some((old, new)) = bodies {
        assert_eq!(own.size, Some(new.len() as u64));
        check_ranges(Some(&old), &new, &own.ranges);
    }
    assert!(matches!(new.node(ino).unwrap().body, Body::File(_)) || own.ranges.is_empty());
}

/// Compares the differences of all pairs of moments.
fn check_all(world: &PastWorld) {
    let store = world.store();
    let moments = world.moments();
    for (nth, (from, old)) in moments.iter().enumerate() {
        let later = moments.iter().skip(nth);
        let ends = later.map(|(to, new)| (Some(*to), *new));
        for (to, new) in ends.chain([(None, world.model())]) {
            let whole = diff(store, (*from, to), wish(WHOLE));
            check(old, new, &whole, true);
            let without = DiffWish {
                bytes: false,
                ..wish(7)
            };
            check(old, new, &diff(store, (*from, to), without), false);
            for work in [1, 5] {
                assert_eq!(diff(store, (*from, to), wish(work)), whole);
            }
        }
    }
}

/// The snapshots between two moments go while their difference is read, one after each page.
fn delete_between(world: &mut PastWorld) {
    let ids: Vec<SnapshotId> = world.moments().into_keys().collect();
    let [first, between @ .., last] = &ids[..] else {
        return;
    };
    let moments = (*first, Some(*last));
    let whole = diff(world.store(), moments, wish(WHOLE));
    let (mut found, mut next) = (Vec::new(), Some(DiffPlace::BEGIN));
    let mut between = between.iter().rev();
    while let Some(place) = next.take() {
        let page = page(world.store(), moments, place, wish(3));
        found.extend(page.entries);
        next = page.next;
        if let Some(id) = between.next() {
            world.remove(*id);
        }
    }
    assert_eq!(joined(found), whole);
}

/// Makes the names and attributes of a store equal to those of another one, as a resync does.
fn load_image(from: &Store, to: &Store) {
    from.image().settle_records().unwrap();
    let image = to.image();
    image.begin().unwrap();
    for table in keys::REPLICATED {
        let mut after = Vec::new();
        loop {
            let chunk = ImageChunk::read(&from.tree(), table, &after, 200).unwrap();
            image.load_chunk(&chunk).unwrap();
            if chunk.last {
                break;
            }
            after.clone_from(&chunk.records.last().unwrap().key);
        }
    }
    image.prepare_finish().unwrap();
    let below = from.image().inos_below();
    image.finish(from.applied(), below).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The difference of each two moments is that of their deep copies, whole and in pages, over restarts, kills, and snapshots that go.
    #[test]
    fn a_difference_is_that_of_the_two_moments(steps in prop::collection::vec(past_step(4), 1..90)) {
        let mut world = PastWorld::new();
        for (number, step) in steps.iter().enumerate() {
            world.step(step);
            if number % 16 == 15 {
                check_all(&world);
            }
        }
        check_all(&world);
        world.kill();
        check_all(&world);
        delete_between(&mut world);
        check_all(&world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A copy went apart, with inodes, cookies and names of its own, and a resync makes it equal to the other one. The snapshot from before
    /// the resync differs from the present and from later snapshots by the changes of both sides.
    #[test]
    fn a_copy_from_before_a_resync_differs_by_what_it_had_alone(
        common in prop::collection::vec(step(4), 0..40),
        here in prop::collection::vec(step(4), 0..40),
        there in prop::collection::vec(step(4), 0..40),
        later in prop::collection::vec(past_step(4), 0..40),
    ) {
        let [mut deposed, mut other] = [(); 2].map(|()| PastWorld::new());
        let run = |world: &mut PastWorld, steps: &[Step]| {
            for step in steps {
                world.step(&PastStep::Present(step.clone()));
            }
        };
        run(&mut deposed, &common);
        run(&mut deposed, &here);
        run(&mut other, &common);
        // Another primary gives out higher numbers of operations.
        other.begin_behind(&deposed);
        run(&mut other, &there);
        let (lost, before) = deposed.lose();
        load_image(other.store(), deposed.store());
        let moments = (lost, None);
        let without = |work| DiffWish { bytes: false, ..wish(work) };
        let present = other.model();
        let store = deposed.store();
        let whole = diff(store, moments, without(WHOLE));
        check(&before, present, &whole, false);
        assert_eq!(diff(store, moments, without(1)), whole);
        deposed.follow(&other);
        for step in &later {
            deposed.step(step);
        }
        let ends = deposed.moments().into_iter().filter(|(to, _)| *to > lost);
        let ends: Vec<_> = ends.map(|(to, model)| (Some(to), model)).collect();
        for (to, model) in ends.into_iter().chain([(None, deposed.model())]) {
            let whole = diff(deposed.store(), (lost, to), without(WHOLE));
            check(&before, model, &whole, false);
            assert_eq!(diff(deposed.store(), (lost, to), without(2)), whole);
        }
    }
}

#[test]
fn a_difference_needs_two_snapshots_that_are_there_in_their_order() {
    let mut world = PastWorld::new();
    for _ in 0..2 {
        world.step(&PastStep::Take);
        world.step(&PastStep::Present(Step::Checkpoint));
    }
    let ids: Vec<SnapshotId> = world.moments().into_keys().collect();
    let [older, newer] = ids[..] else {
        panic!("{ids:?}");
    };
    assert!(DiffReader::open(world.store(), older, Some(older)).is_some());
    assert!(DiffReader::open(world.store(), newer, Some(older)).is_none());
    let cursor = DiffCursor {
        from: mark(world.store(), older),
        to: Some(mark(world.store(), newer)),
        place: DiffPlace::BEGIN,
    };
    let mut of_another = cursor.clone();
    of_another.from.time.secs += 1;
    assert!(DiffReader::at(world.store(), &of_another).is_none());
    let store = world.store();
    let mut reader = DiffReader::at(store, &cursor).unwrap();
    reader.page(&cursor.place, wish(WHOLE)).unwrap();
    SnapshotAccess::of(store).delete(newer).unwrap();
    let stale = reader.page(&cursor.place, wish(WHOLE));
    assert_eq!(stale.unwrap_err().errno(), Errno::Stale);
    assert!(DiffReader::at(store, &cursor).is_none());
}

/// Reads differences while a client changes names, and another one writes.
#[test]
fn a_difference_is_read_while_clients_change_files() {
    const FILES: u64 = 40;
    let (node, mut client) = (Node::new(), Client::new());
    let inos: Vec<Ino> = (0..FILES)
        .map(|number| {
            let ino = client.create(&node, &number.to_string());
            client.write(&node, ino, &[1; 9000]);
            ino
        })
        .collect();
    let store = &node.store;
    let take = |client: &mut Client, name: &str| {
        let op = client.op(MetaRequest::SnapshotCreate {
            name: SnapshotName::new(name).unwrap(),
            kind: SnapshotKind::User,
            inos_below: store.image().inos_below(),
        });
        store.commit(&op).unwrap();
        SnapshotId::of_operation(op.osn)
    };
    let from = take(&mut client, "from");
    client.unlink(&node, "0");
    client.write(&node, inos[1], b"later");
    let to = take(&mut client, "to");
    let whole = diff(store, (from, Some(to)), wish(WHOLE));
    assert_eq!(whole.len(), 3, "{whole:?}");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..20 {
                // Not the file that is written: these two exclude each other (rule P4).
                for number in 2..FILES {
                    let (old, new) = (name_in(number, round), name_in(number, round + 1));
                    let op = client.op(MetaRequest::Rename {
                        parent: Ino::ROOT,
                        name: old,
                        new_parent: Ino::ROOT,
                        new_name: new,
                        mode: RenameMode::Replace,
                    });
                    store.commit(&op).unwrap();
                }
                store.checkpoint().unwrap();
            }
            is_over.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Acquire) {
                count += 1;
                let (osn, time) = osn_and_time(1 << 20 | count);
                let ino = inos[1];
                store
                    .write(ino, count * 777 % 20_000, b"now", osn, time)
                    .unwrap();
            }
        });
        while !is_over.load(Ordering::Acquire) {
            assert_eq!(diff(store, (from, Some(to)), wish(9)), whole);
            read_present(store, from);
        }
    });
    let last = diff(store, (from, None), wish(WHOLE));
    let renamed = last
        .iter()
        .filter(|entry| entry.change == DiffChange::Renamed);
    assert_eq!(renamed.count() as u64, FILES - 2);
}

/// Reads a difference to the present, which is of no one moment.
fn read_present(store: &Store, from: SnapshotId) {
    let mut next = Some(DiffPlace::BEGIN);
    while let Some(place) = next {
        next = page(store, (from, None), place, wish(9)).next;
    }
}

/// The name of a file after a number of rounds.
fn name_in(number: u64, round: u64) -> FileName {
    let text = if round == 0 {
        number.to_string()
    } else {
        format!("{number} in round {round}")
    };
    FileName::new(text.as_bytes()).unwrap()
}
