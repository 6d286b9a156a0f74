//! Disks that rot: a bit turns over by itself, under a live pair or in a store that nobody uses.
//!
//! Nothing tells of content that it has changed, until both nodes are compared. Metadata has checksums: a
//! node whose metadata has rotted refuses to start, or goes on as if nothing were, because the bit does not
//! count. Nothing is asked where a bit makes what a killed process may legally leave (`bit.rs`).
//!
//! A case is made from its seed. Half of the seeds are the same in every run, the others nobody has seen
//! before. `LOCKSTEP_ROT_SEED=N` runs that one alone, `LOCKSTEP_ROT_CASES=N` so many in each test.

// Clippy knows test functions by their attribute; the helpers here are test code all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "rot/bit.rs"]
mod bit;
#[path = "rot/stores.rs"]
mod stores;

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockstep_sim::random::Random;
use lockstep_sim::scenario::{IN_SYNC_WITHIN, Pair};
use lockstep_sim::told::tell;
use lockstep_sim::world::Side;
use lockstep_types::Ino;
use lockstep_verify::Report;
use lockstep_verify::report::DifferenceKind;

use bit::{Bit, FILES, NAMESPACE};
use stores::Stores;

/// Cases of each test.
const CASES: u64 = 300;
/// So many seeds in a row damage the same stores.
const SEEDS_OF_STORES: u64 = 10;
/// For how long one node is alone before the other is started, at most, in milliseconds.
const ALONE_MAX_MS: u64 = 5000;

/// What a case came to, in words that are counted.
type Came = Result<String, String>;

/// Runs many cases; tells how often each thing came of them.
fn cases(run: impl Fn(&Stores, &mut Random) -> Came) -> BTreeMap<String, u64> {
    let start = Instant::now();
    let mut came = BTreeMap::new();
    let mut last: Option<(u64, Stores)> = None;
    for seed in seeds() {
        let _told = Seed(seed);
        let luck = seed / SEEDS_OF_STORES;
        let stores = match last.take() {
            Some((of, stores)) if of == luck => stores,
            _ => Stores::make(luck).unwrap_or_else(|what| panic!("{what}")),
        };
        let outcome = run(&stores, &mut Random::new(seed));
        let told = outcome.unwrap_or_else(|what| panic!("{what}"));
        *came.entry(told).or_default() += 1;
        last = Some((luck, stores));
    }
    let test = std::thread::current();
    tell(
        test.name().unwrap_or("rot"),
        format!("{came:?}"),
        start.elapsed(),
    );
    came
}

/// Which seeds are run.
fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("LOCKSTEP_ROT_SEED") {
        return vec![seed.parse().expect("LOCKSTEP_ROT_SEED is a number")];
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let fresh = now.as_secs() * SEEDS_OF_STORES;
    let asked = std::env::var("LOCKSTEP_ROT_CASES").ok();
    let half = asked.map_or(CASES, |cases| cases.parse().unwrap()) / 2;
    (0..half).chain(fresh..fresh + half).collect()
}

/// Says how a case is brought back, also one that panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LOCKSTEP_ROT_SEED={} brings it back", self.0);
        }
    }
}

/// Starts a node whose disk is well.
fn start(pair: &mut Pair, side: Side) -> Result<(), String> {
    match pair.try_to_start(side)? {
        None => Ok(()),
        Some(why) => Err(format!("{side:?} does not start: {why}")),
    }
}

/// Both live: they get in sync, and everything is as it must be.
fn end_well(pair: &mut Pair) -> Result<(), String> {
    pair.until_in_sync(IN_SYNC_WITHIN)?;
    pair.rest()?;
    pair.judge()?;
    found_identical(pair)
}

fn found_identical(pair: &mut Pair) -> Result<(), String> {
    let found = pair.compare()?;
    if found.is_identical() {
        Ok(())
    } else {
        Err(format!("verify finds differences: {found:?}"))
    }
}

/// An operator moves the store of the secondary away, and starts it again.
fn replace_secondary(pair: &mut Pair) -> Result<(), String> {
    pair.empty_the_store(Side::Secondary);
    start(pair, Side::Secondary)?;
    end_well(pair)
}

#[test]
fn what_content_has_lost_verify_finds_and_a_resync_of_the_secondary_repairs() {
    let came = cases(|stores, chance| {
        let mut pair = stores.pair(chance);
        start(&mut pair, Side::Secondary)?;
        start(&mut pair, Side::Primary)?;
        end_well(&mut pair)?;
        let side = *chance.pick(&Side::BOTH);
        let Some(bit) = Bit::of_content(pair.disk(side), chance) else {
            return Ok("no content".to_owned());
        };
        bit.turn(pair.disk(side));
        pair.rest()?;
        if !pair.is_in_sync() {
            return Err(format!("{bit}: somebody has noticed"));
        }
        let found = pair.compare()?;
        if !is_named(&bit, &found) {
            return Err(format!("{bit} of {side:?}: verify finds {found:?}"));
        }
        if side == Side::Secondary {
            pair.stop_in_order(side)?;
            replace_secondary(&mut pair)?;
        }
        Ok(format!("{side:?}: found"))
    });
    assert_met(&came, "Primary: found");
    assert_met(&came, "Secondary: found");
}

/// Whether this and nothing else was found.
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
    let came = cases(|stores, chance| metadata_rots(Side::Secondary, stores, chance));
    assert_all_met(&came);
}

#[test]
fn a_primary_refuses_rotten_metadata_or_has_all_that_clients_wrote() {
    let came = cases(|stores, chance| metadata_rots(Side::Primary, stores, chance));
    assert_all_met(&came);
}

fn metadata_rots(side: Side, stores: &Stores, chance: &mut Random) -> Came {
    let mut pair = stores.pair(chance);
    // Most of what can happen can happen to that one.
    let file = if chance.percent(30) {
        NAMESPACE
    } else {
        *chance.pick(&FILES)
    };
    let bit = Bit::of(file, pair.disk(side), chance);
    let bit = bit.filter(|bit| !stores.killed || !bit.may_be_lost(pair.disk(side)));
    let Some(bit) = bit else {
        return Ok("spared".to_owned());
    };
    bit.turn(pair.disk(side));
    if file == NAMESPACE && side == Side::Secondary {
        // It may be found by an operation.
        pair.expect_refusals();
    }
    let rotten = pair.disk(side).digest();
    let refused = start_both(&mut pair, side, chance)?;
    let judged = match refused {
        None => opened_well(&mut pair, side, file),
        Some(why) => refused_well(&mut pair, side, &why, file, rotten).map(|()| "refused"),
    };
    let told = |what| format!("{bit} of {side:?}: {what}\n{}", pair.history());
    let outcome = judged.map_err(told)?;
    Ok(format!("{file}: {outcome}"))
}

/// Starts both nodes, in some order; says why that of `side` has refused, if so.
fn start_both(pair: &mut Pair, side: Side, chance: &mut Random) -> Result<Option<String>, String> {
    if chance.percent(50) {
        let refused = pair.try_to_start(side)?;
        start(pair, side.other())?;
        return Ok(refused);
    }
    start(pair, side.other())?;
    pair.run_for(Duration::from_millis(chance.below(ALONE_MAX_MS)))?;
    pair.try_to_start(side)
}

/// A node has started. What of the namespace has rotted where no start reads may be found only when it
/// is read: never wrong, by a resync, which cannot be done then, or by verify at the latest.
fn opened_well(pair: &mut Pair, side: Side, file: &str) -> Result<&'static str, String> {
    let Err((outcome, why)) = read_all(pair) else {
        return end_well(pair).map(|()| "opened");
    };
    if file != NAMESPACE || !why.contains(file) {
        return Err(format!("opened, and {outcome}: {why}"));
    }
    if side == Side::Secondary {
        pair.stop_in_order(side)?;
        replace_secondary(pair)?;
    }
    Ok(outcome)
}

/// Lets both nodes get in sync and be compared; how something that could not be read has shown, and why.
fn read_all(pair: &mut Pair) -> Result<(), (&'static str, String)> {
    pair.until_in_sync(IN_SYNC_WITHIN)
        .and_then(|()| pair.rest())
        .map_err(|what| ("found by a resync", format!("{what}: {:?}", pair.reason())))?;
    let compared = pair.compare();
    compared.map_err(|why| ("found by verify", why)).map(drop)
}

/// A node has refused to start: it has said where the damage is, and changed nothing. In place of a
/// secondary's store an operator can put an empty one.
fn refused_well(
    pair: &mut Pair,
    side: Side,
    why: &str,
    file: &str,
    rotten: u64,
) -> Result<(), String> {
    if !why.contains(file) {
        return Err(format!("the file is not named: {why}"));
    }
    if pair.disk(side).digest() != rotten {
        return Err(format!("the disk has changed: {why}"));
    }
    match side {
        Side::Primary => Ok(()),
        Side::Secondary => replace_secondary(pair),
    }
}

/// Each kind of file has rotted so that it was noticed, but for the table that does not count and the role file, which
/// says everything twice.
fn assert_all_met(came: &BTreeMap<String, u64>) {
    for file in FILES {
        let outcome = if ["tables/times", "role.json"].contains(&file) {
            "opened"
        } else {
            "refused"
        };
        assert_met(came, &format!("{file}: {outcome}"));
    }
    assert_met(came, &format!("{NAMESPACE}: found by verify"));
}

fn assert_met(came: &BTreeMap<String, u64>, what: &str) {
    let asked = ["LOCKSTEP_ROT_SEED", "LOCKSTEP_ROT_CASES"];
    let is_other = asked.iter().any(|name| std::env::var_os(name).is_some());
    assert!(
        is_other || came.contains_key(what),
        "no case came to {what:?}"
    );
}
