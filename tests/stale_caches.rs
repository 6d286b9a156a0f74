//! The caches of the kernel of a server whose node does not drop them: suspended, killed and held, or back and cut off. A program
//! there sees nothing that is older than a change which the other node has acknowledged after its takeover.
//!
//! *A* is the node that begins as the primary, and *B* is the other one. Needs root and /dev/fuse.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "stale_caches/looks.rs"]
mod looks;
#[path = "stale_caches/many.rs"]
mod many;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use lockstep_driver::report::ServiceStatus;
use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::holder::Holder;
use lockstep_testbed::operator;
use lockstep_testbed::operator::{await_in_sync, await_status};
use lockstep_testbed::witness::{Witness, await_protected, isolate};
use lockstep_testbed::{NodeEnvironment, PATIENT, Pair, await_that, repetitions};
use rustix::io::Errno;

use looks::{Files, Seen, change};

lockstep_testbed::network_process!();

const FAILOVER_AFTER_MS: u64 = 1500;
/// Known inodes in the measurement, unless the variable `LOCKSTEP_KNOWN_INODES` says otherwise.
const KNOWN_INODES: u64 = 200_000;

/// Two nodes with a witness, in sync, and protected by it, and a holder of A; `None` if this machine cannot mount.
fn start() -> Option<(Pair, Witness, Holder)> {
    repetitions("LOCKSTEP_TAKEOVER_ROUNDS", 1)?;
    let mut pair = Pair::prepare(PATIENT, [(); 2].map(|()| NodeEnvironment::default()));
    let witness = Witness::start(&pair, FAILOVER_AFTER_MS);
    let holder = Holder::start(pair.node(A));
    pair.start();
    await_protected(&pair, A);
    Some((pair, witness, holder))
}

/// Waits for the takeover, changes everything on B, and looks at it on A.
fn assert_nothing_old(pair: &Pair, files: &mut Files) {
    await_status(pair.node(B), "the takeover", |status| {
        status.sync.service == ServiceStatus::Alone
    });
    change(&pair.node(B).mount());
    for _ in 0..2 {
        let seen = files.look();
        let old = seen.iter().any(|(_, seen)| *seen == Seen::Old);
        assert!(!old, "{seen:?}");
    }
}

/// Waits until both nodes are in sync, with B as the primary, and A can answer.
fn assert_all_new(pair: &mut Pair, files: &mut Files) {
    await_in_sync(pair, B, 2);
    await_protected(pair, B);
    operator::fail_over(pair, B, 2);
    await_that("new answers on A", || {
        files.look().iter().all(|(_, seen)| *seen == Seen::New)
    });
}

/// The number of processes that guard a mount.
fn guards(mount: &Path) -> usize {
    let is_guard = |process: &fs::DirEntry| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let parts: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        parts.get(1) == Some(&b"guard".as_slice()) && parts.contains(&mount.as_os_str().as_bytes())
    };
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.filter(is_guard).count()
}

fn await_guards(mount: &Path, count: usize) {
    await_that(&format!("{count} guards"), || guards(mount) == count);
}

fn assert_not_connected(mount: &Path) {
    let gone = fs::metadata(mount.join("name")).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
}

#[test]
fn a_suspended_primary_shows_nothing_old() {
    let Some((mut pair, _witness, _holder)) = start() else {
        return;
    };
    let mut files = Files::make(&pair.node(A).mount(), true);
    pair.node(A).freeze();
    assert_nothing_old(&pair, &mut files);
    pair.node(A).thaw();
    assert_all_new(&mut pair, &mut files);
}

#[test]
fn a_killed_primary_whose_mount_is_held_shows_nothing_old() {
    let Some((mut pair, _witness, _holder)) = start() else {
        return;
    };
    let mut files = Files::make(&pair.node(A).mount(), true);
    pair.node_mut(A).kill();
    assert_nothing_old(&pair, &mut files);
    pair.node_mut(A).start();
    await_in_sync(&mut pair, B, 2);
}

#[test]
fn a_primary_that_is_back_and_cut_off_shows_nothing_old() {
    let Some((mut pair, witness, _holder)) = start() else {
        return;
    };
    let mut files = Files::make(&pair.node(A).mount(), false);
    isolate(&pair, &witness, A, true);
    pair.node_mut(A).kill();
    pair.node_mut(A).start();
    assert_nothing_old(&pair, &mut files);
    isolate(&pair, &witness, A, false);
    assert_all_new(&mut pair, &mut files);
}

#[test]
fn a_mount_has_one_guard_until_nothing_keeps_it() {
    let Some((mut pair, _witness, holder)) = start() else {
        return;
    };
    let [on_a, on_b] = [A, B].map(|which| pair.node(which).mount());
    for _ in 0..2 {
        pair.node_mut(A).kill();
        await_guards(&on_a, 1);
        pair.node_mut(A).start();
        pair.await_in_sync();
        await_guards(&on_a, 1);
    }
    // Nothing holds the mount of B.
    await_guards(&on_b, 1);
    pair.node_mut(B).kill();
    await_guards(&on_b, 0);
    assert_not_connected(&on_b);
    pair.node_mut(B).start();
    pair.await_in_sync();
    pair.node_mut(A).stop();
    await_guards(&on_a, 0);
    pair.node_mut(A).start();
    await_guards(&on_a, 1);
    pair.node_mut(A).kill();
    drop(holder);
    await_guards(&on_a, 0);
}

/// A call of the guard waits for a dirty page, which nobody writes back.
#[test]
fn a_guard_that_is_held_up_ends_with_the_node_and_the_holder() {
    let Some((mut pair, _witness, holder)) = start() else {
        return;
    };
    let on_a = pair.node(A).mount();
    let mut files = Files::make(&on_a, true);
    pair.node(A).freeze();
    assert_nothing_old(&pair, &mut files);
    pair.node_mut(A).kill();
    await_guards(&on_a, 1);
    drop(holder);
    await_guards(&on_a, 0);
    assert_not_connected(&on_a);
}

/// How long programs read from the kernel's caches on a suspended primary, with many known inodes: the guard drops them.
#[test]
#[ignore = "a measurement of some minutes"]
fn how_long_the_drop_of_many_inodes_takes() {
    let Some((mut pair, _witness, _holder)) = start() else {
        return;
    };
    let count = repetitions("LOCKSTEP_KNOWN_INODES", KNOWN_INODES).unwrap();
    let count = usize::try_from(count).unwrap();
    let mount = pair.node(A).mount();
    many::make(&mount, count);
    many::know(&mount, count);
    let looks = [
        ("attributes", many::Looks::at_attributes(&mount, count)),
        ("pages", many::Looks::at_pages(&mount, count)),
    ];
    let suspended = Instant::now();
    pair.node(A).freeze();
    await_status(pair.node(B), "the takeover", |status| {
        status.sync.service == ServiceStatus::Alone
    });
    let serves = suspended.elapsed();
    println!("{count} files of 3 bytes; after the primary is suspended:");
    for (what, looks) in &looks {
        let [first, last] = looks.await_end(suspended);
        println!("{what}: the first is dropped after {first:?}, the last after {last:?}");
    }
    println!("the other node is seen to serve after {serves:?}");
    // The looks that wait are answered.
    pair.node(A).thaw();
    await_in_sync(&mut pair, B, 2);
    await_protected(&pair, B);
    operator::fail_over(&mut pair, B, 2);
}

/// The side of the child that maps a file.
#[test]
#[ignore = "a part of the other tests"]
fn mapping_child() {
    looks::run_child();
}
