//! The moments at which changes are on stable storage.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;

use lockstep_fs::plan::View;
use lockstep_fs::store::ImageChunk;
use lockstep_fs::store::{Access, OpenOptions};
use lockstep_fs::{Store, StoreView, keys};
use lockstep_lossy::disk::{CallClass, CallKind, Verdict};
use lockstep_types::{
    Attr, BootId, Errno, FileName, Ino, MetaOp, MetaRequest, NodeKind, StateVersion, Timestamp,
};
use parking_lot::Mutex;

use crate::harness::{
    Node, after_power_loss, new_disk, open, open_options, osn_and_time, read_all,
};

/// Numbers operations, and makes the operations that tests need.
pub struct Client {
    count: u64,
}

impl Client {
    pub fn new() -> Self {
        Self { count: 0 }
    }

    pub fn op(&mut self, request: MetaRequest) -> MetaOp {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        MetaOp { osn, time, request }
    }

    pub fn create(&mut self, node: &Node, name: &str) -> Ino {
        let ino = node.store.next_ino().unwrap();
        let op = self.op(MetaRequest::creation(
            Ino::ROOT,
            FileName::new(name.as_bytes()).unwrap(),
            ino,
            NodeKind::File,
        )
        .mode(0o644)
        .request());
        node.store.commit(&op).unwrap();
        ino
    }

    pub fn write(&mut self, node: &Node, ino: Ino, data: &[u8]) {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        node.store.write(ino, 0, data, osn, time).unwrap();
    }

    pub fn unlink(&mut self, node: &Node, name: &str) {
        let op = self.op(MetaRequest::Unlink {
            parent: Ino::ROOT,
            name: FileName::new(name.as_bytes()).unwrap(),
        });
        node.store.commit(&op).unwrap();
    }
}

/// A node with one empty file, and the client that made the file.
fn with_file() -> (Node, Client, Ino) {
    let (node, mut client) = (Node::new(), Client::new());
    let ino = client.create(&node, "f");
    (node, client, ino)
}

fn path(ino: Ino) -> String {
    lockstep_fs::paths::content_path(ino)
}

/// Whether the disk has a content file of an inode.
fn exists(node: &Node, ino: Ino) -> bool {
    node.disk.read_all(&path(ino)).is_some()
}

#[test]
fn a_sync_reaches_content_that_a_checkpoint_has_let_go_of() {
    let (node, mut client, ino) = with_file();
    client.write(&node, ino, b"bytes");
    node.store.checkpoint().unwrap();
    assert!(!node.disk.is_durable(&path(ino)));
    node.store.sync_file(ino, false).unwrap();
    assert!(node.disk.is_durable(&path(ino)), "content and name");
}

#[test]
fn content_made_before_a_kill_is_synced_with_its_name() {
    let (mut node, mut client, ino) = with_file();
    client.write(&node, ino, b"bytes");
    node.kill();
    node.store.sync_file(ino, false).unwrap();
    assert!(node.disk.is_durable(&path(ino)));
}

#[test]
fn a_store_is_closed_only_when_all_content_is_durable() {
    let node = Node::new();
    let mut client = Client::new();
    let written = client.create(&node, "written");
    client.write(&node, written, b"bytes");
    let grown = client.create(&node, "grown");
    let op = client.op(MetaRequest::Truncate {
        ino: grown,
        size: 99,
        drop_set_id: false,
    });
    node.store.commit(&op).unwrap();
    node.store.checkpoint().unwrap();
    node.store.close().unwrap();
    for ino in [written, grown] {
        assert!(node.disk.is_durable(&path(ino)), "{ino}");
    }
}

/// A change that was answered as durable survives a power loss. So does a truncation, whose record alone
/// would be taken for carried out (found by the simulator).
#[test]
fn a_durable_change_of_content_is_on_the_disk_with_its_record() {
    let (mut node, mut client, ino) = with_file();
    client.write(&node, ino, b"bytes");
    node.store.sync_file(ino, true).unwrap();
    let op = client.op(MetaRequest::Truncate {
        ino,
        size: 9000,
        drop_set_id: false,
    });
    let applied = node.store.commit(&op).unwrap();
    node.store.sync_applied(&applied).unwrap();
    node.lose_power();
    assert_eq!(node.store.tree().getattr(ino).unwrap().size, 9000);
}

/// The same, where a process was killed before it had synced: the next process makes the change durable.
#[test]
fn all_that_was_applied_can_be_made_durable_after_a_kill() {
    let (mut node, mut client, ino) = with_file();
    let op = client.op(MetaRequest::Truncate {
        ino,
        size: 9000,
        drop_set_id: false,
    });
    node.store.commit(&op).unwrap();
    node.kill();
    node.store.sync_all_applied().unwrap();
    node.lose_power();
    assert_eq!(node.store.tree().getattr(ino).unwrap().size, 9000);
}

/// The name of the content had reached the disk, the inode had not: nothing would ever remove the content
/// (found by the simulator).
#[test]
fn content_that_a_power_loss_left_without_an_inode_is_removed() {
    let (mut node, mut client, _) = with_file();
    node.store.checkpoint().unwrap();
    node.store.sync_all_logged().unwrap();
    let lost = client.create(&node, "lost");
    client.write(&node, lost, b"bytes");
    let backing = node.disk.mount();
    backing.open(&path(lost)).unwrap().sync().unwrap();
    let directory = lockstep_fs::paths::content_dir(lost);
    backing.sync_dir(&directory).unwrap();
    node.lose_power();
    assert!(node.store.tree().inode(lost).unwrap().is_none());
    assert!(exists(&node, lost));
    // A process that stops before the removal leaves the removal to the next process.
    node.kill();
    node.store.collect_garbage().unwrap();
    assert!(!exists(&node, lost));
}

/// An interrupted image had given content its length before the inode arrived, and the next image had no such
/// inode (found by the simulator).
#[test]
fn content_that_an_image_left_without_an_inode_is_removed() {
    let (node, _, _) = with_file();
    let left = Ino::new(77).unwrap();
    let receive = || {
        node.store.image().begin().unwrap();
        node.store.image().prepare_finish().unwrap();
        node.store.image().finish(node.store.applied(), 2).unwrap();
        exists(&node, left)
    };
    let put = || node.disk.put(&path(left), b"").unwrap();
    // Its end has never come.
    node.store.image().begin().unwrap();
    put();
    assert!(!receive());
    put();
    assert!(receive(), "no image was interrupted, so none is looked for");
    // A process that ended in the middle of one.
    node.store.image().was_interrupted();
    assert!(!receive());
}

/// A killed process leaves unsynced content that the next process does not know.
#[test]
fn a_close_after_a_kill_does_not_vouch_for_what_was_before() {
    let mut node = Node::new();
    node.kill();
    node.store.close().unwrap();
    let other_boot = lockstep_fs::store::OpenOptions {
        boot: BootId::from_bytes([2; 16]),
        ..open_options(Access::Write)
    };
    let opened = lockstep_fs::Store::open(node.disk.fork().mount(), &other_boot).unwrap();
    assert!(opened.power_lost);
}

/// A sync that was noted late, or that ran before the bytes of a write arrived, does not cover that write.
#[test]
fn a_sync_counts_for_what_it_covered_only() {
    let (node, mut client, ino) = with_file();
    client.write(&node, ino, b"bytes");
    let early = node.store.sync_point(ino, StateVersion(1)).unwrap();
    node.store.checkpoint().unwrap();
    client.write(&node, ino, b"other");
    node.store.note_synced(ino, early);
    assert!(!node.store.is_synced(ino, StateVersion(1)));

    let ticket = node.store.begin_write(ino, 0, 5, false).unwrap();
    let between = node.store.sync_point(ino, StateVersion(1)).unwrap();
    node.store.write_begun(&ticket, 0, b"third").unwrap();
    node.store.note_synced(ino, between);
    assert!(!node.store.is_synced(ino, StateVersion(1)));
    let late = node.store.sync_point(ino, StateVersion(1)).unwrap();
    node.store.note_synced(ino, late);
    assert!(node.store.is_synced(ino, StateVersion(1)));
}

#[test]
fn a_sync_has_nothing_to_do_only_while_nothing_has_changed() {
    let (node, mut client, ino) = with_file();
    for _ in 0..3 {
        client.write(&node, ino, b"bytes");
        assert!(!node.store.is_synced(ino, StateVersion(1)));
        let point = node.store.sync_point(ino, StateVersion(1)).unwrap();
        node.store.sync_file(ino, true).unwrap();
        node.store.note_synced(ino, point);
        assert!(node.store.is_synced(ino, StateVersion(1)));
        assert!(
            !node.store.is_synced(ino, StateVersion(2)),
            "of another version of the state"
        );
        client.write(&node, ino, b"more");
        assert!(!node.store.is_synced(ino, StateVersion(1)));
        node.store.checkpoint().unwrap();
        node.store.checkpoint().unwrap();
        assert!(
            !node.store.is_synced(ino, StateVersion(1)),
            "forgotten is not synced"
        );
    }
}

/// The bytes of a write that began before a sync may arrive after the sync.
#[test]
fn a_sync_does_not_cover_a_write_under_way() {
    let (node, mut client, ino) = with_file();
    client.write(&node, ino, b"bytes");
    let (osn, time) = osn_and_time(50);
    let ticket = node.store.begin_write(ino, 0, 5, false).unwrap();
    let point = node.store.sync_point(ino, StateVersion(1)).unwrap();
    node.store.sync_file(ino, true).unwrap();
    node.store.write_begun(&ticket, 0, b"other").unwrap();
    node.store.complete_write(&ticket, 5, osn, time);
    drop(ticket);
    node.store.note_synced(ino, point);
    assert!(!node.disk.is_durable(&path(ino)));
    assert!(!node.store.is_synced(ino, StateVersion(1)));
}

/// A sync of a file that was closed meanwhile says nothing about the file now.
#[test]
fn a_sync_does_not_cover_what_came_after_the_file_was_let_go_of() {
    let (node, mut client, ino) = with_file();
    let point = node.store.sync_point(ino, StateVersion(1)).unwrap();
    client.write(&node, ino, b"bytes");
    for _ in 0..3 {
        node.store.checkpoint().unwrap();
    }
    node.store.note_synced(ino, point);
    assert!(!node.store.is_synced(ino, StateVersion(1)));
}

/// Bytes that a failed write left beyond the end are removed, and no other bytes.
#[test]
fn a_failed_write_beside_another_leaves_nothing() {
    let (node, _client, ino) = with_file();
    let (osn, time) = osn_and_time(50);
    let failed = node.store.begin_write(ino, 9000, 4, false).unwrap();
    node.store.write_begun(&failed, 9000, b"torn").unwrap();
    let other = node.store.begin_write(ino, 0, 5, false).unwrap();
    node.store.write_begun(&other, 0, b"bytes").unwrap();
    failed.abandon();
    drop(failed);
    node.store.complete_write(&other, 5, osn, time);
    drop(other);
    assert_eq!(node.store.tree().content_bytes(ino).unwrap(), 5);
    assert_eq!(read_all(&node.store, ino), b"bytes");
}

/// Two writes may reach the secondary in another order than their numbers, with a checkpoint in between: the
/// times of the higher write stay.
#[test]
fn a_late_write_does_not_set_the_times_back() {
    let (node, _client, ino) = with_file();
    let (later, later_time) = osn_and_time(51);
    let (earlier, earlier_time) = osn_and_time(50);
    node.store
        .write(ino, 0, b"later", later, later_time)
        .unwrap();
    node.store.checkpoint().unwrap();
    node.store
        .write(ino, 8192, b"x", earlier, earlier_time)
        .unwrap();
    assert_eq!(node.store.tree().getattr(ino).unwrap().mtime, later_time);
}

/// A write that completes while a checkpoint runs is in no record: its slot has to stay.
#[test]
fn a_write_across_a_checkpoint_survives_a_kill() {
    let (mut node, _client, ino) = with_file();
    let (osn, time) = osn_and_time(50);
    let ticket = node.store.begin_write(ino, 0, 5, false).unwrap();
    node.store.write_begun(&ticket, 0, b"bytes").unwrap();
    node.store.checkpoint().unwrap();
    node.store.complete_write(&ticket, 5, osn, time);
    drop(ticket);
    node.kill();
    assert_eq!(read_all(&node.store, ino), b"bytes");
    assert_eq!(node.store.tree().getattr(ino).unwrap().mtime, time);
}

#[test]
fn content_goes_only_after_it_is_durable_that_the_file_went() {
    let (node, mut client, ino) = with_file();
    client.write(&node, ino, b"bytes");
    client.unlink(&node, "f");
    let reap = client.op(MetaRequest::Reap { ino });
    node.store.commit(&reap).unwrap();
    let log = |node: &Node| {
        let mut files = node.disk.files();
        files.retain(|path| path.starts_with("log/"));
        files.iter().all(|path| node.disk.is_durable(path))
    };
    assert!(!log(&node) && exists(&node, ino));
    let taken = node.disk.mount().stat(&path(ino)).unwrap().blocks * 512;
    assert!(taken > 0 && node.store.capacity().garbage_bytes() == taken);
    assert_eq!(node.store.collect_garbage().unwrap(), 1);
    assert_eq!(node.store.capacity().garbage_bytes(), 0);
    assert!(!exists(&node, ino));
    let left = open(&node.disk.fork());
    let garbage = ImageChunk::read(&left.tree(), keys::GARBAGE, &[], 1 << 20).unwrap();
    assert!(garbage.records.is_empty() || left.tree().getattr(ino).is_err());
}

/// A secondary gets inode numbers from the primary. Later, as primary, it must not assign them again.
#[test]
fn numbers_that_came_from_the_other_node_are_not_given_out() {
    let (node, mut other) = (Node::new(), Node::new());
    let mut client = Client::new();
    for _ in 0..40 {
        node.store.next_ino().unwrap();
    }
    let far = Ino::new(1 << 40).unwrap();
    let op = client.op(MetaRequest::creation(
        Ino::ROOT,
        FileName::new(b"far").unwrap(),
        far,
        NodeKind::Directory,
    )
    .mode(0o755)
    .request());
    other.store.commit(&op).unwrap();
    assert!(other.store.next_ino().unwrap() > far);
    other.store.checkpoint().unwrap();
    other.kill();
    assert!(other.store.next_ino().unwrap() > far);
}

/// The same for numbers that came with a resync, even for inodes that no longer exist: a file handle
/// somewhere may still hold such a number.
#[test]
fn numbers_that_the_other_node_had_given_before_a_resync_are_not_given_out() {
    let mut node = Node::new();
    node.store.image().begin().unwrap();
    let far = 1 << 40;
    node.store
        .image()
        .finish(node.store.applied(), far)
        .unwrap();
    assert!(node.store.next_ino().unwrap().get() >= far);
    node.kill();
    assert!(node.store.next_ino().unwrap().get() >= far);
}

/// Returns the attributes and bytes of a file that grows by a synced write before a power loss.
fn grown_then_lost(times: bool) -> (Attr, Vec<u8>, Timestamp) {
    let (node, mut client, ino) = with_file();
    client.write(&node, ino, b"short");
    node.store.sync_everything().unwrap();
    let (osn, time) = osn_and_time(900);
    let ticket = node.store.begin_write(ino, 3, 9000, true).unwrap();
    node.store.write_begun(&ticket, 3, &[7; 9000]).unwrap();
    if times {
        node.store.complete_write(&ticket, 9003, osn, time);
    }
    // The write is acknowledged at this point.
    node.store.sync_file(ino, times).unwrap();
    let other_boot = OpenOptions {
        boot: BootId::from_bytes([2; 16]),
        ..open_options(Access::Write)
    };
    let opened = Store::open(after_power_loss(&node.disk).mount(), &other_boot).unwrap();
    assert!(opened.power_lost);
    let attr = opened.store.tree().getattr(ino).unwrap();
    (attr, read_all(&opened.store, ino), time)
}

#[test]
fn a_synchronous_write_keeps_its_bytes_and_the_size_over_a_power_loss() {
    let (attr, bytes, _) = grown_then_lost(false);
    assert_eq!(attr.size, 9003);
    assert_eq!(bytes, [&b"sho"[..], &[7; 9000]].concat());
}

/// A power loss may restore the table of times as it was at any earlier moment.
#[test]
fn a_synced_file_keeps_its_times_too() {
    let (attr, bytes, time) = grown_then_lost(true);
    assert_eq!((attr.size, bytes.len()), (9003, 9003));
    assert_eq!((attr.mtime, attr.ctime), (time, time));
}

/// A slot that was cleared in memory only comes back if power is lost after the close.
#[test]
fn an_old_slot_sets_nothing_back_after_a_close() {
    let (node, mut client, ino) = with_file();
    client.write(&node, ino, b"old");
    let old = node.disk.read_all("tables/times").unwrap();
    client.write(&node, ino, b"new bytes");
    let before = node.store.tree().getattr(ino).unwrap();
    node.store.close().unwrap();
    let disk = after_power_loss(&node.disk);
    disk.put("tables/times", &old).unwrap();
    let after = open(&disk).tree().getattr(ino).unwrap();
    assert_eq!((after.size, after.mtime), (before.size, before.mtime));
}

/// A thread, as the kernel shows it to other threads.
struct Watch(PathBuf);

impl Watch {
    /// The calling thread.
    fn of_this_thread() -> Self {
        let own = fs::read_link("/proc/thread-self").unwrap();
        Self(Path::new("/proc").join(own).join("status"))
    }

    /// The status of the thread if it sleeps. Two equal values show that the thread did not wake up in
    /// between.
    fn asleep(&self) -> Option<String> {
        let status = fs::read_to_string(&self.0).ok()?;
        status.contains("State:\tS").then_some(status)
    }

    /// Whether the thread waits for another thread. Nothing else blocks a thread on a disk in memory.
    fn waits(&self) -> bool {
        let before = self.asleep();
        thread::yield_now();
        before.is_some() && before == self.asleep()
    }
}

/// The first write to a file gives its content a name. A durable write that comes at that moment is
/// acknowledged only when the name is durable too.
#[test]
fn a_durable_write_beside_the_first_one_keeps_the_name() {
    let disk = new_disk();
    let store = Store::open(disk.mount(), &open_options(Access::Write)).unwrap();
    let (say_made, made) = mpsc::channel();
    let (say_coming, coming) = mpsc::channel::<Watch>();
    let (say_over, over) = mpsc::channel();
    let once = Mutex::new(Some((coming, over)));
    let below = disk.clone();
    disk.observe(Some(Arc::new(move |call| {
        if call.kind != CallKind::Create || !call.path.starts_with("content/") {
            return Verdict::Go;
        }
        let Some((coming, over)) = once.lock().take() else {
            return Verdict::Go;
        };
        below.mount().open_or_create(call.path).unwrap();
        say_made.send(()).unwrap();
        let other = coming.recv().unwrap();
        // The second write may have to wait for the first. Then it comes later.
        while over.try_recv().is_err() && !other.waits() {
            thread::yield_now();
        }
        Verdict::Go
    })));
    let node = Node::of(disk, store.store);
    let ino = Client::new().create(&node, "f");
    let was_durable = thread::scope(|scope| {
        let node = &node;
        let other = scope.spawn(move || {
            made.recv().unwrap();
            say_coming.send(Watch::of_this_thread()).unwrap();
            let ticket = node.store.begin_write(ino, 8192, 5, true).unwrap();
            node.store.write_begun(&ticket, 8192, b"other").unwrap();
            node.store.sync_file(ino, false).unwrap();
            let was_durable = after_power_loss(&node.disk).read_all(&path(ino)).is_some();
            let _nobody_waits = say_over.send(());
            was_durable
        });
        let ticket = node.store.begin_write(ino, 0, 5, true).unwrap();
        node.store.write_begun(&ticket, 0, b"first").unwrap();
        other.join().unwrap()
    });
    node.disk.observe(None);
    assert!(was_durable);
}

/// A sync that was not tried, because the file could not be opened, leaves the content to the next sync.
#[test]
fn a_close_saves_what_a_sync_could_not_open() {
    let (node, mut client, ino) = with_file();
    client.write(&node, ino, b"bytes");
    // The first checkpoint finds the file in use. The second checkpoint closes the file.
    node.store.checkpoint().unwrap();
    node.store.checkpoint().unwrap();
    node.disk.fail_calls(CallClass::Look, Errno::NoMemory);
    node.store.sync_file(ino, true).map(drop).unwrap_err();
    node.disk.stop_failing();
    assert!(!node.store.is_poisoned() && !node.disk.is_durable(&path(ino)));
    node.store.close().unwrap();
    assert!(node.disk.is_durable(&path(ino)));
}
