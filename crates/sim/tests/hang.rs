//! A secondary whose disk hangs: it says that it is there, and ends nothing that waits for the disk (P15).

// Clippy knows test functions by their attribute; the helpers here are test code all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use lockstep_sim::history::Stop;
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{ANSWER_LIMIT, Fault, IN_SYNC_WITHIN, Pair, Settings, Users};
use lockstep_sim::workload::{Generator, Options};
use lockstep_sim::world::{Hang, Side};
use lockstep_types::settings::{Durability, OnPeerLoss};

/// Worlds of each test.
const WORLDS: u64 = 20;
const PAUSE_LIMIT: Duration = Duration::from_secs(1);
const PEER_TIMEOUT: Duration = Duration::from_millis(500);
/// That of an answer for which the secondary goes through all it has. The limit is counted in answered signs
/// of life, and none is sent before the last one is answered: a slow network makes that a quarter longer.
const WHOLE_STORE_LIMIT: Duration = Duration::from_millis(37_500);
/// What it may take until clients go on, besides the limit of an answer: a connection that is not
/// accepted any more counts as lost, the pause, and the mark.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(5);
/// Moments from the start of a secondary that lost power on, until its resync is over.
const RESYNC_MOMENTS: u32 = 60;
/// From one to the next.
const RESYNC_MOMENT: Duration = Duration::from_millis(5);
/// For so long clients ask, and are answered or not.
const WHILE: Duration = Duration::from_secs(2);

const HANGS: [Hang; 2] = [Hang::Flushes, Hang::All];

fn worlds() -> impl Iterator<Item = (u64, Hang)> {
    (0..WORLDS).flat_map(|luck| HANGS.map(|hang| (luck, hang)))
}

/// Both nodes in sync, and clients each of whose operations waits for both disks.
fn pair(luck: u64, on_peer_loss: OnPeerLoss) -> Pair {
    let settings = Settings {
        durability: Durability::Always,
        on_peer_loss,
        pause_limit: PAUSE_LIMIT,
        peer_timeout: PEER_TIMEOUT,
        answer_limit: ANSWER_LIMIT,
    };
    let mut chance = Random::new(luck);
    let options = Options {
        clients: 3,
        operations_max: 2000,
        ..Options::default()
    };
    let users = Users {
        clients: options.clients,
        pause_max: Duration::from_millis(100),
        source: Box::new(Generator::new(options, chance.fork())),
    };
    let mut pair = Pair::new(&settings, users, 10, chance.fork());
    pair.start_both();
    pair.until_in_sync(IN_SYNC_WITHIN).unwrap();
    pair
}

/// How many answers clients get in a while.
fn answers_in_a_while(pair: &mut Pair) -> u64 {
    let before = pair.answered();
    pair.run_for(WHILE).unwrap();
    pair.answered() - before
}

/// The disk works again: nothing was lost, and both nodes become alike.
fn let_it_end_well(pair: &mut Pair) {
    pair.suffer(Fault::Healed).unwrap();
    pair.until_in_sync(IN_SYNC_WITHIN).unwrap();
    assert!(answers_in_a_while(pair) > 0);
    pair.send_clients_away();
    pair.rest().unwrap();
    pair.until_in_sync(IN_SYNC_WITHIN).unwrap();
    pair.judge().unwrap();
}

#[test]
fn clients_go_on_without_it() {
    for (luck, hang) in worlds() {
        let mut pair = pair(luck, OnPeerLoss::Continue);
        pair.suffer(Fault::Hangs(hang)).unwrap();
        pair.run_for(ANSWER_LIMIT + GIVEN_UP_WITHIN).unwrap();
        assert!(!pair.is_in_sync(), "{luck}, {hang:?}: it was not given up");
        // It is not asked for anything again before its disk is back.
        for _ in 0..10 {
            let answers = answers_in_a_while(&mut pair);
            assert!(answers > 0, "{luck}, {hang:?}: clients wait");
        }
        let_it_end_well(&mut pair);
    }
}

#[test]
fn status_says_why() {
    let mut pair = pair(1, OnPeerLoss::Continue);
    pair.suffer(Fault::Hangs(Hang::Flushes)).unwrap();
    let given_up = "the secondary is connected, but has not answered an operation for 3000 ms";
    for _ in 0..1000 {
        pair.run_for(Duration::from_millis(10)).unwrap();
        if pair.reason().is_some_and(|why| why.starts_with(given_up)) {
            return;
        }
    }
    panic!("the reason is {:?}", pair.reason());
}

#[test]
fn with_freeze_clients_wait_and_nothing_is_given_up() {
    for (luck, hang) in worlds() {
        let mut pair = pair(luck, OnPeerLoss::Freeze);
        pair.suffer(Fault::Hangs(hang)).unwrap();
        pair.run_for(GIVEN_UP_WITHIN).unwrap();
        for _ in 0..5 {
            assert_eq!(
                answers_in_a_while(&mut pair),
                0,
                "{luck}, {hang:?}: done here alone"
            );
        }
        assert!(pair.is_in_sync(), "{luck}, {hang:?}: it was given up");
        let_it_end_well(&mut pair);
    }
}

/// Metadata operations wait at the end of the namespace, so that must not wait for ever. The disk
/// hangs from one moment of a resync after the other.
#[test]
fn a_resync_does_not_hold_clients_up() {
    for (moment, hang) in (0..RESYNC_MOMENTS).flat_map(|moment| HANGS.map(|hang| (moment, hang))) {
        let mut pair = pair(1, OnPeerLoss::Continue);
        let lost = Fault::Away(Side::Secondary, Stop::Power);
        pair.suffer(lost).unwrap();
        pair.run_for(PAUSE_LIMIT + GIVEN_UP_WITHIN).unwrap();
        let back = Fault::Stopped(Side::Secondary, Stop::Process);
        pair.suffer(back).unwrap();
        pair.run_for(RESYNC_MOMENT * moment).unwrap();
        pair.suffer(Fault::Hangs(hang)).unwrap();
        pair.run_for(WHOLE_STORE_LIMIT + GIVEN_UP_WITHIN).unwrap();
        assert!(
            answers_in_a_while(&mut pair) > 0,
            "{moment}, {hang:?}: clients wait"
        );
        let_it_end_well(&mut pair);
    }
}
