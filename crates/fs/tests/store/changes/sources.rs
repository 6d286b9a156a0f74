//! Changes of other kinds than those of a client, and more of them than the tables hold.

use lockstep_fs::store::{ImageChunk, WholeAnswer};
use lockstep_fs::{StoreView, keys};
use lockstep_types::{Ino, MetaRequest};

use super::{Client, PART, change_names, copied, find, time};
use crate::harness::open;

/// A table for few names: everything may have changed. A table for few parts: more of the content.
#[test]
fn full_tables_are_coarser_and_lack_nothing() {
    let (node, tree, mut copy) = copied();
    let mut client = Client::new(&node.store, 1000);
    let mut files = Vec::new();
    for number in 0..40 {
        files.push(client.file(tree.deep, &format!("f{number}"), 5).unwrap());
    }
    assert_eq!(copy.update(&node.store).unwrap(), None);
    // More regions than the table has slots.
    for region in 0..7 {
        for file in &files {
            client.write(*file, region * 16 * PART, 1).unwrap();
        }
    }
    assert_eq!(copy.update(&node.store).unwrap(), None);
    copy.assert_is(&node.store, "many parts");
    for number in 0..400 {
        client.file(tree.deep, &format!("g{number}"), 1).unwrap();
    }
    let why = copy.update(&node.store).unwrap();
    assert_eq!(why, Some(WholeAnswer::TooManyNames));
    copy.assert_is(&node.store, "many names");
    client.write(tree.big, 0, 1).unwrap();
    assert_eq!(copy.update(&node.store).unwrap(), None);
    copy.assert_is(&node.store, "after many names");
}

/// All of another store, as a resync sends it.
#[test]
fn what_a_resync_brings_is_a_change() {
    let (node, tree, mut copy) = copied();
    let other = node.disk.fork();
    let source = open(&other);
    let mut client = Client::new(&source, 1000);
    change_names(&mut client, tree).unwrap();
    client.unlink(Ino::ROOT, "big").unwrap();
    client.meta(MetaRequest::Reap { ino: tree.big }).unwrap();
    source.image().settle_records().unwrap();
    let store = &node.store;
    store.image().begin().unwrap();
    for table in keys::REPLICATED {
        let chunk = ImageChunk::read(&source.tree(), table, &[], 1 << 20).unwrap();
        store.image().load_chunk(&chunk).unwrap();
    }
    store.image().prepare_finish().unwrap();
    let below = source.image().inos_below();
    store
        .image()
        .finish(source.image().applied(), below)
        .unwrap();
    // Content that the resync sends.
    let inside = find(store, b"deep/inside").unwrap().unwrap();
    store.replica().put_blocks(inside, 0, b"other").unwrap();
    let linked = find(store, b"link").unwrap().unwrap();
    let mut times = store.tree().file_times(linked).unwrap().unwrap();
    times.mtime = time(77);
    store.replica().set_file_times(linked, &times).unwrap();
    assert_eq!(copy.update(store).unwrap(), None);
    copy.assert_is(store, "after a resync");
}

#[test]
fn bytes_that_a_repair_puts_back_are_a_change() {
    let (node, tree, mut copy) = copied();
    let store = &node.store;
    store.sync_everything().unwrap();
    let path = lockstep_fs::paths::content_path(tree.big);
    node.disk.edit(&path, |bytes| bytes[4096] ^= 1).unwrap();
    // The copy takes the wrong byte.
    Client::new(store, 1000).write(tree.big, 0, 1).unwrap();
    copy.update(store).unwrap();
    let mut right = vec![0; 4096];
    store.read(tree.big, 8192, &mut right).unwrap();
    store.replica().heal_blocks(tree.big, 4096, &right).unwrap();
    assert_eq!(copy.update(store).unwrap(), None);
    copy.assert_is(store, "after the repair");
}
