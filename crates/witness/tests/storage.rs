//! The store of the own witness: a loss of power, damage, and a store that is missing, foreign or in use.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::fs;

use lockstep_link::Fingerprint;
use lockstep_lossy::disk::{CallClass, Disk, Survivors, Verdict};
use lockstep_lossy::random::Random;
use lockstep_roles::{Claim, InSyncSet, Member, WitnessRecord};
use lockstep_types::{DatastoreUuid, Errno, Generation};
use lockstep_witness::{DATASTORES_MAX, NodePair, WitnessStore, WitnessStoreError};

/// The file of the store.
const FILE: &str = "records";

/// Datastores of a test.
const DATASTORES: u8 = 5;

fn pair() -> NodePair {
    let [one, other] = [b"a", b"b"].map(|der| Fingerprint::of_certificate(der));
    NodePair::new(one, other).unwrap()
}

fn uuid(number: u8) -> DatastoreUuid {
    DatastoreUuid::from_bytes([number; 16])
}

fn next(known: Option<WitnessRecord>) -> WitnessRecord {
    let change = known.map_or(0, |known| known.change + 1);
    WitnessRecord {
        change,
        generation: Generation::new(change + 1).unwrap(),
        primary: [Member::First, Member::Second][usize::from(change % 2 == 1)],
        in_sync: InSyncSet::Both,
        sync: None,
    }
}

/// Claims the next change of a datastore.
fn claim(store: &WitnessStore, number: u8) -> Result<Option<WitnessRecord>, WitnessStoreError> {
    let expected = store.read(uuid(number), pair())?;
    let new = next(expected);
    store.claim(uuid(number), pair(), &Claim { expected, new })
}

/// The records of all datastores, in their order.
fn records(store: &WitnessStore) -> Vec<Option<WitnessRecord>> {
    let read = |number| store.read(uuid(number), pair()).unwrap();
    (0..DATASTORES).map(read).collect()
}

fn open(disk: &Disk) -> Result<WitnessStore, WitnessStoreError> {
    WitnessStore::open_on(&*disk.fork().mount(), "the store")
}

/// Makes claims until the disk fails. Returns the acknowledged records, and the datastore of the claim that failed.
fn claim_until_failure(store: &WitnessStore) -> (Vec<Option<WitnessRecord>>, Option<u8>) {
    let mut acknowledged = vec![None; usize::from(DATASTORES)];
    for round in 0..4 {
        for number in 0..DATASTORES {
            match claim(store, number) {
                Ok(record) => acknowledged[usize::from(number)] = record,
                Err(error) => {
                    let is_disk = matches!(error, WitnessStoreError::Disk { .. });
                    assert!(is_disk, "round {round}: {error}");
                    return (acknowledged, Some(number));
                }
            }
        }
    }
    (acknowledged, None)
}

#[test]
fn no_acknowledged_claim_is_lost_with_the_power() {
    let mut random = Random::new(0x5EED);
    let mut calls = 0;
    loop {
        let disk = Disk::default();
        let store = WitnessStore::create_on(&*disk.mount(), "the store").unwrap();
        disk.set_verdict(calls + 1, Verdict::CrashBefore);
        let (acknowledged, failed) = claim_until_failure(&store);
        for percent in [100, 50, 50, 12, 0] {
            let left = disk.after_power_loss(Survivors::Mixed { percent }, random.any());
            let reopened = open(&left).unwrap();
            assert_eq!(reopened.id(), store.id());
            for (number, found) in records(&reopened).into_iter().enumerate() {
                let known = acknowledged[number];
                let is_attempted = failed.is_some_and(|failed| usize::from(failed) == number);
                assert!(
                    found == known || is_attempted && found == Some(next(known)),
                    "power lost after {calls} calls: {known:?} was acknowledged, {found:?} is found"
                );
            }
        }
        if failed.is_none() {
            return;
        }
        calls += 1;
    }
}

#[test]
fn a_record_that_could_not_be_synced_is_durable_once_it_is_told() {
    for failing in 1.. {
        let disk = Disk::default();
        let store = WitnessStore::create_on(&*disk.mount(), "the store").unwrap();
        let known = claim(&store, 0).unwrap();
        disk.fail_call(CallClass::Sync, failing, Errno::Io);
        let Err(error) = claim(&store, 0) else {
            // A claim has fewer syncs.
            assert!(failing > 2, "a claim has {failing} syncs");
            return;
        };
        assert!(matches!(error, WitnessStoreError::Disk { .. }), "{error}");
        // The store answers nothing more.
        assert!(claim(&store, 0).unwrap_err().is_failure());
        disk.kill();
        drop(store);
        // The next process sees the memory of the system, and tells a record only after it is on the disk.
        let again = WitnessStore::open_on(&*disk.mount(), "the store").unwrap();
        let told = again.read(uuid(0), pair()).unwrap();
        assert!(told == known || told == Some(next(known)));
        let left = disk.after_power_loss(Survivors::Nothing, 1);
        let reopened = open(&left).unwrap();
        assert_eq!(reopened.read(uuid(0), pair()).unwrap(), told);
    }
}

#[test]
fn a_full_disk_refuses_claims_until_there_is_room() {
    let disk = Disk::default();
    let store = WitnessStore::create_on(&*disk.mount(), "the store").unwrap();
    claim(&store, 0).unwrap();
    let known = records(&store);
    disk.fail_calls(CallClass::Write, Errno::NoSpace);
    let error = claim(&store, 0).unwrap_err();
    assert!(error.is_full_disk() && !error.is_failure(), "{error}");
    assert!(error.to_string().contains("make room"), "{error}");
    disk.stop_failing();
    assert_eq!(records(&store), known);
    assert!(claim(&store, 0).unwrap().is_some());
}

/// The length of a file without its reserved space, by its header.
fn used_bytes(file: &[u8]) -> usize {
    let blocks = u64::from_le_bytes(file[16..24].try_into().unwrap());
    4096 + (usize::try_from(blocks).unwrap() - 1) * (4096 + 16)
}

#[test]
fn every_damage_is_refused_or_does_not_matter() {
    let disk = Disk::default();
    let store = WitnessStore::create_on(&*disk.mount(), "the store").unwrap();
    for _ in 0..3 {
        for number in 0..DATASTORES {
            claim(&store, number).unwrap();
        }
    }
    let expected = records(&store);
    drop(store);
    let mut whole = disk.read_all(FILE).unwrap();
    // Nothing reads the reserved space behind.
    whole.truncate(used_bytes(&whole));
    let length = u64::try_from(whole.len()).unwrap();
    let mut random = Random::new(0xDA_4A6E);
    let mut refused = 0;
    // The header is in the first 512 bytes. Nothing reads the space between it and the first block.
    let every = (0..512).chain((512..length).step_by(97));
    for offset in every {
        let damaged = disk.fork();
        let bit = u32::try_from(random.below(8)).unwrap();
        if damaged.flip_bit(FILE, offset, bit) {
            match open(&damaged) {
                Ok(store) => assert_eq!(records(&store), expected, "bit at {offset}"),
                Err(error) => {
                    assert!(
                        matches!(
                            error,
                            WitnessStoreError::Damaged { .. } | WitnessStoreError::Disk { .. }
                        ),
                        "bit at {offset}: {error}"
                    );
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100, "{refused} flipped bits were noticed");
    for length in [0, 1, 511, 512, 4096, 5000, whole.len() / 2] {
        let cut = disk.fork();
        cut.put(FILE, &whole[..length]).unwrap();
        let error = open(&cut).err().unwrap();
        assert!(
            matches!(error, WitnessStoreError::Damaged { .. }),
            "cut to {length}: {error}"
        );
    }
}

#[test]
fn a_missing_store_is_not_an_empty_one() {
    let directory = tempfile::tempdir().unwrap();
    let missing = |path: &std::path::Path| {
        let error = WitnessStore::open(path).err().unwrap();
        assert!(
            matches!(error, WitnessStoreError::Missing { .. }),
            "{error}"
        );
        assert!(error.to_string().contains("A lost witness"), "{error}");
    };
    missing(directory.path());
    missing(&directory.path().join("not mounted"));
    let store = WitnessStore::create(directory.path()).unwrap();
    claim(&store, 0).unwrap();
    drop(store);
    fs::remove_file(directory.path().join(FILE)).unwrap();
    missing(directory.path());
}

#[test]
fn a_store_is_made_once_and_used_by_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let store = WitnessStore::create(directory.path()).unwrap();
    let known = claim(&store, 0).unwrap();
    let in_use = WitnessStore::open(directory.path()).err().unwrap();
    assert!(
        matches!(in_use, WitnessStoreError::InUse { .. }),
        "{in_use}"
    );
    drop(store);
    let exists = WitnessStore::create(directory.path()).err().unwrap();
    assert!(
        matches!(exists, WitnessStoreError::Exists { .. }),
        "{exists}"
    );
    let store = WitnessStore::open(directory.path()).unwrap();
    assert_eq!(store.read(uuid(0), pair()).unwrap(), known);
    let other = WitnessStore::create(tempfile::tempdir().unwrap().path()).unwrap();
    assert_ne!(store.id(), other.id());
}

#[test]
fn an_interrupted_making_leaves_no_store_that_opens() {
    for calls in 0.. {
        let disk = Disk::default();
        disk.set_verdict(calls + 1, Verdict::CrashBefore);
        let made = WitnessStore::create_on(&*disk.mount(), "the store");
        let left = disk.after_power_loss(Survivors::Everything, calls);
        match (made, open(&left)) {
            (Ok(made), opened) => {
                assert_eq!(opened.unwrap().id(), made.id());
                return;
            }
            // The last call may have completed the store.
            (Err(_), Ok(opened)) => assert!(opened.list().unwrap().is_empty()),
            (Err(_), Err(error)) => assert!(
                matches!(
                    error,
                    WitnessStoreError::Missing { .. } | WitnessStoreError::Damaged { .. }
                ),
                "{error}"
            ),
        }
    }
}

#[test]
fn a_store_has_a_bounded_number_of_datastores() {
    let disk = Disk::default();
    let store = WitnessStore::create_on(&*disk.mount(), "the store").unwrap();
    let number =
        |number: usize| DatastoreUuid::from_bytes(u128::try_from(number).unwrap().to_be_bytes());
    let first = Claim {
        expected: None,
        new: next(None),
    };
    for datastore in 0..DATASTORES_MAX {
        store.claim(number(datastore), pair(), &first).unwrap();
    }
    for store in [store, open(&disk).unwrap()] {
        let error = store
            .claim(number(DATASTORES_MAX), pair(), &first)
            .unwrap_err();
        assert!(matches!(error, WitnessStoreError::Full), "{error}");
        assert!(!error.is_failure());
        // Known datastores go on.
        let change = Claim {
            expected: Some(first.new),
            new: next(Some(first.new)),
        };
        store.claim(number(7), pair(), &change).unwrap();
        assert_eq!(store.list().unwrap().len(), DATASTORES_MAX);
    }
}

#[test]
fn a_record_belongs_to_its_two_nodes() {
    let disk = Disk::default();
    let store = WitnessStore::create_on(&*disk.mount(), "the store").unwrap();
    let known = claim(&store, 0).unwrap();
    let other = NodePair::new(
        Fingerprint::of_certificate(b"a"),
        Fingerprint::of_certificate(b"c"),
    );
    let error = store.read(uuid(0), other.unwrap()).unwrap_err();
    assert!(
        matches!(error, WitnessStoreError::OtherPair { .. }),
        "{error}"
    );
    let claim = Claim {
        expected: known,
        new: next(known),
    };
    let error = store.claim(uuid(0), other.unwrap(), &claim).unwrap_err();
    assert!(!error.is_failure());
    assert_eq!(store.read(uuid(0), pair()).unwrap(), known);
}

/// A claim for each of as many datastores as a store takes.
fn claim_for_all(store: &WitnessStore) {
    for number in 0..DATASTORES_MAX {
        let uuid = DatastoreUuid::from_bytes(u128::try_from(number).unwrap().to_be_bytes());
        let expected = store.read(uuid, pair()).unwrap();
        let new = next(expected);
        let claim = Claim { expected, new };
        store.claim(uuid, pair(), &claim).unwrap();
    }
}

#[test]
fn claims_for_all_datastores_are_recorded_on_a_full_disk() {
    let disk = Disk::default();
    let store = WitnessStore::create_on(&*disk.mount(), "the store").unwrap();
    disk.fill();
    claim_for_all(&store);
    drop(store);
    // The space is kept over a stop and a failure.
    let store = WitnessStore::open_on(&*disk.mount(), "the store").unwrap();
    for _ in 0..2 {
        claim_for_all(&store);
        disk.fail_calls(CallClass::Write, Errno::Io);
        store.prove().unwrap_err();
        disk.stop_failing();
        store.prove().unwrap();
    }
}

/// So it is with a store of an earlier version.
#[test]
fn a_store_without_its_space_on_a_full_disk_opens_and_does_not_prove_that_it_records() {
    let disk = Disk::default();
    let store = WitnessStore::create_on(&*disk.mount(), "the store").unwrap();
    let known = claim(&store, 0).unwrap();
    drop(store);
    disk.edit(FILE, |bytes| {
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        bytes.truncate((used + 1).next_multiple_of(4096));
    })
    .unwrap();
    let free = disk.fork();
    disk.fill();
    let store = WitnessStore::open_on(&*disk.mount(), "the store").unwrap();
    assert_eq!(store.read(uuid(0), pair()).unwrap(), known);
    let error = store.prove().unwrap_err();
    assert!(error.is_full_disk() && !error.is_failure(), "{error}");
    let store = WitnessStore::open_on(&*free.mount(), "the store").unwrap();
    store.prove().unwrap();
    free.fill();
    claim_for_all(&store);
}
