//! Disks that change bytes by themselves, on either node and on both, and the repair of them (docs/protocol/sums.md).
//!
//! A repair makes a block right if the other node has the right one, and leaves it as it is otherwise. It never spreads bytes
//! that do not fit their sum. Afterwards a comparison finds exactly the blocks of which no node has the right one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockstep_sim::disk::Disk;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{IN_SYNC_WITHIN, PRIMARY, SECONDARY, ScriptedCluster, Settings};
use lockstep_sim::world::Side;
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::settings::ScrubEvery;
use lockstep_types::{Hash128, Ino};
use lockstep_verify::own_sums::StoreSums;
use lockstep_verify::{BlockVerdict, DeepCopy, DifferenceKind, InodeDifference, Report};

use super::program::{self, FILE, FIRST, LATER, OTHER, THIRD};
use super::steps::{kill, run, start_in_sync, status, until};

/// The size of a block.
const BLOCK: usize = 4096;
/// Blocks of the file, without its last one, which is not whole. A file of more than 256 blocks is compared piece by piece.
const SHORT: u64 = 20;
const LONG: u64 = 600;
/// Bytes of the last block.
const TAIL: u64 = 100;
/// The time of a repair, or longer.
const REPAIR_MICROS: u64 = 20_000;
/// Schedules of each test.
const SEEDS: u64 = 40;

/// Two nodes in sync, with a file of so many blocks and a tail.
fn in_sync(blocks: u64) -> ScriptedCluster {
    let mut cluster = ScriptedCluster::manual(&Settings::STEADY);
    start_in_sync(&mut cluster);
    let made = run(&mut cluster, move |mount| {
        program::create(mount, FILE)?;
        let bytes = blocks * BLOCK as u64;
        let mut at = 0;
        for mark in [FIRST, OTHER].into_iter().cycle() {
            let length = (bytes - at).min(1 << 20);
            program::write_at(mount, mark, at, length)?;
            at += length;
            if at == bytes {
                break;
            }
        }
        program::write_at(mount, LATER, bytes, TAIL)
    });
    assert_eq!(made, Ok(()));
    cluster.settle().unwrap();
    cluster
}

/// The path of the file's content.
fn content_path(disk: &Disk) -> String {
    let files = disk.files();
    let file = files.iter().find(|file| file.starts_with("content/"));
    file.expect("the file has content").clone()
}

fn blocks_of(disk: &Disk) -> Vec<Vec<u8>> {
    let bytes = disk.read_all(&content_path(disk)).unwrap();
    bytes.chunks(BLOCK).map(<[u8]>::to_vec).collect()
}

/// Flips a bit of a block.
fn flip(disk: &Disk, block: usize, random: &mut Random) {
    let length = blocks_of(disk)[block].len() as u64;
    let at = (block * BLOCK) as u64 + random.below(length);
    let bit = u32::try_from(random.below(8)).unwrap();
    assert!(disk.flip_bit(&content_path(disk), at, bit));
}

/// Flips bits of some blocks. Returns the blocks that have changed on each node.
fn rot(cluster: &ScriptedCluster, random: &mut Random) -> BTreeMap<Side, BTreeSet<usize>> {
    let mut flipped = BTreeMap::new();
    let blocks = blocks_of(cluster.disk(PRIMARY)).len() as u64;
    // Few places, so that some blocks change on both nodes.
    let places: Vec<_> = (0..4).map(|_| random.below(blocks)).collect();
    for side in Side::BOTH {
        let mut of_side = BTreeSet::new();
        for _ in 0..random.below(5) {
            let block = usize::try_from(*random.pick(&places)).unwrap();
            if of_side.insert(block) {
                flip(cluster.disk(side), block, random);
            }
        }
        flipped.insert(side, of_side);
    }
    flipped
}

fn compare(cluster: &mut ScriptedCluster, repairs: bool) -> Report {
    let compared = cluster.use_mount(move |mount| mount.compare_disks(repairs));
    compared.unwrap().unwrap()
}

/// The blocks that a comparison names, each with its verdict.
fn named(report: &Report) -> BTreeMap<usize, BlockVerdict> {
    let mut named = BTreeMap::new();
    for found in &report.differences {
        let DifferenceKind::Blocks {
            offset,
            length,
            verdict,
            ..
        } = found.what
        else {
            panic!("{found}");
        };
        let (first, count) = (offset / BLOCK as u64, length.div_ceil(BLOCK as u64));
        let blocks = first..first + count;
        named.extend(blocks.map(|block| (usize::try_from(block).unwrap(), verdict)));
    }
    named
}

fn verdict_of(side: Side) -> BlockVerdict {
    BlockVerdict::WrongBytes(if side == PRIMARY {
        lockstep_verify::Side::Here
    } else {
        lockstep_verify::Side::There
    })
}

/// Rot, a comparison, and a repair. Returns the mistake.
fn rot_and_heal(blocks: u64, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut cluster = in_sync(blocks);
    let right = blocks_of(cluster.disk(PRIMARY));
    let flipped = rot(&cluster, &mut random);
    let rotten = Side::BOTH.map(|side| blocks_of(cluster.disk(side)));
    let both: BTreeSet<_> = flipped[&PRIMARY]
        .intersection(&flipped[&SECONDARY])
        .copied()
        .collect();
    let lost = both
        .iter()
        .map(|block| (*block, BlockVerdict::NoneKnownRight));
    let lost: BTreeMap<usize, BlockVerdict> = lost.collect();
    let mut expected = lost.clone();
    for side in Side::BOTH {
        let healed = flipped[&side].difference(&both);
        expected.extend(healed.map(|block| (*block, verdict_of(side))));
    }

    let found = compare(&mut cluster, false);
    check("named", &named(&found), &expected)?;
    for (side, rotten) in Side::BOTH.into_iter().zip(&rotten) {
        check("untouched", &blocks_of(cluster.disk(side)), rotten)?;
    }
    let found = compare(&mut cluster, true);
    check("healed", &named(&found), &expected)?;
    for (side, rotten) in Side::BOTH.into_iter().zip(&rotten) {
        let now = blocks_of(cluster.disk(side));
        for (block, bytes) in now.iter().enumerate() {
            let of = if both.contains(&block) {
                rotten
            } else {
                &right
            };
            let what = format!("block {block} of {side:?}");
            if *bytes != of[block] {
                return Err(format!("{what} has bytes that no repair may put there"));
            }
        }
    }
    check("left", &named(&compare(&mut cluster, false)), &lost)
}

fn check<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &T,
    expected: &T,
) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found:?} and not {expected:?}"))
}

#[test]
fn a_repair_heals_what_one_node_has_right_and_spreads_nothing() {
    for seed in 0..SEEDS {
        for blocks in [SHORT, LONG] {
            let done = rot_and_heal(blocks, seed);
            assert_eq!(done, Ok(()), "seed {seed}, {blocks} blocks");
        }
    }
}

#[test]
fn a_repair_from_the_bad_copy_is_found() {
    activate(Some(Mutant::RepairFromBad));
    let found = (0..SEEDS).find_map(|seed| rot_and_heal(SHORT, seed).err());
    activate(None);
    assert!(found.is_some_and(|what| what.contains("named") || what.contains("no repair")));
}

/// Flips a bit of the sum of a block behind those in the slot of its file.
fn flip_sum(disk: &Disk, block: u64) {
    const IN_SLOT: u64 = 26;
    let files = disk.files();
    let is_sums = |file: &&String| {
        file.starts_with("sums/") && !file.contains("slots") && !file.ends_with("era")
    };
    let file = files.iter().find(is_sums).expect("the file has sums");
    assert!(disk.flip_bit(file, (block - IN_SLOT) * 8, 3));
}

/// The sum of a block is wrong on one node, or its sum and its bytes are.
fn sums_rot(bytes_too: bool) -> Result<(), String> {
    let mut cluster = in_sync(LONG);
    let disk = cluster.disk(SECONDARY);
    flip_sum(disk, 300);
    let mut expected = BlockVerdict::WrongSum(lockstep_verify::Side::There);
    if bytes_too {
        flip(disk, 300, &mut Random::new(1));
        expected = BlockVerdict::NoneKnownRight;
    }
    let before = blocks_of(cluster.disk(SECONDARY));
    let expected = BTreeMap::from([(300, expected)]);
    let report = compare(&mut cluster, true);
    check("named", &named(&report), &expected)?;
    check("untouched", &blocks_of(cluster.disk(SECONDARY)), &before)?;
    let left = if bytes_too { expected } else { BTreeMap::new() };
    check("left", &named(&compare(&mut cluster, false)), &left)
}

#[test]
fn a_wrong_sum_is_made_anew_and_one_beside_wrong_bytes_is_not() {
    assert_eq!(sums_rot(false), Ok(()));
    assert_eq!(sums_rot(true), Ok(()));
}

#[test]
fn a_repair_by_the_word_of_another_sum_is_found() {
    activate(Some(Mutant::RepairOtherSum));
    let found = sums_rot(true);
    activate(None);
    assert!(found.is_err_and(|what| what.contains("named")));
}

/// A sum for other bytes than those of the other node would vouch for bytes that no node has compared.
fn remakes_uncompared() -> bool {
    let mut cluster = in_sync(SHORT);
    let other = Hash128::of(b"other bytes");
    let made = run(&mut cluster, move |mount| {
        let store = mount.service().0.store();
        let sums = &StoreSums::of(store);
        let copy = DeepCopy { store, sums };
        let file = Ino::new(2).unwrap();
        Ok(copy.remake(file, 0, &[other]).is_ok())
    });
    made.unwrap()
}

#[test]
fn a_sum_is_made_anew_of_bytes_that_both_nodes_have() {
    assert!(!remakes_uncompared());
    activate(Some(Mutant::RemakeUncompared));
    let made = remakes_uncompared();
    activate(None);
    assert!(made, "the mutant is found");
}

/// Two nodes in sync whose sums are all void: the primary has lost its secret.
fn with_void_sums() -> ScriptedCluster {
    let mut cluster = in_sync(SHORT);
    kill(&mut cluster, PRIMARY);
    cluster.disk(PRIMARY).put("sums/era", b"").unwrap();
    cluster.start(PRIMARY);
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    cluster
}

/// Void sums are made of the blocks that both disks have equal. Returns the mistake.
fn void_sums_are_made() -> Result<(), String> {
    let mut cluster = with_void_sums();
    let flip_block = |cluster: &ScriptedCluster| {
        flip(cluster.disk(SECONDARY), 3, &mut Random::new(1));
    };
    flip_block(&cluster);
    let expected = BTreeMap::from([(3, BlockVerdict::UnknownByVoid)]);
    let report = compare(&mut cluster, false);
    check("void", &report.void_blocks, &(2 * (SHORT + 1)))?;
    let of_blocks = |found: &&InodeDifference| matches!(found.what, DifferenceKind::Blocks { .. });
    let is_named = report.differences.iter().filter(of_blocks).count() == report.differences.len();
    check("named by its block", &is_named, &true)?;
    check("named", &named(&report), &expected)?;
    let report = compare(&mut cluster, false);
    check("void after a comparison", &report.void_blocks, &2)?;
    check("named again", &named(&report), &expected)?;
    flip_block(&cluster);
    check("equal", &compare(&mut cluster, false).total, &0)?;
    check("left", &compare(&mut cluster, false).void_blocks, &0)
}

#[test]
fn sums_that_are_void_on_both_nodes_are_made_of_equal_blocks() {
    assert_eq!(void_sums_are_made(), Ok(()));
}

#[test]
fn a_sum_of_blocks_that_differ_is_found() {
    activate(Some(Mutant::AdoptUncompared));
    let found = void_sums_are_made();
    activate(None);
    assert!(found.is_err_and(|what| what.contains("named")));
}

/// A node is killed while void sums are made: no sum is left that is not that of the bytes, and the next comparison makes the others.
#[test]
fn a_kill_while_sums_are_made_leaves_no_wrong_sum() {
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let mut cluster = with_void_sums();
        let begun = cluster.begin_program(|mount| drop(mount.compare_disks(false)));
        begun.unwrap();
        let within = Duration::from_micros(random.below(REPAIR_MICROS));
        cluster.run_for(within).unwrap();
        let side = *random.pick(&Side::BOTH);
        kill(&mut cluster, side);
        cluster.start(side);
        cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
        cluster.settle().unwrap();
        assert_eq!(compare(&mut cluster, false).total, 0, "seed {seed}");
        let report = compare(&mut cluster, false);
        let left = (report.total, report.void_blocks);
        assert_eq!(left, (0, 0), "seed {seed}");
    }
}

/// A node is killed while blocks are healed. The wrong blocks can still be told and healed: a sum never vouches for bytes that a
/// disk has changed.
fn kill_within_repair(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut cluster = in_sync(SHORT);
    let right = blocks_of(cluster.disk(PRIMARY));
    let flipped = rot(&cluster, &mut random);
    let both: BTreeSet<_> = flipped[&PRIMARY]
        .intersection(&flipped[&SECONDARY])
        .copied()
        .collect();
    cluster.begin_program(|mount| drop(mount.compare_disks(true)))?;
    let within = Duration::from_micros(random.below(REPAIR_MICROS));
    cluster.run_for(within)?;
    let side = *random.pick(&Side::BOTH);
    kill(&mut cluster, side);
    cluster.start(side);
    cluster.until_in_sync(IN_SYNC_WITHIN)?;
    cluster.settle()?;
    let left = named(&compare(&mut cluster, false));
    for (block, verdict) in &left {
        let is_lost = both.contains(block) && *verdict == BlockVerdict::NoneKnownRight;
        let is_healable = !both.contains(block) && matches!(verdict, BlockVerdict::WrongBytes(_));
        if !is_lost && !is_healable {
            return Err(format!(
                "block {block} is left as {verdict:?} by a kill of {side:?}"
            ));
        }
    }
    compare(&mut cluster, true);
    let lost = both
        .iter()
        .map(|block| (*block, BlockVerdict::NoneKnownRight));
    check(
        "left",
        &named(&compare(&mut cluster, false)),
        &lost.collect(),
    )?;
    for side in Side::BOTH {
        let now = blocks_of(cluster.disk(side));
        let is_wrong = |block: &usize| !both.contains(block) && now[*block] != right[*block];
        if let Some(block) = (0..now.len()).find(is_wrong) {
            return Err(format!(
                "block {block} of {side:?} is wrong after the repair"
            ));
        }
    }
    Ok(())
}

#[test]
fn a_kill_within_a_repair_leaves_nothing_that_a_sum_vouches_for() {
    for seed in 0..SEEDS {
        assert_eq!(kill_within_repair(seed), Ok(()), "seed {seed}");
    }
}

/// A program writes while blocks are healed.
fn write_beside_repair(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut cluster = in_sync(SHORT);
    let flipped = rot(&cluster, &mut random);
    let mut lost: BTreeSet<_> = flipped[&PRIMARY]
        .intersection(&flipped[&SECONDARY])
        .copied()
        .collect();
    cluster.begin_program(|mount| drop(mount.compare_disks(true)))?;
    for _ in 0..10 {
        let block = random.below(SHORT);
        let written = run(&mut cluster, move |mount| {
            program::write_at(mount, THIRD, block * BLOCK as u64, BLOCK as u64)
        });
        assert_eq!(written, Ok(()));
        lost.remove(&usize::try_from(block).unwrap());
    }
    cluster.settle()?;
    compare(&mut cluster, true);
    let left = lost
        .iter()
        .map(|block| (*block, BlockVerdict::NoneKnownRight));
    check(
        "left",
        &named(&compare(&mut cluster, false)),
        &left.collect(),
    )?;
    let [here, there] = Side::BOTH.map(|side| blocks_of(cluster.disk(side)));
    let differs = |block: &usize| !lost.contains(block) && here[*block] != there[*block];
    match (0..here.len()).find(differs) {
        Some(block) => Err(format!("block {block} differs")),
        None => Ok(()),
    }
}

#[test]
fn a_repair_keeps_what_programs_write_meanwhile() {
    for seed in 0..SEEDS {
        assert_eq!(write_beside_repair(seed), Ok(()), "seed {seed}");
    }
}

/// Has the primary scrub, as if it had waited for long.
fn scrub(cluster: &mut ScriptedCluster) {
    let changed = run(cluster, |mount| {
        let datastore = &mount.service().0;
        let mut config = (*datastore.config().current()).clone();
        config.policies.scrub_every = ScrubEvery::Day;
        Ok(datastore.reconfigure(config).is_ok())
    });
    assert_eq!(changed, Ok(true));
}

#[test]
fn a_scrub_heals_and_says_what_it_has_proved() {
    let mut cluster = in_sync(SHORT);
    let right = blocks_of(cluster.disk(PRIMARY));
    let random = &mut Random::new(1);
    flip(cluster.disk(PRIMARY), 3, random);
    flip(cluster.disk(SECONDARY), 4, random);
    let long_ago = br#"{ "waits_since": -10000000 }"#;
    cluster.disk(PRIMARY).put("scrub.json", long_ago).unwrap();
    scrub(&mut cluster);
    until(&mut cluster, "the scrub has ended", |cluster| {
        let copy = status(cluster, PRIMARY).sync.copy;
        copy.scrub.is_some_and(|scrub| scrub.last_ended.is_some())
    });
    let copy = status(&cluster, PRIMARY).sync.copy;
    let found = copy.scrub.unwrap();
    assert_eq!(
        (
            found.differences_total,
            found.healed_total,
            found.unproved_blocks
        ),
        (2, 2, 0)
    );
    let proved = copy.proved.unwrap();
    assert_ne!(proved.through, "0.0");
    for side in Side::BOTH {
        assert!(blocks_of(cluster.disk(side)) == right, "{side:?}");
    }

    // The next process remembers the proof, and waits for its time.
    kill(&mut cluster, PRIMARY);
    cluster.start(PRIMARY);
    cluster.until_in_sync(IN_SYNC_WITHIN).unwrap();
    scrub(&mut cluster);
    until(&mut cluster, "the record is read", |cluster| {
        status(cluster, PRIMARY).sync.copy.proved.is_some()
    });
    let copy = status(&cluster, PRIMARY).sync.copy;
    assert_eq!(copy.proved, Some(proved));
    assert_eq!(copy.scrub.unwrap().began, None);
}
