//! No request makes the secondary panic, or changes data outside the request's purpose.

use lockstep_fs::keys;
use lockstep_fs::store::{ImageChange, ImageChunk, ImageRecord};
use lockstep_repl::message::{
    ComparePurpose, ContentSource, Request, Response, WireContent, WireFileTimes,
};
use lockstep_resync::answer;
use lockstep_types::limits::FILE_BYTES_MAX;
use lockstep_types::{Hash128, Ino, Timestamp, WriteVerifier};
use proptest::prelude::*;

use super::nodes::{Node, records};

fn refused(node: &Node, request: &Request, payload: &[u8]) {
    let before = records(node.store());
    assert!(
        answer(node.store(), request, payload).is_err(),
        "{request:?}"
    );
    assert_eq!(records(node.store()), before);
}

fn times(size: u64) -> WireFileTimes {
    WireFileTimes {
        size,
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        last_write: None,
    }
}

fn chunk(table: u8, after: &[u8], keys: &[&[u8]], last: bool) -> Vec<u8> {
    let record = |key: &&[u8]| ImageRecord {
        key: key.to_vec(),
        value: vec![1, 2, 3],
    };
    let chunk = ImageChunk {
        table,
        after: after.to_vec(),
        records: keys.iter().map(record).collect(),
        last,
    };
    postcard::to_allocvec(&chunk).unwrap()
}

#[test]
fn chunks_that_reach_outside_their_table_are_refused() {
    let node = Node::new();
    node.file("file", &[1; 100]);
    let (one, two) = (keys::xattr(Ino::ROOT, b"a"), keys::xattr(Ino::ROOT, b"b"));
    let local = keys::CHECKPOINT;
    for payload in [
        vec![],
        vec![0xff; 100],
        chunk(keys::LOCAL, &[], &[local], true),
        chunk(255, &[], &[], true),
        chunk(keys::XATTRS, &[], &[local], true),
        chunk(keys::XATTRS, &[], &[&two, &one], true),
        chunk(keys::XATTRS, &[], &[&one, &one], true),
        chunk(keys::XATTRS, &two, &[&one], true),
        chunk(keys::XATTRS, local, &[&one], true),
        chunk(keys::XATTRS, &[], &[b"x"], true),
        chunk(keys::XATTRS, &[], &[], false),
        chunk(keys::INODES, &[], &[&keys::inode(Ino::ROOT)], true),
    ] {
        refused(&node, &Request::ImageChunk, &payload);
    }
}

/// A record that was created and deleted must be deleted on the secondary: so each key comes once.
#[test]
fn changed_records_out_of_order_are_refused() {
    let node = Node::new();
    let (one, two) = (keys::xattr(Ino::ROOT, b"a"), keys::xattr(Ino::ROOT, b"b"));
    let change = |key: &Vec<u8>, value: Option<&[u8]>| ImageChange {
        key: key.clone(),
        value: value.map(<[u8]>::to_vec),
    };
    let value: &[u8] = &[1, 2, 3];
    for changes in [
        [change(&one, Some(value)), change(&one, None)],
        [change(&two, Some(value)), change(&one, Some(value))],
    ] {
        let payload = postcard::to_allocvec(&changes.to_vec()).unwrap();
        refused(&node, &Request::ImageChanges, &payload);
    }
}

#[test]
fn ranges_that_no_file_has_are_refused() {
    let node = Node::new();
    let ino = node.file("file", &[1; 100]);
    let unknown = Ino::new(1 << 50).unwrap();
    let hash = Hash128::of(&[]);
    let compare = |offset, count| Request::CompareBlocks {
        ino,
        offset,
        hashes: vec![hash; count],
        purpose: ComparePurpose::Resync,
    };
    let hole = |offset, length| Request::CompareHole {
        ino,
        offset,
        length,
        purpose: ComparePurpose::Resync,
    };
    let recover = |ino, offset, size| Request::RecoverRange {
        ino,
        offset,
        times: times(size),
    };
    refused(&node, &compare(u64::MAX, 1), &[]);
    refused(&node, &compare(0, 257), &[]);
    refused(&node, &hole(u64::MAX, 2), &[]);
    refused(&node, &hole(0, u64::MAX), &[]);
    let write = |ino, offset, length| Request::WriteBlocks {
        ino,
        ranges: vec![(offset, length)],
    };
    refused(&node, &write(ino, u64::MAX - 4095, 5), &[1; 5]);
    refused(&node, &write(ino, 1, 5), &[1; 5]);
    refused(&node, &write(ino, 0, 4), &[1; 5]);
    refused(&node, &write(ino, 0, 6), &[1; 5]);
    refused(
        &node,
        &write(ino, 0, (1 << 20) + 1),
        &vec![1; (1 << 20) + 1],
    );
    refused(&node, &write(unknown, 0, 5), &[1; 5]);
    refused(&node, &write(Ino::ROOT, 0, 5), &[1; 5]);
    let many = Request::WriteBlocks {
        ino,
        ranges: vec![(0, 0); 257],
    };
    refused(&node, &many, &[]);
    let sums = |runs, sums| Request::CompareSums {
        ino,
        secret: 1,
        runs,
        sums: vec![1; sums],
    };
    refused(&node, &sums(vec![(0, 2)], 1), &[]);
    refused(&node, &sums(vec![(0, 1)], 2), &[]);
    refused(&node, &sums(vec![(0, 257)], 257), &[]);
    refused(&node, &sums(vec![(0, u32::MAX); 256], 256), &[]);
    refused(&node, &sums(vec![(0, 0); 257], 0), &[]);
    refused(&node, &sums(vec![(5, 1)], 1), &[]);
    refused(&node, &sums(vec![(u64::MAX - 4095, 1)], 1), &[]);
    refused(&node, &recover(ino, u64::MAX, 100), &[1]);
    refused(&node, &recover(ino, 0, 4), &[1; 5]);
    refused(&node, &recover(ino, 0, u64::MAX), &[1; 5]);
    refused(&node, &recover(unknown, 0, 5), &[1; 5]);
    let set_times = |ino, size, count| Request::SetFiles {
        files: vec![(ino, times(size), WireContent::Hash(hash)); count],
    };
    let put = |ino, size| Request::SetFiles {
        files: vec![(ino, times(size), WireContent::Bytes)],
    };
    refused(&node, &put(ino, 6), &[1; 5]);
    refused(&node, &put(ino, 4), &[1; 5]);
    refused(&node, &put(ino, u64::MAX), &[1; 5]);
    refused(&node, &put(unknown, 5), &[1; 5]);
    refused(&node, &put(Ino::ROOT, 5), &[1; 5]);
    refused(&node, &put(ino, 5), &vec![1; (1 << 20) + 1]);
    refused(&node, &set_times(ino, 100, 65), &[]);
    refused(&node, &set_times(ino, u64::MAX, 1), &[]);
    refused(&node, &set_times(unknown, 100, 1), &[]);
    let verifier = WriteVerifier::NONE;
    refused(&node, &Request::InSync { verifier }, &[]);
}

#[test]
fn a_hash_over_more_bytes_than_allowed_is_treated_as_different() {
    let node = Node::new();
    let ino = node.file("file", &[1; 100]);
    let request = Request::SetFiles {
        files: vec![(ino, times(1 << 40), WireContent::Hash(Hash128::of(&[])))],
    };
    let answered = answer(node.store(), &request, &[]).unwrap();
    assert_eq!(answered, Response::Differing(vec![1]));
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..100_000u64,
        any::<u64>(),
        Just(u64::MAX),
        Just(FILE_BYTES_MAX)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_numbers_cause_a_panic(
        questions in prop::collection::vec((0..5u8, 1..4u64, number(), number()), 1..8),
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let node = Node::new();
        node.file("one", &[1; 9000]);
        for (kind, ino, offset, length) in questions {
            let ino = Ino::new(ino).unwrap();
            let request = match kind {
                0 if offset % 2 == 0 => Request::CompareRun {
                    ino,
                    offset,
                    blocks: u32::try_from(length % (1 << 32)).unwrap(),
                    hash: Hash128::of(&[]),
                },
                0 => Request::ImageChunk,
                1 => Request::CompareBlocks { ino, offset, hashes: vec![Hash128::of(&[]); 3], purpose: ComparePurpose::Resync },
                2 if offset % 3 == 0 => Request::CompareSums {
                    ino,
                    secret: node.store().sums().key().map_or(0, |key| key.probe()),
                    runs: vec![(offset / 4096 * 4096, 2), (0, 1)],
                    sums: vec![length; 3],
                },
                2 => Request::WriteBlocks { ino, ranges: vec![(offset / 4096 * 4096, 200), (0, 100)] },
                3 if offset % 2 == 0 => Request::CompareHole { ino, offset, length, purpose: ComparePurpose::Resync },
                3 => Request::CompareHole {
                    ino,
                    offset,
                    length,
                    purpose: ComparePurpose::Verify(ContentSource::Disk),
                },
                _ => Request::RecoverRange { ino, offset, times: times(length) },
            };
            let _ = answer(node.store(), &request, &payload);
        }
    }
}
