//! Damaged, foreign and newer stores: each gives a clear error, and stays unchanged.

use lockstep_fs::store::{Access, OpenOptions};
use lockstep_fs::{Store, StoreView};
use lockstep_lossy::disk::Disk;
use lockstep_types::{DatastoreUuid, Ino};
use proptest::prelude::*;

use crate::durability::Client;
use crate::harness::{Node, UUID, open_options};

/// A disk whose store was killed in the middle of work.
fn used() -> (Disk, Ino) {
    let node = Node::new();
    let mut client = Client::new();
    let ino = client.create(&node, "f");
    client.write(&node, ino, &[7; 10_000]);
    node.store.checkpoint().unwrap();
    client.create(&node, "g");
    (node.disk.fork(), ino)
}

fn open_with(disk: &Disk, options: &OpenOptions) -> Result<Store, String> {
    let opened = Store::open(disk.mount(), options).map_err(|error| error.to_string())?;
    Ok(opened.store)
}

/// Checks that opening for writing and opening for reading both fail, name `expected`, and change nothing.
fn refused(disk: &Disk, expected: &str) {
    let before = disk.digest();
    for access in [Access::Write, Access::Read] {
        match open_with(disk, &open_options(access)) {
            Ok(_) => panic!("opened although: {expected}"),
            Err(error) => assert!(error.contains(expected), "{error}"),
        }
        assert!(disk.digest() == before, "the store was changed: {expected}");
    }
}

fn set_format(disk: &Disk, text: &str) {
    disk.put("format.json", text.as_bytes()).unwrap();
}

#[test]
fn a_newer_format_is_refused_whatever_else_it_says() {
    let (disk, _) = used();
    set_format(&disk, r#"{"lockstep_store": 5, "shards": 7}"#);
    refused(&disk, "format 5, this program knows formats up to 4");
}

#[test]
fn a_format_from_before_the_first_release_is_refused() {
    let (disk, _) = used();
    set_format(&disk, r#"{"lockstep_store": 1}"#);
    refused(&disk, "format 1, this program knows format 4 only");
}

/// A store of a format before gets the new one when it is opened for use: an older program then refuses it, and does not change
/// content of which the delta says nothing, or whose sums it leaves as they are.
#[test]
fn a_store_of_a_format_before_becomes_one_of_this_format() {
    for before in [2, 3] {
        let (disk, _) = used();
        let old = format!(r#"{{"lockstep_store": {before}, "datastore": "{UUID}"}}"#);
        set_format(&disk, &old);
        Store::open(disk.mount(), &open_options(Access::Read)).unwrap();
        assert_eq!(disk.read_all("format.json").unwrap(), old.as_bytes());
        Store::open(disk.mount(), &open_options(Access::Write)).unwrap();
        let now: serde_json::Value =
            serde_json::from_slice(&disk.read_all("format.json").unwrap()).unwrap();
        assert_eq!(now["lockstep_store"], 4);
    }
}

#[test]
fn what_is_no_format_file_is_refused() {
    for text in [
        "",
        "{",
        "\0\0\0",
        r#"{"lockstep_store": 4}"#,
        r#"{"lockstep_store": 0}"#,
        r#"{"lockstep_store": 0, "datastore": "07070707-0707-0707-0707-070707070707"}"#,
    ] {
        let (disk, _) = used();
        set_format(&disk, text);
        refused(&disk, "holds no Lockstep store");
    }
    refused(&Disk::default(), "there is no format.json");
}

#[test]
fn the_store_of_another_datastore_is_refused() {
    let (disk, _) = used();
    let other = DatastoreUuid::from_bytes([8; 16]);
    set_format(
        &disk,
        &format!(r#"{{"lockstep_store": 4, "datastore": "{other}"}}"#),
    );
    refused(
        &disk,
        &format!("belongs to datastore {other}, the configuration says {UUID}"),
    );
}

#[test]
fn files_cut_short_are_refused() {
    let cuts = [
        ("namespace.redb", 20_000, "namespace"),
        ("namespace.redb", 100, "namespace"),
        ("log/intent.0", 30_000, "intent log"),
        ("log/intent.1", 0, "intent log"),
        ("tables/times", 4096, "tables/times has 4096 bytes"),
    ];
    for (path, length, expected) in cuts {
        let (disk, _) = used();
        disk.edit(path, |bytes| bytes.truncate(length)).unwrap();
        refused(&disk, expected);
    }
}

#[test]
fn missing_files_are_refused() {
    for (path, expected) in [
        ("namespace.redb", "there is no metadata store here"),
        ("log/intent.0", "intent log"),
        ("log/intent.1", "intent log"),
        ("tables/times", "tables/times has 0 bytes"),
    ] {
        let (disk, _) = used();
        disk.mount().remove(path).unwrap();
        refused(&disk, expected);
    }
}

#[test]
fn content_cut_short_is_an_error_for_who_reads_it() {
    let (disk, ino) = used();
    let path = lockstep_fs::paths::content_path(ino);
    // A clean shutdown, so that the record and not the content gives the length.
    open_with(&disk, &open_options(Access::Write))
        .unwrap()
        .close()
        .unwrap();
    disk.edit(&path, |bytes| bytes.truncate(9_999)).unwrap();
    let before = disk.digest();
    let store = open_with(&disk, &open_options(Access::Read)).unwrap();
    let error = store.read(ino, 0, &mut [0; 10]).unwrap_err().to_string();
    assert!(
        error.contains("is 9999 bytes long on disk but 10000"),
        "{error}"
    );
    assert!(disk.digest() == before);
}

/// Reading a store that was killed recovers in memory only.
#[test]
fn reading_changes_nothing() {
    let (disk, ino) = used();
    let before = disk.digest();
    let store = open_with(&disk, &open_options(Access::Read)).unwrap();
    assert_eq!(store.tree().getattr(ino).unwrap().size, 10_000);
    assert!(store.close().is_err(), "nothing to be closed");
    drop(store);
    assert!(disk.digest() == before);
}

/// Reads everything. Damage that opening does not notice must not change later reads without an error.
fn all_readable(store: &Store, ino: Ino) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 10_000];
    store.read(ino, 0, &mut bytes).ok()?;
    store
        .tree()
        .readdir(
            Ino::ROOT,
            0,
            &mut |_, _| std::ops::ControlFlow::Continue(()),
        )
        .ok()?;
    Some(bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A flipped bit anywhere in metadata, log or tables is harmless, or the store is refused and left
    /// unchanged.
    #[test]
    fn a_flipped_bit_is_refused_or_harmless(file in 0..4usize, at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let (disk, ino) = used();
        let path = ["namespace.redb", "log/intent.0", "log/intent.1", "tables/times"][file];
        disk.edit(path, |bytes| {
            // The first quarter of each file holds data.
            let at = at.index(bytes.len() / 4);
            bytes[at] ^= 1 << bit;
        })
        .unwrap();
        let before = disk.digest();
        match open_with(&disk, &open_options(Access::Write)) {
            Err(error) => {
                prop_assert!(!error.is_empty());
                prop_assert!(disk.digest() == before, "{}", error);
            }
            Ok(store) => {
                let read = all_readable(&store, ino);
                prop_assert!(read.is_none_or(|bytes| bytes == [7; 10_000]));
            }
        }
    }
}
