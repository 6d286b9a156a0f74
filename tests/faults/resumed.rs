//! A resync sends what has changed, also after the loss of its connection for some seconds (rule P24), and after a kill of the
//! primary whose secondary is away (rule P21).

use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use lockstep_driver::report::ResyncPhase;
use lockstep_testbed::network::Fault;
use lockstep_testbed::{IMPATIENT, NodeEnvironment, Pair, Settings, await_that};

use crate::check::at_rest;
use crate::slow::start;

/// A link of 20 Mbit/s.
const BYTES_PER_SEC: u64 = 2_500_000;
const SETTINGS: Settings = Settings {
    bytes_per_sec: Some(BYTES_PER_SEC),
    ..IMPATIENT
};
/// Bytes that the resync sends.
const BYTES: usize = 24 << 20;
/// Bytes that are compared before the connection is lost.
const BEFORE_LOSS: u64 = 10 << 20;
/// Bytes that were under way at the loss, or have changed since, and count once more.
const AGAIN_MAX: u64 = 8 << 20;
/// Bytes of a file of which little changes.
const LARGE: usize = 12 << 20;
const LARGE_NAME: &str = "large";
/// Changes of 64 KiB while the secondary is away, one in each MiB.
const CHANGES: u64 = 12;
/// Most bytes that are compared for these changes.
const COMPARED_MAX: u64 = 2 << 20;
/// Small files.
const FILES: usize = 200;
/// The time without a connection.
const AWAY: Duration = Duration::from_secs(3);

fn environments() -> [NodeEnvironment; 2] {
    [NodeEnvironment::default(), NodeEnvironment::default()]
}

/// Content of which no two blocks are equal.
fn content(seed: usize) -> Vec<u8> {
    let blocks = (0..BYTES >> 12).map(|block| (block + seed).to_le_bytes().repeat(512));
    blocks.collect::<Vec<_>>().concat()
}

fn fill(pair: &Pair) {
    for number in 0..FILES {
        fs::write(pair.mount().join(format!("file {number}")), [7; 5000]).unwrap();
    }
    fs::write(pair.mount().join("long"), content(1)).unwrap();
}

/// Bytes that the resync of the content under way has compared, and all of its bytes.
fn compared(pair: &Pair) -> Option<(u64, u64)> {
    let resync = pair.primary.status()?.resync?;
    let is_content = resync.phase == ResyncPhase::Content;
    let total = resync.bytes_total.filter(|_| is_content)?;
    Some((resync.bytes_done, total))
}

/// Cuts the connection of the resync under way, and looks at every report of the resync from then on.
fn lose_connection(pair: &mut Pair) {
    let mut before = (0, 0);
    await_that("half of the resync", || {
        before = compared(pair).unwrap_or_default();
        before.0 >= BEFORE_LOSS
    });
    pair.network.apply_fault(Fault::Cut);
    pair.await_state("out of sync");
    fs::write(pair.mount().join("alone"), [8; 5000]).unwrap();
    thread::sleep(AWAY);
    pair.network.heal();
    pair.await_status("the content again", |status| {
        status.sync.state == "resyncing (content)"
    });
    while let Some((done, total)) = compared(pair) {
        assert!(done >= before.0, "it begins anew: {done} after {before:?}");
        assert!(total <= before.1 + AGAIN_MAX, "{total} after {before:?}");
    }
    at_rest(pair);
}

/// See the head of this file.
pub fn resync_of_everything() {
    let mut pair = Pair::prepare(SETTINGS, environments());
    pair.primary.start();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    await_that("the primary to mount", || {
        device(&pair.mount()) != device(pair.mount().parent().unwrap())
    });
    fill(&pair);
    pair.secondary.start();
    lose_connection(&mut pair);
}

/// See the head of this file.
pub fn resync_of_what_has_changed() {
    let mut pair = start(SETTINGS, environments());
    pair.network.apply_fault(Fault::Cut);
    pair.await_state("out of sync");
    fill(&pair);
    pair.network.heal();
    lose_connection(&mut pair);
}

/// The primary changes some blocks of a long file while the secondary is away, is killed, and changes more after its next start.
pub fn primary_killed_while_alone() {
    let mut pair = start(SETTINGS, environments());
    fs::write(pair.mount().join(LARGE_NAME), &content(1)[..LARGE]).unwrap();
    pair.network.apply_fault(Fault::Cut);
    pair.await_state("out of sync");
    change(&pair, 0..CHANGES / 2);
    pair.primary.kill();
    pair.primary.start();
    pair.await_state("out of sync");
    change(&pair, CHANGES / 2..CHANGES);
    pair.network.heal();
    let mut total = None;
    await_that("the content of the resync", || {
        total = compared(&pair).map(|(_, total)| total);
        total.is_some()
    });
    assert!(total <= Some(COMPARED_MAX), "{total:?} bytes are compared");
    at_rest(&mut pair);
}

fn change(pair: &Pair, changes: Range<u64>) {
    let large = OpenOptions::new()
        .write(true)
        .open(pair.mount().join(LARGE_NAME));
    let large = large.unwrap();
    for change in changes {
        large
            .write_all_at(&vec![9; 64 << 10], change << 20)
            .unwrap();
    }
    large.sync_all().unwrap();
}
