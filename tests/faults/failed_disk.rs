//! A real node whose disk fails under load: the errors of the clients, the reports of the nodes, the effect of a
//! restart and of `lockstep clear-poison`.
//!
//! The disk is the simulator's disk, mounted (`crates/lossy`). One call, or all later calls of a class, fail with
//! `EIO`. The data of a failed sync stays visible while it is in memory, and is not on the disk. So no write that was
//! acknowledged as durable may depend on this disk alone.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_driver::Cleared;
use lockstep_driver::report::PoisonStatus;
use lockstep_lossy::disk::CallClass;
use lockstep_testbed::chance::Chance;
use lockstep_testbed::server::Failure;
use lockstep_testbed::{DATASTORE, Pair, Which, await_that};

use crate::check;
use crate::site::Site;

/// The failing call is one of so many next calls: also a call for a directory, the log, or a table.
const NEXT_CALLS: u64 = 40;
/// A failure that no node reports for so long has hit no node.
const SPENT_AFTER: Duration = Duration::from_secs(10);
const EIO: Option<i32> = Some(5);

/// Every kind of disk failure, in random order.
pub fn ways(chance: &mut Chance) -> Vec<Failure> {
    let mut nth = || 1 + chance.within(0..NEXT_CALLS);
    let ways = vec![
        Failure::Of(CallClass::Sync, nth()),
        Failure::Of(CallClass::Write, nth()),
        Failure::OfAll(CallClass::Sync),
        Failure::OfAll(CallClass::Write),
    ];
    chance.shuffled(ways)
}

/// The secondary's disk fails: clients continue at once and see no error. The node follows no primary until its mark
/// is cleared; then it is made equal.
pub fn of_the_secondary(site: &mut Site, failure: Failure, chance: &mut Chance) {
    println!("the secondary's disk: {failure:?}");
    site.load.start_programs(chance);
    chance.pause_moment();
    let failed = fail(site, Which::Secondary, failure);
    await_left_alone(site, &failed);
    assert_reported(&site.load.pair, Which::Secondary, &failed);
    restart(site, Which::Secondary, chance);
    let still = await_poisoned(&mut site.load.pair, Which::Secondary);
    assert_eq!(still, failed, "a restart changes nothing");
    await_left_alone(site, &failed);
    end(site, Which::Secondary, chance);
    let pair = &site.load.pair;
    assert_still_broken(pair, Which::Secondary, failure);
    repair(site, Which::Secondary, chance);
    let pair = &mut site.load.pair;
    let (code, printed, error) = clear(pair, Which::Secondary, &["--json"]);
    assert_eq!(code, Some(0), "{error}");
    let cleared: Cleared = serde_json::from_str(&printed).unwrap();
    assert!(cleared.cache_dropped && cleared.failure.reason == failed.reason);
    let (code, _, error) = clear(pair, Which::Secondary, &[]);
    assert_eq!(code, Some(1));
    assert!(error.contains("is not poisoned"), "{error}");
    pair.secondary.start();
    site.load.check(chance);
}

/// The primary continues alone and reports the reason, and clients see no error.
fn await_left_alone(site: &mut Site, failed: &PoisonStatus) {
    let why = format!("the secondary's disk failed at {}", failed.time);
    site.load.pair.await_status("goes on alone", |status| {
        let reason = status.sync.reason.as_deref().unwrap_or_default();
        status.sync.state == "out of sync" && reason.contains(&why)
    });
    site.load.writers.await_progress();
}

/// The primary's disk fails: clients can only read. The secondary has all acknowledged operations. The primary has
/// the ones acknowledged as durable, and is usable again after an operator accepts the loss.
pub fn of_the_primary(site: &mut Site, failure: Failure, chance: &mut Chance) {
    println!("the primary's disk: {failure:?}");
    let known = site.load.pair.mount().join("known");
    write_synced(&known, b"known");
    site.load.start_programs(chance);
    chance.pause_moment();
    site.load.primary_goes();
    let failed = fail(site, Which::Primary, failure);
    assert_reported(&site.load.pair, Which::Primary, &failed);
    site.load.end_programs();
    assert_only_reads(site, &failed);
    restart(site, Which::Primary, chance);
    let still = await_poisoned(&mut site.load.pair, Which::Primary);
    assert_eq!(still, failed, "a restart changes nothing");
    assert_only_reads(site, &failed);
    end(site, Which::Primary, chance);
    end(site, Which::Secondary, chance);
    the_secondary_has_everything(site);
    clear_the_primary(site, failure, &failed, chance);
    site.load.pair.start();
    assert_eq!(fs::read(&known).unwrap(), b"known");
    site.load.check(chance);
}

/// Existing content can be read, every change is refused, and the secondary knows the reason.
fn assert_only_reads(site: &mut Site, failed: &PoisonStatus) {
    let pair = &mut site.load.pair;
    let (known, more) = (pair.mount().join("known"), pair.mount().join("more"));
    await_that("the primary to have mounted", || known.exists());
    assert_eq!(fs::read(&known).unwrap(), b"known");
    is_refused(fs::write(&more, b"x"));
    let error = fs::metadata(more).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let opened = OpenOptions::new().write(true).open(&known).unwrap();
    is_refused((&opened).write_all(b"other"));
    is_refused(opened.sync_all());
    is_refused(File::open(pair.mount()).unwrap().sync_all());
    drop(opened);
    assert_eq!(fs::read(&known).unwrap(), b"known");
    let why = format!("the primary's disk failed at {}", failed.time);
    await_that("the secondary to hear of it", || {
        let status = pair.secondary.status().unwrap();
        let reason = status.sync.reason.unwrap_or_default();
        !status.sync.in_sync && reason.contains(&why)
    });
    let seats = site.load.writers.still();
    check::copies_against(&site.load.pair.mount(), &seats);
}

fn is_refused(outcome: std::io::Result<()>) {
    let error = outcome.unwrap_err();
    assert_eq!(error.raw_os_error(), EIO, "{error}");
}

/// The secondary has every acknowledged operation, durable or not: it was in sync up to the failure.
fn the_secondary_has_everything(site: &mut Site) {
    let place = site.load.pair.outside("export-of-what-is-left");
    check::export(&site.load.pair.secondary, &place);
    check::copies_against(&place.join("tree"), &site.load.writers.still());
    fs::remove_dir_all(place).unwrap();
}

/// Makes the primary's disk usable again: any operation that was not durable may be lost.
fn clear_the_primary(
    site: &mut Site,
    failure: Failure,
    failed: &PoisonStatus,
    chance: &mut Chance,
) {
    let pair = &site.load.pair;
    let (code, _, error) = clear(pair, Which::Primary, &[]);
    assert_eq!(code, Some(2));
    assert!(
        error.contains("--accept-loss") && error.contains("cure:"),
        "{error}"
    );
    assert_still_broken(pair, Which::Primary, failure);
    repair(site, Which::Primary, chance);
    site.load.writers.primary_lost_power();
    let (code, printed, error) = clear(&site.load.pair, Which::Primary, &["--accept-loss"]);
    assert_eq!(code, Some(0), "{error}");
    for part in [
        "can be used again",
        &failed.reason,
        "the secondary is made equal",
    ] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
}

/// Waits until the node reports that its disk has failed, and returns the report.
fn await_poisoned(pair: &mut Pair, which: Which) -> PoisonStatus {
    await_poisoned_or(pair, which, || ())
}

/// Fails the disk and waits for the report. A single failure may hit the kernel's own writeback of a table, which no
/// node sees. Then another call has to fail.
fn fail(site: &mut Site, which: Which, failure: Failure) -> PoisonStatus {
    site.server(which).fail(failure);
    let mut since = Instant::now();
    let server = site.server(which).clone();
    await_poisoned_or(&mut site.load.pair, which, || {
        if since.elapsed() > SPENT_AFTER {
            since = Instant::now();
            server.fail(failure);
        }
    })
}

fn await_poisoned_or(pair: &mut Pair, which: Which, mut if_not: impl FnMut()) -> PoisonStatus {
    let mut found = None;
    await_that("the node to say that its disk has failed", || {
        let status = pair.node_mut(which).status();
        found = status.and_then(|status| status.poisoned);
        if found.is_none() {
            if_not();
        }
        found.is_some()
    });
    found.unwrap()
}

/// Checks the status that an operator sees, and the refusal of a premature `clear-poison`.
fn assert_reported(pair: &Pair, which: Which, failed: &PoisonStatus) {
    assert!(failed.reason.contains("Input/output error"), "{failed:?}");
    let (code, printed, _) = lockstep(pair, which, &["status"]);
    assert_eq!(code, Some(1), "{printed}");
    for part in ["POISONED", &failed.time, &failed.reason, "clear-poison"] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
    let (code, _, error) = clear(pair, which, &["--accept-loss"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("in use by another node process"), "{error}");
}

/// A disk that still fails cannot be cleared.
fn assert_still_broken(pair: &Pair, which: Which, failure: Failure) {
    if matches!(failure, Failure::OfAll(_)) {
        let (code, printed, error) = clear(pair, which, &["--accept-loss"]);
        assert_eq!(code, Some(2), "{printed}{error}");
        assert!(error.contains("Input/output error"), "{error}");
    } else {
        assert!(mark_of(pair, which).exists());
    }
}

/// Repairs the disk; by chance its file system is remounted for that.
fn repair(site: &Site, which: Which, chance: &mut Chance) {
    if chance.percent(50) {
        site.server(which).repair();
    } else {
        site.server(which).repair_and_remount();
    }
}

fn restart(site: &mut Site, which: Which, chance: &mut Chance) {
    end(site, which, chance);
    site.load.pair.node_mut(which).start();
}

/// Ends the node, by a kill or a clean shutdown.
fn end(site: &mut Site, which: Which, chance: &mut Chance) {
    if chance.percent(50) {
        return site.load.kill(which);
    }
    let mut seats = site.load.writers.still();
    if which == Which::Secondary {
        seats.clear();
    }
    // No client has a file open on a mount that is about to go, or opens one before it is gone.
    for seat in &mut seats {
        seat.leave();
    }
    site.load.pair.node_mut(which).stop();
}

/// Runs a command with a node's configuration on the node's environment: exit code, output, errors.
fn lockstep(pair: &Pair, which: Which, arguments: &[&str]) -> (Option<i32>, String, String) {
    let node = pair.node(which);
    let mut command = Command::new(lockstep_testbed::program());
    command.args(arguments).arg("--config").arg(node.config());
    let output = node.run(&mut command);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn clear(pair: &Pair, which: Which, more: &[&str]) -> (Option<i32>, String, String) {
    lockstep(
        pair,
        which,
        &[&["clear-poison", DATASTORE][..], more].concat(),
    )
}

fn mark_of(pair: &Pair, which: Which) -> PathBuf {
    pair.node(which).store().join("poisoned.json")
}

fn write_synced(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    File::open(path.parent().unwrap())
        .unwrap()
        .sync_all()
        .unwrap();
}
