//! Every kind of damage to the file is an error that names the damage, or does not matter: no wrong data, no
//! panic. A refused file stays unchanged.

use lockstep_fs::kv::redb::{RedbKv, RedbOptions};
use lockstep_fs::kv::{Kv, KvError};
use lockstep_lossy::disk::Disk;

use crate::model::{Map, all, put};
use crate::{content, disk_with};

const PATH: &str = "db";
const SECTOR: usize = 512;
const BLOCKS_AT: usize = 4096;
const STORED: usize = 4096 + 16;

fn open(disk: &Disk) -> Result<RedbKv, KvError> {
    RedbKv::open(&*disk.mount(), PATH, RedbOptions::default())
}

/// A store with a few levels, freed pages and a large value: its entries and its bytes, after a clean shutdown or
/// after a kill.
fn store(is_killed: bool) -> (Map, Vec<u8>) {
    let disk = Disk::default();
    let kv = RedbKv::create(&*disk.mount(), PATH, RedbOptions::default()).unwrap();
    for round in 0..4 {
        let pairs: Vec<_> = (0..150)
            .filter(|number| number % (round + 1) == 0)
            .map(|number| (format!("key{number}"), Some(vec![round; 50])))
            .collect();
        put(&kv, &pairs).unwrap();
    }
    put(&kv, &[("large", Some(vec![9; 20_000]))]).unwrap();
    put(&kv, &[("key7", None::<&str>)]).unwrap();
    let map = all(&kv).unwrap();
    let killed = content(&disk, PATH);
    drop(kv);
    let stopped = content(&disk, PATH);
    for content in [&killed, &stopped] {
        assert!(expect_right_or_refused(content, &map, "undamaged").is_none());
    }
    (map, if is_killed { killed } else { stopped })
}

/// Opens a damaged file and reads all of it.
fn expect_right_or_refused(content: &[u8], map: &Map, what: &str) -> Option<KvError> {
    let disk = disk_with(PATH, content);
    let refused = match open(&disk) {
        Ok(kv) => read_everything(&kv, map, what),
        Err(error) => {
            let untouched = crate::content(&disk, PATH) == content;
            assert!(untouched, "{what}: changed by a failed open ({error})");
            Some(error)
        }
    };
    if let Some(error) = &refused {
        assert!(matches!(error, KvError::Damaged { .. }), "{what}: {error}");
    }
    refused
}

fn read_everything(kv: &RedbKv, map: &Map, what: &str) -> Option<KvError> {
    let scanned = all(kv);
    if let Ok(scanned) = &scanned {
        assert_eq!(scanned, map, "{what}: wrong data from a scan");
    }
    for key in map.keys().map(Vec::as_slice).chain([&b"key7"[..]]) {
        if let Ok(value) = kv.get(key) {
            assert_eq!(value.as_ref(), map.get(key), "{what}: wrong data");
        }
    }
    scanned.err()
}

fn written_blocks(content: &[u8]) -> Vec<usize> {
    (BLOCKS_AT..content.len())
        .step_by(STORED)
        .filter(|at| content[*at..*at + STORED].iter().any(|byte| *byte != 0))
        .collect()
}

#[test]
fn a_flipped_bit_in_a_header_is_refused() {
    for is_killed in [false, true] {
        let (map, content) = store(is_killed);
        for at in 0..SECTOR {
            let mut content = content.clone();
            content[at] ^= 1 << (at % 8);
            let refused = expect_right_or_refused(&content, &map, &format!("bit at {at}"));
            assert!(refused.is_some(), "bit at {at} was not noticed");
        }
    }
}

#[test]
fn a_flipped_bit_in_a_block_is_refused_or_does_not_matter() {
    for is_killed in [false, true] {
        let (map, content) = store(is_killed);
        let blocks = written_blocks(&content);
        assert!(blocks.len() > 10, "the store is too small for this test");
        let mut refused = 0;
        for (number, block) in blocks.iter().enumerate() {
            for at in (block + number % 211..block + STORED).step_by(211) {
                let mut content = content.clone();
                content[at] ^= 1 << (at % 8);
                let what = format!("bit at {at}");
                refused += u32::from(expect_right_or_refused(&content, &map, &what).is_some());
            }
        }
        assert!(refused > 100, "only {refused} were noticed");
    }
}

#[test]
fn a_block_that_was_lost_or_moved_is_refused_or_does_not_matter() {
    let (map, content) = store(true);
    let blocks = written_blocks(&content);
    let mut refused = 0;
    for (to, from) in blocks.iter().zip(blocks.iter().skip(1)) {
        let mut moved = content.clone();
        moved.copy_within(*from..from + STORED, *to);
        refused += usize::from(expect_right_or_refused(&moved, &map, "moved").is_some());
        let mut lost = content.clone();
        lost[*to..to + STORED].fill(0);
        refused += usize::from(expect_right_or_refused(&lost, &map, "lost").is_some());
    }
    assert!(refused > 0);
}

#[test]
fn a_truncated_file_is_refused() {
    for is_killed in [false, true] {
        let (map, content) = store(is_killed);
        let lengths = [0, 1, SECTOR, BLOCKS_AT];
        let blocks = (BLOCKS_AT..content.len()).step_by(STORED * 7);
        let torn = (BLOCKS_AT + 1000..content.len()).step_by(STORED * 31);
        for length in lengths.into_iter().chain(blocks).chain(torn) {
            let (cut, what) = (&content[..length], format!("cut to {length}"));
            let refused = expect_right_or_refused(cut, &map, &what);
            assert!(refused.is_some(), "the cut to {length} was not noticed");
        }
    }
}

#[test]
fn other_files_are_refused() {
    let zeros = vec![0; 1 << 20];
    let text = b"this is no store\n".repeat(1000);
    for content in [zeros, text] {
        let refused = expect_right_or_refused(&content, &Map::new(), "no store").unwrap();
        let message = refused.to_string();
        assert!(message.starts_with("db: "), "{message}");
        assert!(message.contains("A store is damaged"), "{message}");
    }
}

#[test]
fn a_longer_file_is_no_damage_as_a_power_loss_may_leave_one() {
    let (map, mut content) = store(true);
    content.resize(content.len() + 5000, 7);
    let refused = expect_right_or_refused(&content, &map, "longer");
    assert!(refused.is_none(), "{refused:?}");
}

/// Changes bytes of the header and updates its hash.
fn with_header(mut content: Vec<u8>, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let (body, hash) = content[..SECTOR].split_at_mut(SECTOR - 16);
    change(body);
    hash.copy_from_slice(&blake3::keyed_hash(&[0; 32], body).as_bytes()[..16]);
    content
}

#[test]
fn newer_formats_are_told_from_damage() {
    const REDB_VERSION_AT: usize = 24 + 64;
    let (_, content) = store(false);
    let layout = with_header(content.clone(), |header| header[8] = 2);
    let database = with_header(content, |header| header[REDB_VERSION_AT] = 4);
    for (content, format, known) in [(layout, "layout", 1), (database, "database", 3)] {
        let disk = disk_with(PATH, &content);
        let error = open(&disk).err().unwrap();
        let expected = format!("db: the metadata store has {format} version {}", known + 1);
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(matches!(error, KvError::Newer { .. }));
        assert_eq!(crate::content(&disk, PATH), content);
    }
}

/// Wrong bytes with a right checksum, as a fault of memory or of the store itself would make them. Reads may then
/// return wrong data, but no panic leaves the store, and a panic inside stops the store.
#[test]
fn a_page_that_makes_no_sense_does_not_panic() {
    let (map, content) = store(true);
    let mut stopped = 0;
    for block in written_blocks(&content) {
        for at in (block..block + 4096).step_by(if block == BLOCKS_AT { 13 } else { 301 }) {
            let mut content = content.clone();
            content[at] ^= 1 << (at % 8);
            fit_hash(&mut content, block);
            let disk = disk_with(PATH, &content);
            let Ok(kv) = open(&disk) else { continue };
            let _ = all(&kv);
            for key in map.keys() {
                if let Err(KvError::Stopped { .. }) = kv.get(key) {
                    stopped += 1;
                    assert!(put(&kv, &[("key", Some("value"))]).is_err());
                    break;
                }
            }
        }
    }
    assert!(
        stopped > 0,
        "nothing panicked inside, so this test shows nothing"
    );
}

/// Updates the checksum of a block.
fn fit_hash(content: &mut [u8], block: usize) {
    let mut key = [0; 32];
    let number = 1 + (block - BLOCKS_AT) / STORED;
    key[..8].copy_from_slice(&(number as u64).to_le_bytes());
    let (body, hash) = content[block..block + STORED].split_at_mut(4096);
    hash.copy_from_slice(&blake3::keyed_hash(&key, body).as_bytes()[..16]);
}

/// No checksum of a block shows that the disk lost a whole, synced write. The check finds such a loss by the
/// checksums that pages have of the pages below them.
#[test]
fn the_check_finds_a_block_that_went_back_in_time() {
    let disk = Disk::default();
    let kv = RedbKv::create(&*disk.mount(), PATH, RedbOptions::default()).unwrap();
    let mut images = Vec::new();
    for round in 0..6u8 {
        put(&kv, &[("key", Some([round; 100]))]).unwrap();
        images.push(content(&disk, PATH));
    }
    drop(kv);
    let newest = images.pop().unwrap();
    let mut found = 0;
    for old in &images {
        let blocks = written_blocks(old).into_iter();
        for block in blocks.filter(|block| block + STORED <= newest.len()) {
            let mut mixed = newest.clone();
            mixed[block..block + STORED].copy_from_slice(&old[block..block + STORED]);
            let mixed = disk_with(PATH, &mixed);
            let checked = open(&mixed).and_then(|mut kv| {
                kv.check()?;
                kv.get(b"key")
            });
            match checked {
                Ok(value) => assert_eq!(value, Some(vec![5; 100])),
                Err(KvError::Damaged { .. }) => found += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(found > 0);
}
