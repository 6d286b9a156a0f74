//! The pace of a resync (rule P19): it keeps its limit for bytes, gives way to clients that wait, and converges all the same.

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::time::Duration;

use lockstep_driver::config::ResyncLimits;
use lockstep_repl::state::State;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{PRIMARY, SECONDARY, ScriptedCluster, Settings, Users};
use lockstep_sim::workload::Options;
use lockstep_types::{Errno, ResyncPhase, ResyncStatus, ResyncWait};

#[path = "poison/program.rs"]
#[allow(dead_code)] // other tests use the rest
mod program;

use program::{FILE, FIRST, LATER};

const MIB: u64 = 1 << 20;
/// Bytes of the file that the secondary lacks.
const FILE_BYTES: u64 = 16 * MIB;
/// Longer than any step takes.
const LIMIT: Duration = Duration::from_secs(300);

const SETTINGS: Settings = Settings {
    peer_timeout: Duration::from_secs(1),
    ..Settings::STEADY
};

/// A limit of bytes per second alone.
const fn bytes_per_second(bytes: u64) -> ResyncLimits {
    ResyncLimits {
        bytes_per_second: NonZeroU64::new(bytes),
        pause_above: None,
    }
}

fn set(cluster: &mut ScriptedCluster, limits: ResyncLimits) {
    let edit = |config: &mut lockstep_driver::config::DatastoreConfig| {
        config.policies.resync = limits;
    };
    assert_eq!(cluster.reconfigure(PRIMARY, edit).unwrap(), None);
}

#[track_caller]
fn until(cluster: &mut ScriptedCluster, holds: impl Fn(&ScriptedCluster) -> bool) {
    cluster.until(LIMIT, holds).unwrap();
}

fn is_resyncing(cluster: &ScriptedCluster) -> bool {
    cluster.state(PRIMARY) == Some(State::ResyncContent)
}

#[track_caller]
fn write(cluster: &mut ScriptedCluster, mark: lockstep_sim::op::Mark, offset: u64, length: u64) {
    let written = cluster.use_mount(move |mount| program::write_at(mount, mark, offset, length));
    assert_eq!(written, Ok(Ok::<(), Errno>(())));
}

/// Lets a primary with a long file meet an empty secondary, and returns when the resync of the content has begun.
fn begin_resync(mut cluster: ScriptedCluster, limits: ResyncLimits) -> ScriptedCluster {
    cluster.start(PRIMARY);
    until(&mut cluster, |cluster| {
        cluster.state(PRIMARY) == Some(State::OutOfSync)
    });
    let created = cluster.use_mount(|mount| program::create(mount, FILE));
    assert_eq!(created, Ok(Ok(())));
    for part in 0..FILE_BYTES / MIB {
        write(&mut cluster, FIRST, part * MIB, MIB);
    }
    set(&mut cluster, limits);
    cluster.start(SECONDARY);
    until(&mut cluster, is_resyncing);
    cluster
}

/// Time until the nodes are in sync and the same.
#[track_caller]
fn time_to_sync(cluster: &mut ScriptedCluster) -> Duration {
    let start = cluster.now();
    until(cluster, |cluster| cluster.is_in_sync());
    let took = cluster.now().saturating_sub(start);
    assert!(cluster.compare().unwrap().is_identical());
    took
}

#[test]
fn a_resync_keeps_its_limit_and_holds_no_client_up() {
    let mut cluster = begin_resync(ScriptedCluster::manual(&SETTINGS), bytes_per_second(MIB));
    let start = cluster.now();
    let mut number = 0;
    while is_resyncing(&cluster) {
        let begun = cluster.now();
        write(&mut cluster, LATER, number * MIB % FILE_BYTES, 5000);
        let took = cluster.now().saturating_sub(begun);
        assert!(took < Duration::from_millis(500), "{took:?}");
        cluster.run_for(Duration::from_millis(300)).unwrap();
        number += 1;
    }
    let took = cluster.now().saturating_sub(start).as_secs();
    assert!((12..=20).contains(&took), "16 MiB in {took} s");
    assert!(number > 10, "{number}");
    time_to_sync(&mut cluster);
}

#[test]
fn a_limit_that_is_lifted_holds_a_resync_no_more() {
    let mut cluster = begin_resync(
        ScriptedCluster::manual(&SETTINGS),
        bytes_per_second(128 << 10),
    );
    cluster.run_for(Duration::from_secs(5)).unwrap();
    assert!(is_resyncing(&cluster));
    set(&mut cluster, ResyncLimits::default());
    assert!(time_to_sync(&mut cluster) < Duration::from_secs(10));
}

#[test]
fn a_lost_connection_ends_the_wait_of_a_resync() {
    let mut cluster = begin_resync(
        ScriptedCluster::manual(&SETTINGS),
        bytes_per_second(128 << 10),
    );
    cluster.run_for(Duration::from_secs(1)).unwrap();
    cluster.stop(SECONDARY, lockstep_sim::history::Stop::Process);
    until(&mut cluster, |cluster| {
        cluster.state(PRIMARY) == Some(State::OutOfSync)
    });
    set(&mut cluster, ResyncLimits::default());
    cluster.start(SECONDARY);
    time_to_sync(&mut cluster);
}

/// Two nodes with clients that change files all the time.
fn busy() -> ScriptedCluster {
    let mut random = Random::new(1);
    let options = Options {
        clients: 3,
        operations_max: 100_000,
        ..Options::default()
    };
    let users = Users::random(options, Duration::from_millis(20), random.fork());
    ScriptedCluster::new(&SETTINGS, users, 0, random.fork())
}

/// Each operation is slow by this limit: a mirrored one takes a round trip.
const PAUSING: ResyncLimits = ResyncLimits {
    bytes_per_second: None,
    pause_above: Some(Duration::from_nanos(1)),
};

#[test]
fn a_resync_gives_way_to_clients_that_wait_and_converges() {
    let free = time_to_sync(&mut begin_resync(busy(), ResyncLimits::default()));
    let giving_way = time_to_sync(&mut begin_resync(busy(), PAUSING));
    let alone = time_to_sync(&mut begin_resync(
        ScriptedCluster::manual(&SETTINGS),
        PAUSING,
    ));
    assert!(giving_way > free * 3, "{giving_way:?} after {free:?}");
    assert!(giving_way < free * 30, "{giving_way:?} after {free:?}");
    assert!(
        alone < free * 3,
        "no client waits: {alone:?} after {free:?}"
    );
}

/// The progress that both nodes show, from the meeting of the nodes until they are in sync.
fn said(cluster: &mut ScriptedCluster) -> [Vec<(Duration, ResyncStatus)>; 2] {
    let mut said = [PRIMARY, SECONDARY].map(|_| Vec::new());
    while !cluster.is_in_sync() {
        cluster.run_for(Duration::from_millis(50)).unwrap();
        for (side, said) in [PRIMARY, SECONDARY].into_iter().zip(&mut said) {
            let resync = cluster.status(side).and_then(|status| status.resync);
            said.extend(resync.map(|resync| (cluster.now(), resync)));
        }
    }
    said
}

#[test]
fn both_nodes_show_how_far_a_resync_is() {
    let mut cluster = begin_resync(ScriptedCluster::manual(&SETTINGS), bytes_per_second(MIB));
    let both = said(&mut cluster);
    let end = cluster.now();
    for said in &both {
        let content: Vec<_> = said
            .iter()
            .filter(|(_, resync)| resync.phase == ResyncPhase::Content)
            .collect();
        assert!(content.is_sorted_by_key(|(_, resync)| resync.bytes_done));
        let with_end = content.iter().filter_map(|(at, resync)| {
            assert!(resync.bytes_total.is_none_or(|total| total == FILE_BYTES));
            Some((
                end.saturating_sub(*at),
                resync.bytes_per_second?,
                resync.left_ms?,
            ))
        });
        let mut known = 0;
        for (left, speed, said_left) in with_end.filter(|(left, ..)| left.as_secs() >= 3) {
            known += 1;
            assert!((MIB / 2..MIB * 2).contains(&speed), "{speed}");
            let real = u64::try_from(left.as_millis()).unwrap();
            assert!(
                (real / 2..real * 2).contains(&said_left),
                "{said_left} of {real}"
            );
        }
        assert!(known > 50, "{known} of {}", content.len());
        let limited =
            |(_, resync): &&(Duration, ResyncStatus)| resync.waits_for == Some(ResyncWait::Limit);
        assert!(said.iter().filter(limited).count() > 100);
    }
    cluster.run_for(Duration::from_secs(2)).unwrap();
    for side in [PRIMARY, SECONDARY] {
        assert_eq!(cluster.status(side).unwrap().resync, None);
    }
}

#[test]
fn each_phase_is_shown_in_its_order() {
    let mut cluster = ScriptedCluster::manual(&SETTINGS);
    cluster.start_both();
    let phases = RefCell::new(Vec::new());
    until(&mut cluster, |cluster| {
        let resync = cluster.status(PRIMARY).and_then(|status| status.resync);
        phases
            .borrow_mut()
            .extend(resync.map(|resync| resync.phase));
        cluster.is_in_sync()
    });
    let mut phases = phases.into_inner();
    phases.dedup();
    // The few files here are proved within one step.
    phases.retain(|phase| *phase != ResyncPhase::Proving);
    let in_order = [
        ResyncPhase::Namespace,
        ResyncPhase::Content,
        ResyncPhase::Finish,
    ];
    assert_eq!(phases, in_order);
}

#[test]
fn a_secondary_that_lost_its_primary_shows_no_progress() {
    let mut cluster = begin_resync(
        ScriptedCluster::manual(&SETTINGS),
        bytes_per_second(128 << 10),
    );
    let told = |cluster: &ScriptedCluster| cluster.status(SECONDARY)?.resync;
    until(&mut cluster, |cluster| {
        told(cluster).is_some_and(|resync| resync.bytes_done > 0)
    });
    cluster.stop(PRIMARY, lockstep_sim::history::Stop::Process);
    until(&mut cluster, |cluster| {
        cluster.state(SECONDARY) == Some(State::SecondaryOutOfSync)
    });
    assert_eq!(told(&cluster), None);
}
