//! The directories of content: an empty directory is removed, also during other operations.

use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_fs::paths::{content_dir, content_path};
use lockstep_sim::check::leaks::empty_directories;
use lockstep_sim::disk::CallClass;
use lockstep_types::{Errno, Ino, MetaRequest};

use super::double_faults::{Node, spread};
use super::*;

impl Node {
    /// Removes the name of a file, and frees the file.
    fn remove(&self, name: &str, ino: Ino) {
        let (parent, name) = (Ino::ROOT, file_name(name));
        let unlink = self.op(MetaRequest::Unlink { parent, name });
        self.store.commit(&unlink).unwrap();
        let reap = self.op(MetaRequest::Reap { ino });
        self.store.commit(&reap).unwrap();
    }

    fn has_directory(&self, ino: Ino) -> bool {
        self.disk.directories().contains(&content_dir(ino))
    }

    /// Does the regular maintenance of a node. Returns the number of removed directories.
    fn maintain(&self) -> usize {
        self.store.collect_garbage().unwrap();
        self.store.remove_empty_directories().unwrap()
    }

    fn empty_directories(&self) -> usize {
        let (files, directories) = (self.disk.files(), self.disk.directories());
        empty_directories(&directories, &files).len()
    }
}

#[test]
fn a_directory_goes_with_the_last_content_in_it() {
    let node = Node::new();
    let (a, b) = (node.create("a"), node.create("b"));
    node.write(a, b"bytes");
    node.write(b, b"bytes");
    node.remove("a", a);
    assert_eq!(node.maintain(), 0);
    assert!(node.has_directory(b));
    node.remove("b", b);
    assert_eq!(node.maintain(), 1);
    assert!(!node.has_directory(b));
}

/// A file may get its first content long after its number, when all files with neighbouring numbers
/// are gone.
#[test]
fn content_in_a_recreated_directory_is_durable_with_its_name() {
    for is_closed in [false, true] {
        let node = Node::new();
        let (first, later) = (node.create("first"), node.create("later"));
        node.write(first, b"bytes");
        node.store.sync_everything().unwrap();
        node.remove("first", first);
        assert_eq!(node.maintain(), 1);
        node.write(later, b"late");
        if is_closed {
            node.store.close().unwrap();
        } else {
            node.store.sync_file(later, true).unwrap();
        }
        let node = node.after_power_loss();
        assert!(node.bytes(later) == b"late");
    }
}

/// The name of that content was noted before the check of the directory, and is still unsynced.
#[test]
fn content_made_while_its_directory_is_checked_is_durable_with_its_name() {
    let node = Node::new();
    let (first, later) = (node.create("first"), node.create("later"));
    node.write(first, b"bytes");
    node.store.sync_everything().unwrap();
    node.remove("first", first);
    node.store.collect_garbage().unwrap();
    let (store, stamp) = (Arc::clone(&node.store), node.next_osn());
    let is_written = AtomicBool::new(false);
    node.disk.observe(Some(Arc::new(move |call| {
        if call.kind == CallKind::Remove && !is_written.swap(true, Ordering::Relaxed) {
            store.write(later, 0, b"late", stamp.0, stamp.1).unwrap();
        }
        Verdict::Go
    })));
    assert_eq!(node.store.remove_empty_directories().unwrap(), 0);
    node.disk.observe(None);
    node.store.sync_file(later, true).unwrap();
    let node = node.after_power_loss();
    assert!(node.bytes(later) == b"late");
}

/// A killed process, a power loss, or an older version may leave empty directories.
#[test]
fn directories_that_were_empty_before_the_opening_go() {
    let node = Node::new();
    let kept = node.create("kept");
    node.write(kept, b"bytes");
    let backing = node.disk.mount();
    for number in 1..=600 {
        let path = format!("content/{number:x}/f");
        backing.open_or_create(&path).unwrap();
        backing.remove(&path).unwrap();
    }
    // A directory that does not belong to the store.
    backing.open_or_create("content/lost+found/f").unwrap();
    backing.remove("content/lost+found/f").unwrap();
    backing.open_or_create("content/ff00").unwrap();
    node.disk.kill();
    let node = Node::on(node.disk, BOOT);
    let removed: Vec<usize> = std::iter::from_fn(|| Some(node.maintain()))
        .take_while(|removed| *removed > 0)
        .collect();
    assert_eq!(removed.iter().sum::<usize>(), 600);
    assert!(removed.len() > 1, "a few at a time: {removed:?}");
    assert_eq!(node.empty_directories(), 1, "that of somebody else");
    assert!(node.bytes(kept) == b"bytes");
    assert!(node.disk.files().contains(&"content/ff00".to_owned()));
}

#[test]
fn a_directory_that_cannot_be_removed_is_tried_again() {
    let node = Node::new();
    let inos = spread(&node, 3);
    for ino in &inos {
        node.remove(&format!("f{ino}"), *ino);
    }
    node.store.collect_garbage().unwrap();
    node.disk.fail_call(CallClass::Name, 2, Errno::NoSpace);
    let error = node.store.remove_empty_directories().unwrap_err();
    assert!(!node.store.is_poisoned());
    assert!(error.to_string().contains("content/"), "{error}");
    assert_eq!(node.empty_directories(), 1);
    assert_eq!(node.maintain(), 1);
    assert_eq!(node.empty_directories(), 0);
}

/// The directory was made, and then the disk was full.
#[test]
fn a_directory_without_the_content_it_was_made_for_goes() {
    let node = Node::new();
    let ino = node.create("f");
    let size = lockstep_sim::disk::DiskOptions {
        capacity_bytes: 1 << 30,
        capacity_files: 1 << 20,
    };
    node.disk.fill();
    let used = node.store.capacity().space().unwrap().total_files;
    // Room for `content` and for one directory in it.
    node.disk.set_capacity(DiskOptions {
        capacity_files: used + 2,
        ..size
    });
    let (osn, time) = node.next_osn();
    node.store.write(ino, 0, b"bytes", osn, time).unwrap_err();
    assert!(!node.disk.files().contains(&content_path(ino)));
    assert!(node.has_directory(ino));
    assert_eq!(node.maintain(), 1);
    node.disk.set_capacity(size);
    node.write(ino, b"bytes");
    assert!(node.bytes(ino) == b"bytes");
}
