//! Change readers: a copy that takes each answer, and nothing else, is the store (rule P34). The judge compares all names, attributes
//! and bytes, after a stop of the process at each call.

#[path = "changes/sources.rs"]
mod sources;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use lockstep_fs::store::{
    ChangeAccess, ChangePoint, ChangeQuestion, ChangedEntry, EntryChange, LostMarks, READERS_MAX,
    ReaderError, WholeAnswer,
};
use lockstep_fs::{OpError, Store, StoreView};
use lockstep_lossy::disk::{Disk, Verdict};
use lockstep_types::{
    AllocateMode, FileName, Ino, MetaOp, MetaRequest, NodeKind, RenameMode, Timestamp, XattrMode,
};

use crate::harness::{Node, new_disk, open, osn_and_time};

const PART: u64 = 64 << 10;
const READER: &str = "nightly";
const DAY: i64 = 24 * 3600;

/// An entry as a program sees it: attributes and bytes.
type Seen = (String, Vec<u8>);

/// The copy of a reader, by path.
#[derive(Clone, Default)]
struct Copy {
    entries: BTreeMap<Vec<u8>, Seen>,
    point: Option<ChangePoint>,
    drawn: u8,
}

/// A client of a store that may stop at any moment.
struct Client<'a> {
    store: &'a Store,
    count: u64,
}

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

const fn time(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
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

    fn make(&mut self, parent: Ino, text: &str, kind: NodeKind) -> Result<Ino, OpError> {
        let ino = self.store.next_ino()?;
        self.meta(MetaRequest::creation(parent, name(text), ino, kind).request())?;
        Ok(ino)
    }

    fn file(&mut self, parent: Ino, text: &str, length: u64) -> Result<Ino, OpError> {
        let ino = self.make(parent, text, NodeKind::File)?;
        self.write(ino, 0, length)?;
        Ok(ino)
    }

    fn write(&mut self, ino: Ino, offset: u64, length: u64) -> Result<(), OpError> {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        let byte = u8::try_from(self.count % 251).unwrap_or(1);
        let data = vec![byte; usize::try_from(length).unwrap_or(0)];
        self.store.write(ino, offset, &data, osn, time)
    }

    fn rename(&mut self, from: (Ino, &str), to: (Ino, &str)) -> Result<(), OpError> {
        self.meta(MetaRequest::Rename {
            parent: from.0,
            name: name(from.1),
            new_parent: to.0,
            new_name: name(to.1),
            mode: RenameMode::Replace,
        })
    }

    fn unlink(&mut self, parent: Ino, text: &str) -> Result<(), OpError> {
        let name = name(text);
        self.meta(MetaRequest::Unlink { parent, name })
    }
}

/// `None` for a refusal. A process that was stopped has errors.
fn present<T>(found: Result<T, OpError>) -> Result<Option<T>, OpError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(OpError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The attributes and bytes of an inode.
fn see(store: &Store, ino: Ino) -> Result<Option<Seen>, OpError> {
    let tree = store.tree();
    let Some(mut attr) = present(tree.getattr(ino))? else {
        return Ok(None);
    };
    attr.blocks = 0;
    let mut bytes = Vec::new();
    if attr.kind == NodeKind::File {
        bytes = vec![0; usize::try_from(attr.size).unwrap()];
        assert_eq!(store.read(ino, 0, &mut bytes)?, bytes.len());
    }
    let names = tree.listxattr(ino)?;
    let xattrs = names.iter().map(|name| tree.getxattr(ino, name));
    let xattrs: Vec<_> = xattrs.collect::<Result<_, _>>()?;
    Ok(Some((format!("{attr:?} {names:?} {xattrs:?}"), bytes)))
}

fn add_tree(
    store: &Store,
    directory: Ino,
    path: &[u8],
    into: &mut BTreeMap<Vec<u8>, Seen>,
) -> Result<(), OpError> {
    let mut found = Vec::new();
    store.tree().readdir(directory, 0, &mut |_, entry| {
        found.push(entry);
        ControlFlow::Continue(())
    })?;
    for entry in found {
        let path = match path {
            b"." => entry.name.as_bytes().to_vec(),
            above => [above, b"/", entry.name.as_bytes()].concat(),
        };
        into.insert(path.clone(), see(store, entry.ino)?.unwrap());
        if entry.kind == NodeKind::Directory {
            add_tree(store, entry.ino, &path, into)?;
        }
    }
    Ok(())
}

/// All of a store, by path.
fn whole(store: &Store) -> Result<BTreeMap<Vec<u8>, Seen>, OpError> {
    let mut all = BTreeMap::new();
    all.insert(b".".to_vec(), see(store, Ino::ROOT)?.unwrap());
    add_tree(store, Ino::ROOT, b".", &mut all)?;
    Ok(all)
}

fn find(store: &Store, path: &[u8]) -> Result<Option<Ino>, OpError> {
    let mut at = Ino::ROOT;
    for name in path.split(|byte| *byte == b'/').filter(|name| name != b".") {
        let name = FileName::new(name).unwrap();
        let Some(found) = present(store.tree().lookup(at, &name))? else {
            return Ok(None);
        };
        at = found.ino;
    }
    Ok(Some(at))
}

impl Copy {
    fn ask(
        &mut self,
        store: &Store,
        since: Option<ChangePoint>,
    ) -> Result<ChangeQuestion, ReaderError> {
        self.drawn += 1;
        let asked = ChangeAccess::of(store).ask(READER, since, [self.drawn; 16], time(DAY))?;
        let asked = asked.expect("nothing is under way");
        assert!(ChangeAccess::of(store).is_settled(&asked));
        Ok(asked)
    }

    /// Asks, and takes the answer. Returns why all was copied, if so.
    fn update(&mut self, store: &Store) -> Result<Option<WholeAnswer>, ReaderError> {
        let asked = self.ask(store, self.point)?;
        let why = self.take(store, &asked).map_err(|error| match error {
            OpError::Store(error) => ReaderError::Store(error),
            OpError::Refused(_) => panic!("{error}"),
        })?;
        self.point = Some(asked.point);
        Ok(why)
    }

    fn take(
        &mut self,
        store: &Store,
        asked: &ChangeQuestion,
    ) -> Result<Option<WholeAnswer>, OpError> {
        let mut walk = match ChangeAccess::of(store).walk(asked)? {
            Ok(walk) => walk,
            Err(why) => {
                self.entries = whole(store)?;
                return Ok(Some(why));
            }
        };
        let mut entries = self.entries.clone();
        while let Some(page) = ChangeAccess::of(store).next_page(&mut walk)?.unwrap() {
            for entry in page {
                apply(store, &entry, &mut entries)?;
            }
        }
        self.entries = entries;
        Ok(None)
    }

    #[track_caller]
    fn assert_is(&self, store: &Store, what: &str) {
        let whole = whole(store).unwrap();
        for (path, seen) in &whole {
            let here = self.entries.get(path);
            let text = String::from_utf8_lossy(path);
            assert_eq!(here.map(|it| &it.0), Some(&seen.0), "{what}: {text}");
            assert!(here.unwrap().1 == seen.1, "{what}: bytes of {text}");
        }
        for path in self.entries.keys() {
            let text = String::from_utf8_lossy(path);
            assert!(whole.contains_key(path), "{what}: {text} is gone");
        }
    }
}

/// Copies one entry as a program does, such as `rsync --delete-missing-args` does.
fn apply(
    store: &Store,
    entry: &ChangedEntry,
    copy: &mut BTreeMap<Vec<u8>, Seen>,
) -> Result<(), OpError> {
    let seen = match find(store, &entry.path)? {
        Some(ino) => see(store, ino)?,
        None => None,
    };
    let Some((attributes, bytes)) = seen else {
        let below = [&entry.path[..], b"/"].concat();
        copy.retain(|path, _| *path != entry.path && !path.starts_with(&below));
        return Ok(());
    };
    let old = copy.get(&entry.path).cloned();
    let (old_attributes, old_bytes) = old.unwrap_or_default();
    if entry.change == EntryChange::New {
        copy.insert(entry.path.clone(), (attributes, bytes));
        return Ok(());
    }
    // Only the bytes that the answer names.
    let mut patched = old_bytes;
    patched.resize(bytes.len(), 0);
    for run in &entry.ranges {
        let run = usize::try_from(run.start).unwrap()..usize::try_from(run.end).unwrap();
        let run = run.start.min(bytes.len())..run.end.min(bytes.len());
        patched[run.clone()].copy_from_slice(&bytes[run]);
    }
    let is_changed = entry.attributes || !entry.ranges.is_empty() || entry.size.is_some();
    let attributes = if is_changed {
        attributes
    } else {
        old_attributes
    };
    copy.insert(entry.path.clone(), (attributes, patched));
    Ok(())
}

/// The numbers of a store with a small tree.
#[derive(Clone, Copy)]
struct Tree {
    moved: Ino,
    deep: Ino,
    big: Ino,
    linked: Ino,
}

fn tree_on(disk: &Disk) -> Tree {
    let store = open(disk);
    let mut client = Client::new(&store, 0);
    let moved = client
        .make(Ino::ROOT, "moved", NodeKind::Directory)
        .unwrap();
    let deep = client.make(moved, "deep", NodeKind::Directory).unwrap();
    client.file(deep, "inside", 10).unwrap();
    client.file(Ino::ROOT, "still", 20).unwrap();
    let big = client.file(Ino::ROOT, "big", 40 * PART).unwrap();
    let linked = client.file(moved, "linked", 30).unwrap();
    let link = MetaRequest::Link {
        ino: linked,
        parent: Ino::ROOT,
        name: name("link"),
    };
    client.meta(link).unwrap();
    store.close().unwrap();
    tree_of(moved, deep, big, linked)
}

const fn tree_of(moved: Ino, deep: Ino, big: Ino, linked: Ino) -> Tree {
    Tree {
        moved,
        deep,
        big,
        linked,
    }
}

/// Changes of names.
fn change_names(client: &mut Client<'_>, tree: Tree) -> Result<(), OpError> {
    client.rename((Ino::ROOT, "moved"), (Ino::ROOT, "elsewhere"))?;
    let fresh = client.make(tree.deep, "fresh", NodeKind::Directory)?;
    client.file(fresh, "file", 5)?;
    client.rename((tree.moved, "deep"), (Ino::ROOT, "deep"))?;
    client.rename((Ino::ROOT, "still"), (tree.deep, "inside"))?;
    client.unlink(tree.moved, "linked")?;
    client.meta(MetaRequest::SetXattr {
        ino: tree.linked,
        name: b"user.a".to_vec(),
        value: b"value".to_vec(),
        mode: XattrMode::Any,
    })
}

/// Changes of bytes.
fn change_bytes(client: &mut Client<'_>, tree: Tree) -> Result<(), OpError> {
    client.write(tree.big, 5 * PART + 100, PART)?;
    client.meta(MetaRequest::Allocate {
        ino: tree.big,
        offset: 20 * PART,
        length: 5000,
        mode: AllocateMode::PunchHole,
    })?;
    client.meta(MetaRequest::Truncate {
        ino: tree.big,
        size: 30 * PART,
        drop_set_id: false,
    })?;
    client.write(tree.linked, 7, 3)?;
    client.write(tree.big, 31 * PART, 10)
}

fn stopped<T>(error: T) -> OpError
where
    T: Into<ReaderError>,
{
    match error.into() {
        ReaderError::Store(error) => OpError::Store(error),
        other => panic!("{other}"),
    }
}

/// Changes, and answers that are taken and confirmed, taken and not confirmed, and lost.
fn change(store: &Store, copy: &mut Copy, tree: Tree) -> Result<(), OpError> {
    let mut client = Client::new(store, 1000);
    client.write(tree.big, 0, 10)?;
    copy.update(store).map_err(stopped)?;
    change_names(&mut client, tree)?;
    // A lost answer.
    copy.ask(store, copy.point).map_err(stopped)?;
    change_bytes(&mut client, tree)?;
    store.checkpoint()?;
    copy.update(store).map_err(stopped)?;
    client.write(tree.big, 12 * PART, 100)?;
    client.unlink(Ino::ROOT, "link")?;
    client.meta(MetaRequest::Reap { ino: tree.linked })?;
    if let Some(point) = copy.point {
        let confirmed = ChangeAccess::of(store).confirm(READER, point, time(DAY));
        confirmed.map_err(stopped)?;
    }
    store.checkpoint()?;
    store.collect_garbage()?;
    client.file(tree.deep, "last", 100)?;
    client.write(tree.big, 39 * PART, 10)
}

/// Stops at each call in this way. Returns the number of stops, and of the answers of everything after them.
fn stop_at_each_call(verdict: Verdict) -> (u64, u64) {
    let disk = new_disk();
    let tree = tree_on(&disk);
    let store = open(&disk);
    let mut first = Copy::default();
    let why = first.update(&store).unwrap();
    assert_eq!(why, Some(WholeAnswer::Registered));
    drop(store);
    let mut wholes = 0;
    for calls in 0.. {
        let disk = disk.fork();
        let mut copy = first.clone();
        let store = open(&disk);
        disk.set_verdict(calls + 1, verdict);
        let done = change(&store, &mut copy, tree).is_ok();
        let store = open(&disk.fork());
        wholes += u64::from(copy.update(&store).unwrap().is_some());
        copy.assert_is(&store, &format!("call {calls}"));
        // And the next answer begins there.
        let mut client = Client::new(&store, 5000);
        client.write(tree.big, PART, 10).unwrap();
        assert_eq!(copy.update(&store).unwrap(), None);
        copy.assert_is(&store, &format!("after call {calls}"));
        if done {
            return (calls, wholes);
        }
    }
    (0, wholes)
}

#[test]
fn a_stop_at_any_call_leaves_a_change_reader_with_every_change() {
    let (calls, wholes) = stop_at_each_call(Verdict::CrashBefore);
    assert!(calls > 100, "{calls}");
    assert_eq!(wholes, 0, "no marks were lost");
}

/// A header of marks that is torn says nothing: then everything may have changed.
#[test]
fn a_stop_in_the_middle_of_any_call_does_so_too() {
    let (calls, wholes) = stop_at_each_call(Verdict::CrashTorn(13));
    assert!(calls > 100 && wholes < calls / 4, "{calls} {wholes}");
}

/// A node with a tree, and a copy of it.
fn copied() -> (Node, Tree, Copy) {
    let disk = new_disk();
    let tree = tree_on(&disk);
    let store = open(&disk);
    let node = Node::of(disk, store);
    let mut copy = Copy::default();
    copy.update(&node.store).unwrap();
    assert_eq!(copy.update(&node.store).unwrap(), None);
    (node, tree, copy)
}

#[test]
fn a_clean_stop_of_the_machine_keeps_the_marks_and_a_loss_of_power_does_not() {
    let (mut node, tree, mut copy) = copied();
    change_bytes(&mut Client::new(&node.store, 1000), tree).unwrap();
    node.store.close().unwrap();
    node.lose_power();
    assert_eq!(copy.update(&node.store).unwrap(), None);
    copy.assert_is(&node.store, "clean stop");
    change_bytes(&mut Client::new(&node.store, 2000), tree).unwrap();
    copy.update(&node.store).unwrap();
    // The loss of power takes back what was copied.
    node.lose_power();
    let why = copy.update(&node.store).unwrap();
    assert_eq!(why, Some(WholeAnswer::Lost(LostMarks::PowerLoss)));
    copy.assert_is(&node.store, "loss of power");
    node.kill();
    assert_eq!(copy.update(&node.store).unwrap(), None);
}

#[test]
fn a_point_of_another_copy_of_the_store_is_not_taken() {
    let (node, tree, mut copy) = copied();
    node.store.close().unwrap();
    let older = node.disk.fork();
    let newer = open(&node.disk);
    change_bytes(&mut Client::new(&newer, 1000), tree).unwrap();
    copy.update(&newer).unwrap();
    copy.assert_is(&newer, "the newer copy");
    newer.close().unwrap();
    let older = open(&older);
    let why = copy.update(&older).unwrap();
    assert_eq!(why, Some(WholeAnswer::OtherPoint));
    copy.assert_is(&older, "the older copy");
}

/// The tables of the newer copy beside the older store.
#[test]
fn the_marks_beside_an_older_copy_do_not_count() {
    let (node, tree, mut copy) = copied();
    node.store.close().unwrap();
    let older = node.disk.fork();
    let newer = open(&node.disk);
    change_bytes(&mut Client::new(&newer, 1000), tree).unwrap();
    copy.update(&newer).unwrap();
    let tables = ["tables/readers", "tables/reader.0.0", "tables/reader.0.1"];
    for path in tables {
        let bytes = node.disk.read_all(path).unwrap();
        older.put(path, &bytes).unwrap();
    }
    let older = open(&older);
    let why = copy.update(&older).unwrap();
    assert_eq!(why, Some(WholeAnswer::Lost(LostMarks::OtherTables)));
    copy.assert_is(&older, "the older copy");
}

#[test]
fn an_unconfirmed_answer_is_told_again() {
    let (node, tree, mut copy) = copied();
    let mut client = Client::new(&node.store, 1000);
    client.write(tree.big, 0, 10).unwrap();
    let lost = copy.ask(&node.store, copy.point).unwrap();
    client.write(tree.big, 5 * PART, 10).unwrap();
    let confirmed = copy.point;
    copy.ask(&node.store, None).unwrap();
    client.write(tree.big, 9 * PART, 10).unwrap();
    // The answer of another question than the last one cannot be confirmed.
    let late = ChangeAccess::of(&node.store).confirm(READER, lost.point, time(DAY));
    assert!(matches!(late, Err(ReaderError::OtherPoint { .. })));
    assert_eq!(copy.update(&node.store).unwrap(), None);
    assert_ne!(copy.point, confirmed);
    copy.assert_is(&node.store, "after two lost answers");
}

#[test]
fn an_answer_that_is_replaced_ends() {
    let (node, tree, mut copy) = copied();
    let mut client = Client::new(&node.store, 1000);
    client.write(tree.big, 0, 10).unwrap();
    let asked = copy.ask(&node.store, copy.point).unwrap();
    let mut walk = ChangeAccess::of(&node.store).walk(&asked).unwrap().unwrap();
    copy.ask(&node.store, None).unwrap();
    let page = ChangeAccess::of(&node.store).next_page(&mut walk).unwrap();
    assert!(page.is_err());
}

/// A write that has begun is not over: its bytes are in place, and its size does not show.
#[test]
fn a_question_waits_for_the_changes_that_have_begun() {
    let (node, tree, mut copy) = copied();
    let store = &node.store;
    let (osn, at) = osn_and_time(1000);
    let ticket = store.begin_write(tree.big, 50 * PART, 3, false).unwrap();
    store.write_begun(&ticket, 50 * PART, b"new").unwrap();
    copy.drawn += 1;
    let asked = ChangeAccess::of(store).ask(READER, copy.point, [copy.drawn; 16], time(DAY));
    let asked = asked.unwrap().unwrap();
    assert!(!ChangeAccess::of(store).is_settled(&asked));
    // Another question has to wait for this one.
    let other = ChangeAccess::of(store).ask("other", None, [99; 16], time(DAY));
    assert!(other.unwrap().is_none());
    store.complete_write(&ticket, 50 * PART + 3, osn, at);
    drop(ticket);
    assert!(ChangeAccess::of(store).is_settled(&asked));
    copy.take(store, &asked).unwrap();
    copy.assert_is(store, "after the write");
}

#[test]
fn readers_are_bounded_named_removed_and_forgotten() {
    let (mut node, tree, mut copy) = copied();
    let ask = |store: &Store, name: &str, day: i64| {
        let drawn = [u8::try_from(day).unwrap(); 16];
        ChangeAccess::of(store).ask(name, None, drawn, time(day * DAY))
    };
    for number in 1..READERS_MAX {
        assert!(ask(&node.store, &format!("r{number}"), 40).is_ok());
    }
    let more = ask(&node.store, "more", 40);
    assert!(matches!(more, Err(ReaderError::TooMany)));
    for bad in ["", "a/b", "a b", &"a".repeat(65)] {
        let bad = ask(&node.store, bad, 40);
        assert!(matches!(bad, Err(ReaderError::BadName(_))));
    }
    node.kill();
    ChangeAccess::of(&node.store).remove("r1").unwrap();
    let files = |node: &Node| {
        let files = node.disk.files();
        files.iter().filter(|path| path.contains("reader.")).count()
    };
    assert_eq!(files(&node), 6);
    let gone = ChangeAccess::of(&node.store).remove("r1");
    assert!(matches!(gone, Err(ReaderError::Unknown(_))));
    // The first reader was last heard of on the first day.
    let expired = ChangeAccess::of(&node.store)
        .expire(time(31 * DAY))
        .unwrap();
    assert_eq!(expired, Vec::<String>::new());
    let expired = ChangeAccess::of(&node.store)
        .expire(time(31 * DAY + 1))
        .unwrap();
    assert_eq!(expired, [READER]);
    assert_eq!(files(&node), 4);
    change_bytes(&mut Client::new(&node.store, 1000), tree).unwrap();
    let why = copy.update(&node.store).unwrap();
    assert_eq!(why, Some(WholeAnswer::Registered));
    node.restart();
    let names: Vec<_> = ChangeAccess::of(&node.store).list();
    let names: Vec<_> = names.into_iter().map(|record| record.name).collect();
    assert_eq!(names, [READER, "r2", "r3"]);
}
