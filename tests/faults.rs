//! Faults of real processes: nodes that are killed, stopped and continued, a network that is cut, stalled and
//! corrupts, a disk that fills up. After each fault, no acknowledged operation is lost and both nodes hold the same.
//!
//! The clients keep their accounts outside the mount (`writers`). fio and fsx check their own data (`programs`). Both
//! stores are exported and compared by standard tools (`check`). Needs root and /dev/fuse, as everything that mounts.
//!
//! `LOCKSTEP_FAULT_KILLS` sets how many processes are killed within the pause limit (default 10), and with it the
//! repetitions of everything else: half as many kills beyond the limit, and one round of the other faults for each 20
//! kills. `LOCKSTEP_FAULT_SEED` repeats the order of events of a run. `LOCKSTEP_FAULT_KEEP` keeps the directory of a
//! failed test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

#[path = "faults/bulk.rs"]
mod bulk;
#[path = "faults/cells.rs"]
mod cells;
#[path = "faults/check.rs"]
mod check;
#[path = "faults/failed_disk.rs"]
mod failed_disk;
#[path = "faults/flapping.rs"]
mod flapping;
#[path = "faults/full_disk.rs"]
mod full_disk;
#[path = "faults/hung_disk.rs"]
mod hung_disk;
#[path = "faults/load.rs"]
mod load;
#[path = "faults/memory.rs"]
mod memory;
#[path = "faults/names.rs"]
mod names;
#[path = "power/pile.rs"]
mod pile;
#[path = "faults/programs.rs"]
mod programs;
#[path = "faults/progress.rs"]
mod progress;
#[path = "faults/replacer.rs"]
mod replacer;
#[path = "faults/reserved.rs"]
mod reserved;
#[path = "faults/resumed.rs"]
mod resumed;
#[path = "power/site.rs"]
mod site;
#[path = "faults/slow.rs"]
mod slow;
#[path = "faults/strangers.rs"]
mod strangers;
#[path = "faults/writers.rs"]
mod writers;

use std::time::Duration;

use lockstep_testbed::chance::Chance;
use lockstep_testbed::network::{Fault, LASTING_FAULTS};
use lockstep_testbed::small_disk::SmallDisk;
use lockstep_testbed::{
    FREEZING, HASTY, IMPATIENT, KEEPING, NodeEnvironment, PATIENT, Pair, Settings, Which,
    await_that, repetitions,
};

use load::Load;
use pile::Pile;
use programs::Programs;
use site::Site;

lockstep_testbed::network_process!();

/// Default of `LOCKSTEP_FAULT_KILLS`.
const KILLS_IN_CI: u64 = 10;
/// Number of kills for each round of the other faults.
const KILLS_OF_A_ROUND: u64 = 20;
/// Longer than every timeout that a stopped node with [`HASTY`] can cause: silence (500 ms), the pause (400 ms), TCP
/// connect and handshake on the primary's side (500 ms, 2 s), handshake and first message on the secondary's side (5
/// s), and a command's wait for its answer (5 s).
///
/// No stop can exceed the other timeouts. The time for an answer (1 s, and 10 s in a resync) is counted in `Pong`s,
/// and a stopped node sends none. That limit has its lowest value here, so that a node that counts in another way
/// blames its peer for the stop. The kernel's own limits for a connection of the secondary (15 s) concern a server
/// that is gone: the server of a stopped process answers, and silence ends the connection earlier.
const LONGER_THAN_EVERY_TIMEOUT: Duration = Duration::from_secs(6);
/// A resync of the data of a test rarely takes longer.
const RESYNC_MAX: Duration = Duration::from_millis(200);
/// An unreachable peer holds all clients up; a peer with a failed disk must not.
const WAITING_FOREVER: Settings = Settings {
    on_peer_loss: "freeze",
    ..PATIENT
};

/// The number of kills; `None` if this machine cannot mount.
fn kills() -> Option<u64> {
    repetitions("LOCKSTEP_FAULT_KILLS", KILLS_IN_CI)
}

/// Whether the time suffices to compare everything after each single event.
fn is_long() -> bool {
    kills().is_some_and(|kills| kills > KILLS_IN_CI)
}

/// The number of rounds of everything but kills.
fn rounds() -> Option<u64> {
    kills().map(|kills| kills.div_ceil(KILLS_OF_A_ROUND))
}

/// A fault that fio or fsx finds is distinguished from the errors that they see when their mount is removed.
#[test]
fn findings_of_programs_are_reported_though_their_mount_is_gone() {
    let dir = tempfile::Builder::new().prefix("lsf.").tempdir().unwrap();
    let mut programs = Programs::start(dir.path(), dir.path(), &mut Chance::of_run());
    programs.damage_files(dir.path());
    let found = programs.finish_without_mount().unwrap_err();
    for program in ["fio found a fault", "fsx found a fault"] {
        assert!(found.contains(program), "{found}");
    }
}

#[test]
fn kills_within_the_pause_lose_nothing() {
    let Some(wanted) = kills() else { return };
    let mut chance = Chance::of_run();
    let mut load = Load::start(PATIENT, &mut chance);
    kill_often(&mut load, wanted, &mut chance);
    assert!(!load.was_out_of_sync(), "the pause was long enough");
}

#[test]
fn kills_beyond_the_pause_lose_nothing() {
    let Some(wanted) = kills() else { return };
    let mut chance = Chance::of_run();
    let mut load = Load::start(IMPATIENT, &mut chance);
    kill_often(&mut load, wanted / 2, &mut chance);
}

fn kill_often(load: &mut Load, wanted: u64, chance: &mut Chance) {
    let mut done = 0;
    while done < wanted {
        load.start_programs(chance);
        // Mostly one kill; a second one comes during the recovery from the first and belongs to the same event. More
        // kills only save comparisons: a later kill may hide a mistake of an earlier one.
        let batches: &[u32] = if is_long() {
            &[1, 1, 1, 1, 2]
        } else {
            &[1, 1, 1, 2, 3]
        };
        for _ in 0..*chance.pick(batches) {
            chance.pause_moment();
            done += kill_some(load, chance);
        }
        load.check(chance);
    }
    let acknowledged = load.writers.acknowledged();
    println!("{done} kills, {acknowledged} operations acknowledged");
}

/// Kills one node or both, starts them again, and returns the number of kills.
fn kill_some(load: &mut Load, chance: &mut Chance) -> u64 {
    use Which::{Primary, Secondary};
    let victims: &[Which] = match chance.within(0..10) {
        0..5 => &[Secondary],
        5..8 => &[Primary],
        8 => &[Primary, Secondary],
        _ => &[Secondary, Primary],
    };
    for &victim in victims {
        load.kill(victim);
    }
    for victim in chance.shuffled(victims.to_vec()) {
        chance.pause_moment();
        load.pair.node_mut(victim).start();
    }
    victims.len() as u64
}

#[test]
fn a_lost_connection_within_the_pause_is_only_a_pause() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut load = Load::start(PATIENT, &mut chance);
    for _ in 0..rounds {
        for fault in chance.shuffled(LASTING_FAULTS.to_vec()) {
            run_with_fault(
                &mut load,
                fault,
                "synced and disconnected, acknowledgements paused",
                &mut chance,
            );
        }
    }
    assert!(!load.was_out_of_sync(), "the pause was long enough");
}

#[test]
fn a_lost_connection_beyond_the_pause_leaves_one_copy_and_is_made_good() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut load = Load::start(IMPATIENT, &mut chance);
    for _ in 0..rounds {
        for fault in chance.shuffled(LASTING_FAULTS.to_vec()) {
            run_with_fault(&mut load, fault, "out of sync", &mut chance);
        }
    }
}

#[test]
fn a_link_that_comes_and_goes_is_few_pauses_and_one_time_alone() {
    if rounds().is_none() {
        return;
    }
    let pauses = flapping::lose_connections(&mut Chance::of_run());
    // The first loss is one like any other. After the second one the primary waits for a steady link.
    assert_eq!(pauses, 2);
}

#[test]
fn a_lost_connection_freezes_where_one_copy_is_not_enough() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut load = Load::start(FREEZING, &mut chance);
    for _ in 0..rounds {
        for fault in chance.shuffled(LASTING_FAULTS.to_vec()) {
            run_with_fault(
                &mut load,
                fault,
                "frozen until the peer is back",
                &mut chance,
            );
        }
        corrupt(&mut load, &mut chance);
    }
    assert!(!load.was_out_of_sync(), "one copy was not to be enough");
}

#[test]
fn reads_continue_while_the_network_passes_nothing() {
    if rounds().is_some() {
        slow::network_that_passes_nothing();
    }
}

#[test]
fn reads_continue_while_the_secondary_is_stopped() {
    if rounds().is_some() {
        slow::secondary_that_is_stopped();
    }
}

#[test]
fn reads_continue_while_a_flush_hangs() {
    if rounds().is_some() {
        slow::disk_that_flushes_nothing();
    }
}

#[test]
fn a_hanging_checkpoint_of_the_secondary_is_no_lost_connection() {
    if rounds().is_some() {
        slow::checkpoints_that_hang(is_long());
    }
}

#[test]
fn a_slow_network_is_no_lost_connection() {
    if rounds().is_some() {
        slow::network_that_is_slow();
    }
}

#[test]
fn names_overtake_large_writes_on_a_slow_link() {
    if rounds().is_some() {
        bulk::names_overtake_bulk();
    }
}

#[test]
fn names_overtake_a_resync_on_a_slow_link() {
    if rounds().is_some() {
        bulk::names_overtake_a_resync();
    }
}

#[test]
fn both_nodes_show_how_far_a_resync_is() {
    if rounds().is_some() {
        progress::both_nodes();
    }
}

#[test]
fn a_resync_of_everything_that_loses_its_connection_goes_on() {
    if rounds().is_some() {
        resumed::resync_of_everything();
    }
}

#[test]
fn a_resync_of_what_has_changed_that_loses_its_connection_goes_on() {
    if rounds().is_some() {
        resumed::resync_of_what_has_changed();
    }
}

#[test]
fn a_primary_killed_while_its_secondary_is_away_sends_what_has_changed() {
    if rounds().is_some() {
        resumed::primary_killed_while_alone();
    }
}

#[test]
fn memory_of_writes_that_wait_is_bounded_and_given_back() {
    if rounds().is_some() {
        memory::of_writes_that_wait_for_a_stopped_secondary();
    }
}

#[test]
fn writes_that_find_no_room_to_wait_end_well_or_with_the_mount() {
    if rounds().is_some() {
        memory::of_writes_that_find_no_room_to_wait();
    }
}

#[test]
fn space_that_was_reserved_is_there_on_both_disks_after_a_resync() {
    if rounds().is_some() {
        let disks = [SmallDisk::make(), SmallDisk::make()];
        let mut pair = Pair::prepare(IMPATIENT, disks.each_ref().map(SmallDisk::environment));
        reserved::survives_a_resync(&mut pair);
    }
}

#[test]
fn locks_of_other_users_hold_no_node_up() {
    if rounds().is_some() {
        let mut pair = Pair::prepare(
            PATIENT,
            [NodeEnvironment::default(), NodeEnvironment::default()],
        );
        strangers::check_locks_of_other_users(&mut pair);
    }
}

#[test]
fn corruption_costs_a_connection_and_nothing_else() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut load = Load::start(PATIENT, &mut chance);
    for _ in 0..rounds {
        corrupt(&mut load, &mut chance);
    }
    assert!(!load.was_out_of_sync(), "the pause was long enough");
}

/// Lets the fault last until the primary reports `state`, and for a moment more.
fn run_with_fault(load: &mut Load, fault: Fault, state: &str, chance: &mut Chance) {
    load.start_programs(chance);
    chance.pause_moment();
    load.pair.network.apply_fault(fault);
    load.pair.await_state(state);
    if state == "out of sync" {
        load.writers.await_progress();
    }
    chance.pause_moment();
    load.pair.network.heal();
    load.check(chance);
}

/// Flips bits at random moments.
fn corrupt(load: &mut Load, chance: &mut Chance) {
    load.start_programs(chance);
    for _ in 0..5 {
        load.corrupt(chance);
        load.pair.await_in_sync();
        load.writers.await_progress();
        chance.pause_moment();
        if is_long() {
            load.check(chance);
            load.start_programs(chance);
        }
    }
    load.check(chance);
}

#[test]
fn users_filling_the_disk_of_the_primary_do_no_harm() {
    if rounds().is_some() {
        full_disk::users_fill(Which::Primary);
    }
}

#[test]
fn users_filling_the_disk_of_the_secondary_do_no_harm() {
    if rounds().is_some() {
        full_disk::users_fill(Which::Secondary);
    }
}

#[test]
fn users_get_no_more_than_an_absent_secondary_has_room_for() {
    if rounds().is_some() {
        full_disk::users_fill_while_the_secondary_is_absent();
    }
}

#[test]
fn a_disk_of_the_primary_that_others_fill_takes_deletions_and_starts() {
    if rounds().is_some() {
        full_disk::others_fill(Which::Primary);
    }
}

#[test]
fn a_disk_of_the_secondary_that_others_fill_takes_deletions_and_starts() {
    if rounds().is_some() {
        full_disk::others_fill(Which::Secondary);
    }
}

#[test]
fn a_failed_disk_of_the_secondary_stops_no_client_and_waits_for_an_operator() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut site = Site::start(WAITING_FOREVER, &mut chance);
    // The primary retries a peer whose disk has failed ever more rarely.
    let ways = if is_long() { 4 } else { 2 };
    for _ in 0..rounds {
        for failure in failed_disk::ways(&mut chance).into_iter().take(ways) {
            failed_disk::of_the_secondary(&mut site, failure, &mut chance);
        }
    }
}

#[test]
fn a_failed_disk_of_the_primary_leaves_reads_and_waits_for_an_operator() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut site = Site::start(KEEPING, &mut chance);
    for _ in 0..rounds {
        for failure in failed_disk::ways(&mut chance) {
            failed_disk::of_the_primary(&mut site, failure, &mut chance);
        }
    }
}

#[test]
fn a_disk_of_the_secondary_that_hangs_is_given_up_and_made_good() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut site = Site::start(HASTY, &mut chance);
    // A hanging disk silences the node or not, by chance.
    for _ in 0..3 * rounds {
        hung_disk::is_given_up(&mut site, &mut chance);
    }
}

#[test]
fn a_disk_of_the_secondary_that_hangs_is_waited_for_where_one_copy_is_not_enough() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut site = Site::start(hung_disk::WAITING, &mut chance);
    for _ in 0..rounds {
        hung_disk::is_waited_for(&mut site, &mut chance);
    }
    assert!(
        !site.load.was_out_of_sync(),
        "one copy was not to be enough"
    );
}

#[test]
fn a_process_that_stops_for_long_and_continues_does_no_harm() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut load = Load::start(HASTY, &mut chance);
    let both = vec![Which::Primary, Which::Secondary];
    for _ in 0..rounds {
        let choices = vec![vec![Which::Primary], vec![Which::Secondary], both.clone()];
        for frozen in chance.shuffled(choices) {
            load.start_programs(&mut chance);
            chance.pause_moment();
            freeze(&mut load, &frozen, &mut chance);
            load.check(&mut chance);
        }
    }
}

#[test]
fn a_secondary_that_stops_for_long_in_a_resync_and_continues_does_no_harm() {
    let Some(rounds) = rounds() else { return };
    let mut chance = Chance::of_run();
    let mut load = Load::start(HASTY, &mut chance);
    let mut pile = Pile::default();
    for _ in 0..rounds {
        load.start_programs(&mut chance);
        stop_in_resync(&mut load, &mut pile, &mut chance);
        load.pair.await_state("out of sync");
        load.writers.await_progress();
        std::thread::sleep(LONGER_THAN_EVERY_TIMEOUT);
        load.pair.secondary.thaw();
        load.check(&mut chance);
        pile.check(&load.pair.mount());
    }
}

/// Stops the secondary at a random moment of a resync. A resync that ends earlier is repeated.
fn stop_in_resync(load: &mut Load, pile: &mut Pile, chance: &mut Chance) {
    await_that("a resync that is not over too soon", || {
        load.pair.network.apply_fault(Fault::Cut);
        load.pair.await_state("out of sync");
        pile.rewrite(&load.pair.mount(), chance);
        load.pair.network.heal();
        load.pair.await_status("begins a resync", |status| {
            status.sync.state != "out of sync"
        });
        chance.pause(RESYNC_MAX);
        load.pair.secondary.freeze();
        let status = load.pair.primary.status().unwrap();
        let is_caught = status.sync.state.starts_with("resyncing");
        if !is_caught {
            load.pair.secondary.thaw();
        }
        is_caught
    });
}

/// Stops those nodes for longer than every timeout.
fn freeze(load: &mut Load, frozen: &[Which], chance: &mut Chance) {
    for &which in frozen {
        load.pair.node_mut(which).freeze();
    }
    if frozen == [Which::Secondary] {
        load.pair.await_state("out of sync");
        load.writers.await_progress();
    }
    std::thread::sleep(LONGER_THAN_EVERY_TIMEOUT);
    for which in chance.shuffled(frozen.to_vec()) {
        load.pair.node_mut(which).thaw();
        chance.pause_moment();
    }
}
