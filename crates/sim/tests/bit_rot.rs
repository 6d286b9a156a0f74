//! Disks that rot: a bit changes by itself, under two running nodes or in a store that no process
//! uses.
//!
//! Content has no checksum: only a comparison of both nodes finds a changed bit. Metadata has
//! checksums: a node with a changed bit in its metadata refuses to start, or continues as if the bit
//! had not changed, because the bit is unused. The test skips a bit whose change looks like the state
//! that a killed process may leave (`bit.rs`).
//!
//! The seed of a case decides everything. One half of the seeds is the same in every run, the other
//! half is new. `LOCKSTEP_ROT_SEED=N` runs one seed alone, `LOCKSTEP_ROT_CASES=N` runs N cases in
//! each test.

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "bit_rot/bit.rs"]
mod bit;
#[path = "bit_rot/stores.rs"]
mod stores;

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockstep_sim::history::Stop;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{IN_SYNC_WITHIN, PRIMARY, SECONDARY, ScriptedCluster};
use lockstep_sim::test_output::print_result;
use lockstep_sim::world::Side;
use lockstep_types::Ino;
use lockstep_verify::Report;
use lockstep_verify::report::DifferenceKind;

use bit::{Bit, FILES, NAMESPACE};
use stores::Stores;

/// Number of cases in each test.
const CASES: u64 = 300;
/// Number of successive seeds that damage copies of the same stores.
const SEEDS_OF_STORES: u64 = 10;
/// The longest time that one node runs alone before the other node starts, in milliseconds.
const ALONE_MAX_MS: u64 = 5000;

/// The outcome of a case, in words that are counted.
type CaseResult = Result<String, String>;

/// Runs many cases. Returns the number of cases with each outcome.
fn cases(run: impl Fn(&Stores, &mut Random) -> CaseResult) -> BTreeMap<String, u64> {
    let start = Instant::now();
    let mut outcomes = BTreeMap::new();
    let mut last: Option<(u64, Stores)> = None;
    for seed in seeds() {
        let _printed = PrintSeedOnPanic(seed);
        let stores_seed = seed / SEEDS_OF_STORES;
        let stores = match last.take() {
            Some((of, stores)) if of == stores_seed => stores,
            _ => Stores::make(stores_seed).unwrap_or_else(|what| panic!("{what}")),
        };
        let result = run(&stores, &mut Random::new(seed));
        let outcome = result.unwrap_or_else(|what| panic!("{what}"));
        *outcomes.entry(outcome).or_default() += 1;
        last = Some((stores_seed, stores));
    }
    let test = std::thread::current();
    print_result(
        test.name().unwrap_or("bit_rot"),
        format!("{outcomes:?}"),
        start.elapsed(),
    );
    outcomes
}

/// Returns the seeds to run.
fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("LOCKSTEP_ROT_SEED") {
        return vec![seed.parse().expect("LOCKSTEP_ROT_SEED is a number")];
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let fresh = now.as_secs() * SEEDS_OF_STORES;
    let requested = std::env::var("LOCKSTEP_ROT_CASES").ok();
    let half = requested.map_or(CASES, |cases| cases.parse().unwrap()) / 2;
    (0..half).chain(fresh..fresh + half).collect()
}

/// Prints how to repeat a case, also if the case panics.
struct PrintSeedOnPanic(u64);

impl Drop for PrintSeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LOCKSTEP_ROT_SEED={} repeats the case", self.0);
        }
    }
}

/// Starts a node whose disk has no damage.
fn start(cluster: &mut ScriptedCluster, side: Side) -> Result<(), String> {
    match cluster.start_or_refusal(side)? {
        None => Ok(()),
        Some(why) => Err(format!("{side:?} does not start: {why}")),
    }
}

/// Both nodes are running: waits until they are in sync, and checks everything.
fn end_well(cluster: &mut ScriptedCluster) -> Result<(), String> {
    cluster.until_in_sync(IN_SYNC_WITHIN)?;
    cluster.settle()?;
    cluster.final_check()?;
    found_identical(cluster)
}

fn found_identical(cluster: &mut ScriptedCluster) -> Result<(), String> {
    let found = cluster.compare()?;
    if found.is_identical() {
        Ok(())
    } else {
        Err(format!("verify finds differences: {found:?}"))
    }
}

/// Gives the secondary an empty store, as an operator does, and starts it again.
fn replace_secondary(cluster: &mut ScriptedCluster) -> Result<(), String> {
    cluster.empty_disk(SECONDARY);
    start(cluster, SECONDARY)?;
    end_well(cluster)
}

#[test]
fn verify_finds_changed_content_and_a_resync_of_the_secondary_repairs_it() {
    let outcomes = cases(|stores, random| {
        let mut cluster = stores.cluster(random);
        start(&mut cluster, SECONDARY)?;
        start(&mut cluster, PRIMARY)?;
        end_well(&mut cluster)?;
        let side = *random.pick(&Side::BOTH);
        let Some(bit) = Bit::of_content(cluster.disk(side), random) else {
            return Ok("no content".to_owned());
        };
        bit.turn(cluster.disk(side));
        cluster.settle()?;
        if !cluster.is_in_sync() {
            return Err(format!("{bit}: a node has noticed"));
        }
        let found = cluster.compare()?;
        if !is_named(&bit, &found) {
            return Err(format!("{bit} of {side:?}: verify finds {found:?}"));
        }
        if side == SECONDARY {
            cluster.shut_down(side)?;
            replace_secondary(&mut cluster)?;
        }
        Ok(format!("{side:?}: found"))
    });
    for side in Side::BOTH {
        assert_met(&outcomes, &format!("{side:?}: found"));
    }
}

/// Returns whether verify found the bit and nothing else.
fn is_named(bit: &Bit, found: &Report) -> bool {
    let [difference] = &*found.differences else {
        return false;
    };
    let DifferenceKind::Content { offset, length } = difference.what else {
        return false;
    };
    let range = offset..offset + length;
    found.total == 1
        && Some(difference.ino) == bit.ino().map(Ino::get)
        && range.contains(&bit.offset)
}

#[test]
fn a_secondary_refuses_rotten_metadata_or_gets_in_sync_and_is_identical() {
    let outcomes = cases(|stores, random| metadata_rots(SECONDARY, stores, random));
    assert_all_met(&outcomes);
}

#[test]
fn a_primary_refuses_rotten_metadata_or_has_all_data_of_the_clients() {
    let outcomes = cases(|stores, random| metadata_rots(PRIMARY, stores, random));
    assert_all_met(&outcomes);
}

fn metadata_rots(side: Side, stores: &Stores, random: &mut Random) -> CaseResult {
    let mut cluster = stores.cluster(random);
    // The namespace has the most possible outcomes.
    let file = if random.percent(30) {
        NAMESPACE
    } else {
        *random.pick(&FILES)
    };
    let bit = Bit::of(file, cluster.disk(side), random);
    let bit = bit.filter(|bit| !stores.killed || !bit.may_be_lost(cluster.disk(side)));
    let Some(bit) = bit else {
        return Ok("spared".to_owned());
    };
    bit.turn(cluster.disk(side));
    if file == NAMESPACE && side == SECONDARY {
        // An operation may find the changed bit.
        cluster.expect_rotten_secondary();
    }
    let rotten = cluster.disk(side).digest();
    let refused = start_both(&mut cluster, side, random)?;
    let checked = match refused {
        None => opened_well(&mut cluster, side, file),
        Some(why) => refused_well(&mut cluster, side, &why, file, rotten).map(|()| "refused"),
    };
    let describe = |what| format!("{bit} of {side:?}: {what}\n{}", cluster.history());
    let outcome = checked.map_err(describe)?;
    Ok(format!("{file}: {outcome}"))
}

/// Starts both nodes, in a random order. Returns the reason if the node of `side` refused to start.
fn start_both(
    cluster: &mut ScriptedCluster,
    side: Side,
    random: &mut Random,
) -> Result<Option<String>, String> {
    if random.percent(50) {
        let refused = cluster.start_or_refusal(side)?;
        start(cluster, side.other())?;
        return Ok(refused);
    }
    start(cluster, side.other())?;
    cluster.run_for(Duration::from_millis(random.below(ALONE_MAX_MS)))?;
    cluster.start_or_refusal(side)
}

/// A node has started. A changed bit may be in a part of the namespace that no start reads. The
/// nodes find such a bit only when they read it: in a resync, which then fails, or at the latest in
/// a verify. No reader gets wrong data.
fn opened_well(
    cluster: &mut ScriptedCluster,
    side: Side,
    file: &str,
) -> Result<&'static str, String> {
    let Err((outcome, why)) = read_all(cluster) else {
        return end_well(cluster).map(|()| "opened");
    };
    if file != NAMESPACE || !why.contains(file) {
        return Err(format!("opened, and {outcome}: {why}"));
    }
    if side == SECONDARY {
        // A clean shutdown may read the bit: then it ends uncleanly, and marks the disk as failed beside the store.
        cluster.stop(side, Stop::Process);
        replace_secondary(cluster)?;
    }
    Ok(outcome)
}

/// Waits until both nodes are in sync, and compares them. Returns the place where unreadable data
/// showed, and the reason.
fn read_all(cluster: &mut ScriptedCluster) -> Result<(), (&'static str, String)> {
    cluster
        .until_in_sync(IN_SYNC_WITHIN)
        .and_then(|()| cluster.settle())
        .map_err(|what| {
            (
                "found by a resync",
                format!("{what}: {:?}", cluster.reason()),
            )
        })?;
    let compared = cluster.compare();
    compared.map_err(|why| ("found by verify", why)).map(drop)
}

/// A node has refused to start: its message names the damaged file, and it changed nothing. An
/// operator can replace a secondary's store by an empty one.
fn refused_well(
    cluster: &mut ScriptedCluster,
    side: Side,
    why: &str,
    file: &str,
    rotten: u64,
) -> Result<(), String> {
    if !why.contains(file) {
        return Err(format!("the file is not named: {why}"));
    }
    if cluster.disk(side).digest() != rotten {
        return Err(format!("the disk has changed: {why}"));
    }
    match side {
        PRIMARY => Ok(()),
        SECONDARY => replace_secondary(cluster),
    }
}

/// Asserts that damage in each kind of file was noticed. The exceptions are the table of times,
/// whose loss is allowed, the table of the delta, whose damage costs a comparison, and the role file, which holds everything
/// twice.
fn assert_all_met(outcomes: &BTreeMap<String, u64>) {
    for file in FILES {
        let opened = ["tables/count", "tables/delta", "tables/times", "role.json"];
        let outcome = if opened.contains(&file) {
            "opened"
        } else {
            "refused"
        };
        assert_met(outcomes, &format!("{file}: {outcome}"));
    }
    assert_met(outcomes, &format!("{NAMESPACE}: found by verify"));
}

fn assert_met(outcomes: &BTreeMap<String, u64>, what: &str) {
    let variables = ["LOCKSTEP_ROT_SEED", "LOCKSTEP_ROT_CASES"];
    let is_other = variables
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    assert!(
        is_other || outcomes.contains_key(what),
        "no case outcomes to {what:?}"
    );
}
