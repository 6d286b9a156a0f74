//! Power losses and kills at moments that need two faults, or a coincidence of two events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_fs::store::SeekFor;
use lockstep_fs::{OpError, StoreView};
use lockstep_sim::disk::{CallClass, Survivors, Verdict};
use lockstep_sim::random::Random;
use lockstep_types::{
    AllocateMode, Errno, Ino, MetaOp, MetaRequest, NodeKind, Osn, Timestamp, XattrMode,
};
use parking_lot::Mutex;

use super::*;

/// A disk with an open store, and the source of its operations.
pub struct Node {
    pub disk: Disk,
    pub store: Arc<Store>,
    count: Mutex<u64>,
}

impl Node {
    pub fn new() -> Self {
        Self::on(made_disk(), BOOT)
    }

    pub fn on(disk: Disk, boot: u8) -> Self {
        let store = open(&disk, boot).unwrap().store;
        Self {
            count: Mutex::new(store.first_sequence()),
            store: Arc::new(store),
            disk,
        }
    }

    /// Returns the number and the time of the next operation.
    pub fn next_osn(&self) -> (Osn, Timestamp) {
        let mut count = self.count.lock();
        *count += 1;
        let osn = osn(*count);
        let secs = i64::try_from(*count).unwrap();
        (osn, Timestamp { secs, nanos: 7 })
    }

    pub fn op(&self, request: MetaRequest) -> MetaOp {
        let (osn, time) = self.next_osn();
        MetaOp { osn, time, request }
    }

    fn creation(&self, name: &str) -> (MetaOp, Ino) {
        let ino = self.store.next_ino().unwrap();
        let op = self.op(creation(Ino::ROOT, file_name(name), ino, NodeKind::File));
        (op, ino)
    }

    pub fn create(&self, name: &str) -> Ino {
        let (op, ino) = self.creation(name);
        self.store.commit(&op).unwrap();
        ino
    }

    fn truncate(&self, ino: Ino, size: u64) -> MetaOp {
        self.op(MetaRequest::Truncate {
            ino,
            size,
            drop_set_id: false,
        })
    }

    pub fn write(&self, ino: Ino, data: &[u8]) -> Timestamp {
        let (osn, time) = self.next_osn();
        self.store.write(ino, 0, data, osn, time).unwrap();
        time
    }

    /// Returns the same node after a power loss that left only synced data.
    pub fn after_power_loss(self) -> Self {
        let Self { disk, store, .. } = self;
        drop(store);
        disk.observe(None);
        disk.power_loss_with(Survivors::Nothing, &mut Random::new(1));
        Self::on(disk, NEXT_BOOT)
    }

    fn has(&self, name: &str) -> bool {
        self.store
            .tree()
            .lookup(Ino::ROOT, &file_name(name))
            .is_ok()
    }

    pub fn bytes(&self, ino: Ino) -> Vec<u8> {
        let mut bytes = vec![0; 64 << 10];
        let count = self.store.read(ino, 0, &mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    }
}

/// Returns a node whose disk was full during one checkpoint, between the creations of `a` and `b`.
fn was_full() -> Node {
    let node = Node::new();
    node.create("a");
    node.disk.fail_call(CallClass::Write, 1, Errno::NoSpace);
    node.store.checkpoint().unwrap_err();
    assert!(!node.store.is_poisoned());
    node.create("b");
    node
}

#[test]
fn a_checkpoint_after_one_on_a_full_disk_saves_everything() {
    let node = was_full();
    node.store.checkpoint().unwrap();
    let node = node.after_power_loss();
    assert!(node.has("a") && node.has("b"));
}

#[test]
fn a_close_after_a_checkpoint_on_a_full_disk_saves_everything() {
    let node = was_full();
    node.store.close().unwrap();
    let node = node.after_power_loss();
    assert!(node.has("a") && node.has("b"));
}

/// With `durability = "always"`, the answer to a truncation says that the truncation is durable.
#[test]
fn a_truncation_that_was_made_durable_keeps_its_effect() {
    let node = Node::new();
    let ino = node.create("f");
    node.write(ino, &[1; 9000]);
    node.store.sync_everything().unwrap();
    let applied = node.store.commit(&node.truncate(ino, 5000)).unwrap();
    node.store.sync_applied(&applied).unwrap();
    let node = node.after_power_loss();
    assert!(node.bytes(ino) == [1; 5000]);
}

/// The next operation on the file puts the times of the write into its record, but the log does not
/// have these times.
#[test]
fn a_sync_saves_the_time_of_a_write_before_a_change_of_mode() {
    let node = Node::new();
    let ino = node.create("f");
    node.store.sync_everything().unwrap();
    let written = node.write(ino, b"bytes");
    let change = node.op(MetaRequest::SetAttr {
        ino,
        mode: Some(0o600),
        uid: None,
        gid: None,
        atime: None,
        mtime: None,
    });
    node.store.commit(&change).unwrap();
    node.store.sync_file(ino, true).unwrap();
    let before = node.store.tree().getattr(ino).unwrap();
    assert_eq!(before.mtime, written);
    let node = node.after_power_loss();
    let after = node.store.tree().getattr(ino).unwrap();
    assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
}

/// After a power loss the table of times is invalid. This also holds in a second process, if the
/// first process was killed while it opened the store.
#[test]
fn a_kill_during_the_first_opening_brings_no_old_times_back() {
    let node = Node::new();
    let ino = node.create("f");
    node.write(ino, b"old");
    let old = node.disk.read_all("tables/times").unwrap();
    node.write(ino, b"new");
    node.store.sync_file(ino, true).unwrap();
    let time = node.store.tree().getattr(ino).unwrap().mtime;
    let disk = {
        let Node { disk, store, .. } = node;
        drop(store);
        disk.power_loss_with(Survivors::Nothing, &mut Random::new(1));
        disk
    };
    let backing = disk.mount();
    let table = backing.open_table("tables/times", old.len()).unwrap();
    table.store(0, &old);
    drop((table, backing));
    disk.kill();
    let reopen = disk.fork();
    let calls = calls_of(&reopen, || drop(open(&reopen, NEXT_BOOT).unwrap())).len() as u64;
    for nth in 1..=calls {
        let disk = disk.fork();
        at_call(&disk, nth, Verdict::CrashBefore);
        drop(open(&disk, NEXT_BOOT));
        disk.kill();
        disk.observe(None);
        let found = Node::on(disk, NEXT_BOOT).store.tree().getattr(ino).unwrap();
        assert_eq!(found.mtime, time, "killed at call {nth}");
    }
}

/// A file that is written while a checkpoint clears its slot has two slots at that moment.
#[test]
fn a_kill_before_a_slot_is_cleared_brings_no_old_times_back() {
    let node = Arc::new(Node::new());
    let (first, ino) = (node.create("first"), node.create("f"));
    node.write(ino, b"old");
    // The slot of this file is cleared first, and is taken at once.
    node.write(first, b"bytes");
    let (writer, is_inside) = (Arc::clone(&node), AtomicBool::new(false));
    let cleared = AtomicU64::new(0);
    let written = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&written);
    node.disk.observe(Some(Arc::new(move |call| {
        let is_clearing = call.kind == CallKind::TableStore && !is_inside.load(Ordering::Relaxed);
        if !is_clearing || cleared.fetch_add(1, Ordering::Relaxed) == 0 {
            return Verdict::Go;
        }
        is_inside.store(true, Ordering::Relaxed);
        *slot.lock() = Some(writer.write(ino, b"new"));
        Verdict::CrashBefore
    })));
    node.store.checkpoint().unwrap();
    let disk = node.disk.clone();
    disk.observe(None);
    drop(node);
    disk.kill();
    let found = Node::on(disk, BOOT).store.tree().getattr(ino).unwrap();
    assert_eq!(Some(found.mtime), *written.lock());
}

/// A sync just before a change of length does not cover the change.
#[test]
fn a_close_saves_a_length_that_was_changed_beside_a_sync() {
    let node = Node::new();
    let ino = node.create("f");
    node.write(ino, &[1; 9000]);
    let store = Arc::clone(&node.store);
    node.disk.observe(Some(Arc::new(move |call| {
        if call.kind == CallKind::SetLength && call.path.starts_with("content/") {
            store.sync_file(ino, false).unwrap();
        }
        Verdict::Go
    })));
    node.store.commit(&node.truncate(ino, 5000)).unwrap();
    node.disk.observe(None);
    node.store.close().unwrap();
    assert!(node.after_power_loss().bytes(ino) == [1; 5000]);
}

/// The bytes of a failed write beyond the end must not come back.
#[test]
fn a_close_saves_a_length_that_was_taken_back_beside_a_sync() {
    let node = Node::new();
    let ino = node.create("f");
    node.write(ino, b"bytes");
    let store = Arc::clone(&node.store);
    node.disk.observe(Some(Arc::new(move |call| {
        if call.kind == CallKind::SetLength && call.path.starts_with("content/") {
            store.sync_file(ino, false).unwrap();
        }
        Verdict::Go
    })));
    let ticket = node.store.begin_write(ino, 9000, 4, false).unwrap();
    node.store.write_begun(&ticket, 9000, b"torn").unwrap();
    ticket.abandon();
    drop(ticket);
    node.disk.observe(None);
    node.store.close().unwrap();
    assert!(node.after_power_loss().bytes(ino) == b"bytes");
}

/// A write that waits for the secondary may have made the content longer than the record says.
/// After a clean shutdown the content is still longer, and that is no damage.
#[test]
fn a_close_while_a_write_waits_leaves_an_undamaged_store() {
    for power_is_lost in [false, true] {
        let node = Node::new();
        let ino = node.create("f");
        node.write(ino, b"bytes");
        let ticket = node.store.begin_write(ino, 5000, 4, false).unwrap();
        node.store.write_begun(&ticket, 5000, b"more").unwrap();
        node.store.close().unwrap();
        let node = if power_is_lost {
            drop(ticket);
            node.after_power_loss()
        } else {
            node.disk.kill();
            Node::on(node.disk, BOOT)
        };
        let bytes = node.bytes(ino);
        assert!(bytes.starts_with(b"bytes") && bytes.ends_with(b"more"));
        assert_eq!(bytes.len(), 5004);
    }
}

/// After a clean shutdown the next process does not look for removed names, so such a name would
/// stay forever.
#[test]
fn content_that_was_removed_before_a_close_does_not_come_back() {
    for is_collected_before in [false, true] {
        let node = Node::new();
        let ino = node.create("f");
        node.write(ino, b"bytes");
        node.store.sync_file(ino, true).unwrap();
        let (parent, name) = (Ino::ROOT, file_name("f"));
        let unlink = node.op(MetaRequest::Unlink { parent, name });
        node.store.commit(&unlink).unwrap();
        let reap = node.op(MetaRequest::Reap { ino });
        node.store.commit(&reap).unwrap();
        if is_collected_before {
            assert_eq!(node.store.collect_garbage().unwrap(), 1);
            assert_eq!(node.store.remove_empty_directories().unwrap(), 1);
        }
        node.store.close().unwrap();
        let node = node.after_power_loss();
        let content = lockstep_fs::paths::content_path(ino);
        assert!(!node.disk.files().contains(&content));
        let directory = lockstep_fs::paths::content_dir(ino);
        assert_eq!(
            node.disk.directories().contains(&directory),
            !is_collected_before
        );
    }
}

/// An operation that waits for the secondary still waits after a clean shutdown.
#[test]
fn a_close_saves_pending_operations() {
    let node = Node::new();
    let (op, _) = node.creation("f");
    node.store.intents().log(&op).unwrap();
    node.store.close().unwrap();
    assert_eq!(node.after_power_loss().store.intents().in_doubt(), [op.osn]);
}

/// The secondary has done the operation. Until this node has done it, this node must not report a
/// later position. The next process must try again.
#[test]
fn an_operation_that_could_not_be_carried_out_is_pending_again() {
    for saved in [false, true] {
        let node = Node::new();
        let ino = node.create("f");
        node.write(ino, &[1; 9000]);
        let before = node.store.applied();
        let (truncation, creation) = (node.truncate(ino, 5000), node.creation("g").0);
        node.store.intents().log(&truncation).unwrap();
        node.store.intents().log(&creation).unwrap();
        // The first write is the record in the log.
        node.disk.fail_call(CallClass::Write, 2, Errno::Io);
        node.store.intents().commit(truncation.osn).unwrap_err();
        if saved {
            node.store.checkpoint().unwrap();
        }
        let both = [truncation.osn, creation.osn];
        assert_eq!(node.store.intents().in_doubt(), both);
        node.disk.kill();
        let node = Node::on(node.disk, BOOT);
        assert_eq!(node.store.intents().in_doubt(), both);
        assert_eq!(node.store.applied(), before);
        assert!(node.bytes(ino) == [1; 9000]);
        for osn in both {
            node.store.intents().commit(osn).unwrap();
        }
        assert!(node.bytes(ino) == [1; 5000] && node.has("g"));
    }
}

/// Used numbers are never given out again, however long the store was open.
#[test]
fn the_numbers_of_an_opening_begin_above_all_that_were_used() {
    let mut node = Node::new();
    *node.count.lock() = node.store.first_sequence() * 5 + 3;
    for name in ["a", "b", "c"] {
        node.create(name);
        let before = *node.count.lock();
        node.disk.kill();
        node = Node::on(node.disk.clone(), BOOT);
        assert!(node.store.first_sequence() > before);
    }
}

/// Creates one file in a content directory of its own for each number.
pub fn spread(node: &Node, files: u64) -> Vec<Ino> {
    let first = node.store.next_ino().unwrap().get();
    let inos = (1..=files).filter_map(|number| Ino::new(first + number * 256));
    let mut made = Vec::new();
    for ino in inos {
        let (mut op, _) = node.creation(&format!("f{ino}"));
        if let MetaRequest::Create { ino: number, .. } = &mut op.request {
            *number = ino;
        }
        node.store.commit(&op).unwrap();
        node.write(ino, b"bytes");
        made.push(ino);
    }
    made
}

/// The time of a clean shutdown must not grow with the number of files that ever existed.
#[test]
fn a_close_after_many_removals_syncs_the_disk_and_not_each_directory() {
    const FILES: u64 = 400;
    let node = Node::new();
    for ino in spread(&node, FILES) {
        let (parent, name) = (Ino::ROOT, file_name(&format!("f{ino}")));
        let unlink = node.op(MetaRequest::Unlink { parent, name });
        node.store.commit(&unlink).unwrap();
        let reap = node.op(MetaRequest::Reap { ino });
        node.store.commit(&reap).unwrap();
    }
    assert_eq!(node.store.collect_garbage().unwrap() as u64, FILES);
    let calls = calls_of(&node.disk, || node.store.close().unwrap());
    let syncs = calls
        .iter()
        .filter(|(kind, _)| *kind == CallKind::SyncDirectory);
    assert!(syncs.count() < 10);
    let node = node.after_power_loss();
    let files = node.disk.files();
    assert!(
        !files.iter().any(|path| path.starts_with("content/")),
        "{files:?}"
    );
}

/// Sets a new attribute of 4 KiB.
fn set_attribute(node: &Node, ino: Ino, number: u64) -> Result<(), OpError> {
    let op = node.op(MetaRequest::SetXattr {
        ino,
        name: format!("user.{number}").into_bytes(),
        value: vec![0; 4096],
        mode: XattrMode::Any,
    });
    node.store.commit(&op).map(drop)
}

/// Number of attributes that fill the log several times.
const ATTRIBUTES: u64 = 3 * 2 * LOG_SEGMENT_BYTES / 4096;

/// An operation that fills the log faster than the checkpoint empties it waits. It is not refused.
#[test]
fn a_log_that_is_filled_fast_refuses_nothing() {
    let node = Node::new();
    let ino = node.create("f");
    for number in 0..ATTRIBUTES {
        set_attribute(&node, ino, number % 8).unwrap();
    }
}

/// On a full disk the checkpoint cannot empty the log. The store refuses operations early enough
/// that the log still has room for operations that free space.
#[test]
fn on_a_full_disk_the_rest_of_the_log_is_for_operations_that_free_space() {
    let node = Node::new();
    let ino = node.create("f");
    node.create("g");
    node.disk.observe(Some(Arc::new(|call| {
        let is_checkpoint = call.path.starts_with("namespace.redb");
        if is_checkpoint && call.kind != CallKind::SyncDirectory {
            Verdict::Fail(Errno::NoSpace)
        } else {
            Verdict::Go
        }
    })));
    let refused = (0..ATTRIBUTES).find_map(|number| set_attribute(&node, ino, number % 8).err());
    assert_eq!(refused.map(|error| error.errno()), Some(Errno::NoSpace));
    let removal = node.op(MetaRequest::Unlink {
        parent: Ino::ROOT,
        name: file_name("g"),
    });
    node.store.commit(&removal).unwrap();
    assert!(!node.has("g") && !node.store.is_poisoned());
    node.disk.observe(None);
    set_attribute(&node, ino, 0).unwrap();
    node.store.close().unwrap();
    assert!(!node.after_power_loss().has("g"));
}

/// A disk that copies overwritten blocks may be full where the log changes its segment. This breaks
/// nothing and loses nothing, whether or not the header was written.
#[test]
fn a_disk_that_is_full_at_a_change_of_segment_breaks_nothing() {
    let node = Node::new();
    let ino = node.create("f");
    node.disk.observe(Some(Arc::new(|call| {
        let is_header = call.path.starts_with("log/") && call.offset < 4096;
        if is_header && call.kind == CallKind::Write {
            Verdict::Fail(Errno::NoSpace)
        } else {
            Verdict::Go
        }
    })));
    let refused = (0..ATTRIBUTES).find_map(|number| set_attribute(&node, ino, number % 8).err());
    assert_eq!(refused.map(|error| error.errno()), Some(Errno::NoSpace));
    // A smaller record would fit into the rest of the segment, but the segment is treated as ended.
    let (small, _) = node.creation("small");
    let errno = node.store.commit(&small).map(drop).unwrap_err().errno();
    assert_eq!(errno, Errno::NoSpace);
    assert!(!node.store.is_poisoned());
    node.disk.observe(None);
    node.create("g");
    node.disk.kill();
    assert!(Node::on(node.disk, BOOT).has("g"));
}

/// `lseek` waits for no other operation. Between the change of a file's length and the change of
/// its record the two differ, and that is no damage.
#[test]
fn a_file_can_be_looked_at_while_its_length_is_changed() {
    let node = Node::new();
    let ino = node.create("f");
    node.write(ino, &[1; 9000]);
    let growth = node.op(MetaRequest::Allocate {
        ino,
        mode: AllocateMode::Allocate,
        offset: 0,
        length: 20_000,
    });
    for change in [node.truncate(ino, 5000), growth] {
        // After the second checkpoint the store has no state of the file in memory.
        for _ in 0..2 {
            node.store.checkpoint().unwrap();
        }
        let (has_changed, looks) = (AtomicBool::new(false), Arc::new(Mutex::new(Vec::new())));
        let (seen, store) = (Arc::clone(&looks), Arc::downgrade(&node.store));
        node.disk.observe(Some(Arc::new(move |call| {
            if has_changed.load(Ordering::Relaxed) {
                let found = store.upgrade().unwrap().seek(ino, 0, SeekFor::Hole);
                seen.lock().push(found.map_err(|error| error.to_string()));
            }
            let changes = matches!(call.kind, CallKind::SetLength | CallKind::Allocate);
            has_changed.fetch_or(changes, Ordering::Relaxed);
            Verdict::Go
        })));
        node.store.commit(&change).unwrap();
        node.disk.observe(None);
        let looks = looks.lock();
        assert!(
            !looks.is_empty() && looks.iter().all(Result::is_ok),
            "{looks:?}"
        );
    }
}
