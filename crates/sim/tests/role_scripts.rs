//! Scripted schedules of changing roles: each makes one order of events that random schedules seldom have, and a mutant that
//! it must find.

// Clippy knows test functions by their attribute; the helper functions are test code too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_sim::history::Stop;
use lockstep_sim::op::{Mark, Op, WriteOp};
use lockstep_sim::random::Random;
use lockstep_sim::scenario::{
    Fault, HeldThread, IN_SYNC_WITHIN, PRIMARY, SECONDARY, ScriptedCluster, Settings, Users,
};
use lockstep_sim::world::{Hang, Side, ThreadRole};
use lockstep_types::mutants::{Mutant, activate};
use lockstep_types::settings::{Durability, Role};
use lockstep_types::{FileName, Ino, MetaRequest, NodeKind};

/// Number of seeds of each script.
const SEEDS: u64 = 10;
/// The same for a script in which a thread has to be late by chance.
const LATE_SEEDS: u64 = 200;
/// The time from the loss of the connection to a takeover.
const FAILOVER_AFTER: Duration = Duration::from_secs(1);
/// Enough for a takeover, although some calls of the witness are lost.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(12);
/// The time after a step in which its effects are over.
const WHILE: Duration = Duration::from_secs(2);
/// The time for which the request of a killed program stands still: longer than the other node serves.
const THERE_AND_BACK: Duration = Duration::from_secs(120);
/// The primary does not dial for this time: longer than a new secondary waits before it dials.
const DIALS_LATER: Duration = Duration::from_secs(5);
/// A write is on the primary within this time, and the secondary is not given up yet.
const WRITTEN_WITHIN: Duration = Duration::from_millis(100);
/// Bytes of each write.
const LENGTH: u64 = 4096;
/// The program that makes the file.
const MAKER: u32 = 0;
/// The program that is killed.
const KILLED: u32 = 1;
/// The program at the other node.
const OTHER: u32 = 2;

type Script = fn(u64) -> Result<(), String>;

/// Returns two nodes in sync, without clients; with a witness that lets the secondary take over, if `failover_after` is there.
fn cluster(seed: u64, failover_after: Option<Duration>) -> Result<ScriptedCluster, String> {
    let settings = Settings {
        failover_after,
        ..Settings::STEADY
    };
    cluster_with(seed, &settings)
}

/// Returns two nodes in sync, without clients.
fn cluster_with(seed: u64, settings: &Settings) -> Result<ScriptedCluster, String> {
    let mut cluster = ScriptedCluster::new(settings, Users::none(), 10, Random::new(seed));
    cluster.start_both();
    cluster.until_in_sync(IN_SYNC_WITHIN)?;
    cluster.run_for(WHILE)?;
    Ok(cluster)
}

/// Lets a program make a request that succeeds.
fn ask(cluster: &mut ScriptedCluster, program: u32, op: Op) -> Result<(), String> {
    let outcome = cluster.request(program, op)?;
    outcome
        .map(drop)
        .map_err(|errno| format!("a request failed: {errno}"))
}

/// Makes a file. Returns its number.
fn create(cluster: &mut ScriptedCluster, name: &str) -> Result<Ino, String> {
    let ino = cluster.next_ino()?.map_err(|errno| errno.to_string())?;
    let create = MetaRequest::creation(
        Ino::ROOT,
        FileName::new(name.as_bytes()).unwrap(),
        ino,
        NodeKind::File,
    )
    .mode(0o644)
    .owner(1, 1)
    .request();
    ask(cluster, MAKER, Op::Change(create))?;
    // The secondary marks the region of the file. Later writes to the region wait for no announcement (P26).
    let elsewhere = WriteOp {
        ino,
        mark: Mark::new(9).unwrap(),
        offset: 16 * LENGTH,
        length: LENGTH,
        durable: false,
    };
    ask(cluster, MAKER, Op::Write(elsewhere))?;
    Ok(ino)
}

/// Returns a write of the first bytes of a file.
fn write(ino: Ino, mark: u8, durable: bool) -> Op {
    Op::Write(WriteOp {
        ino,
        mark: Mark::new(mark).unwrap(),
        offset: 0,
        length: LENGTH,
        durable,
    })
}

/// Returns a read of the first bytes of a file.
const fn read(ino: Ino) -> Op {
    Op::Read {
        ino,
        offset: 0,
        length: LENGTH,
    }
}

/// Returns whether a node says that the witness protects it.
fn protects(cluster: &ScriptedCluster) -> bool {
    let both = [PRIMARY, SECONDARY].map(|side| cluster.status(side)?.witness);
    both.into_iter().flatten().any(|witness| witness.protects)
}

/// Checks that the roles have changed so often.
fn check_changes(cluster: &ScriptedCluster, count: u64) -> Result<(), String> {
    match cluster.role_changes() {
        changes if changes == count => Ok(()),
        changes => Err(format!(
            "in_time: the roles have changed {changes} times, not {count}"
        )),
    }
}

fn hand_over(cluster: &mut ScriptedCluster) -> Result<(), String> {
    let before = cluster.role_changes();
    cluster.apply_fault(Fault::HandOver)?;
    cluster.run_for(WHILE)?;
    check_changes(cluster, before + 1)
}

/// The other node serves by a planned failover.
fn in_order(cluster: &mut ScriptedCluster) -> Result<(), String> {
    hand_over(cluster)
}

/// The other node serves by the answer of the witness, while the old primary lives and is cut off.
fn by_the_witness(cluster: &mut ScriptedCluster) -> Result<(), String> {
    cluster.apply_fault(Fault::Isolate(Role::Primary))?;
    cluster.run_for(TAKEN_OVER_WITHIN)?;
    check_changes(cluster, 1)
}

/// Two programs, one at each node, write the same place. The one at the node that is deposed is killed while its request waits.
/// The request goes on when that node serves again.
fn overtaken(
    seed: u64,
    failover_after: Option<Duration>,
    there: fn(&mut ScriptedCluster) -> Result<(), String>,
) -> Result<(), String> {
    let mut cluster = cluster(seed, failover_after)?;
    let ino = create(&mut cluster, "f")?;
    ask(&mut cluster, MAKER, write(ino, 1, true))?;
    let goes_on = cluster.now() + THERE_AND_BACK;
    cluster.leave(KILLED, write(ino, 2, false), THERE_AND_BACK)?;
    there(&mut cluster)?;
    // From its first answer on, the other node has served.
    ask(&mut cluster, OTHER, Op::GetAttr { ino })?;
    ask(&mut cluster, OTHER, write(ino, 3, true))?;
    cluster.heal()?;
    cluster.until_in_sync(IN_SYNC_WITHIN)?;
    hand_over(&mut cluster)?;
    let rest = goes_on.saturating_sub(cluster.now());
    cluster.run_for(rest + WHILE)?;
    ask(&mut cluster, OTHER, read(ino))?;
    cluster.end_in_sync()
}

fn overtaken_in_order(seed: u64) -> Result<(), String> {
    overtaken(seed, None, in_order)
}

fn overtaken_by_the_witness(seed: u64) -> Result<(), String> {
    overtaken(seed, Some(FAILOVER_AFTER), by_the_witness)
}

/// The witness makes the secondary the primary, and no answer says so. Then the nodes meet, without the witness.
fn unanswered_claim(seed: u64) -> Result<(), String> {
    let mut cluster = cluster(seed, Some(FAILOVER_AFTER))?;
    let ino = create(&mut cluster, "f")?;
    cluster.apply_fault(Fault::Isolate(Role::Primary))?;
    cluster.until(TAKEN_OVER_WITHIN, |cluster| cluster.tally().takeovers > 0)?;
    cluster.apply_fault(Fault::LoseAnswersOfWitness(Role::Secondary))?;
    cluster.end_silence();
    cluster.run_for(WHILE)?;
    cluster.heal()?;
    cluster.until_in_sync(IN_SYNC_WITHIN)?;
    ask(&mut cluster, MAKER, write(ino, 1, false))?;
    // The witness is told of the generation that follows.
    cluster.until(IN_SYNC_WITHIN, protects)?;
    cluster.end_in_sync()
}

/// Both nodes lose a file, and the node that has not given out its number makes others. It becomes the primary, and
/// loses its power before a barrier.
fn lost_number(seed: u64) -> Result<(), String> {
    let mut cluster = cluster(seed, None)?;
    // Each start skips the numbers that may have been given out before. So the numbers are beyond those that the secondary
    // has reserved.
    for _ in 0..2 {
        cluster.apply_fault(Fault::Restart(Role::Primary, Stop::Process))?;
        cluster.until_in_sync(IN_SYNC_WITHIN)?;
    }
    cluster.run_for(WHILE)?;
    create(&mut cluster, "lost")?;
    let before = cluster.role_changes();
    cluster.apply_fault(Fault::HandOver)?;
    cluster.until(WHILE, |cluster| cluster.role_changes() > before)?;
    cluster.apply_fault(Fault::Down(Role::Secondary, Stop::Power))?;
    cluster.cut_power(SECONDARY);
    cluster.start_both();
    for name in ["a", "b", "c", "d"] {
        cluster.until_in_sync(IN_SYNC_WITHIN)?;
        create(&mut cluster, name)?;
        cluster.apply_fault(Fault::Restart(Role::Primary, Stop::Process))?;
    }
    cluster.end_in_sync()
}

/// The primary is lost while a resync changes the copy of the secondary, and an operator forces the secondary to lead.
fn forced_in_a_resync(seed: u64) -> Result<(), String> {
    let mut cluster = cluster(seed, None)?;
    let mut files = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let ino = create(&mut cluster, name)?;
        ask(&mut cluster, MAKER, write(ino, 1, true))?;
        files.push(ino);
    }
    cluster.run_for(WHILE)?;
    let before = cluster.stopped_content(SECONDARY)?;
    for ino in files {
        ask(&mut cluster, MAKER, write(ino, 2, true))?;
    }
    create(&mut cluster, "of the primary alone")?;
    cluster.start(SECONDARY);
    let is_mixed = |cluster: &ScriptedCluster| {
        let status = cluster.status(SECONDARY);
        status.is_some_and(|status| status.sync.copy.mixed)
    };
    cluster.until(IN_SYNC_WITHIN, is_mixed)?;
    cluster.run_for(Duration::from_millis(seed))?;
    cluster.stop(PRIMARY, Stop::Process);
    if !is_mixed(&cluster) {
        return Ok(());
    }
    cluster.promote_by_force(SECONDARY)?;
    if cluster.stopped_content(SECONDARY)? == before {
        Ok(())
    } else {
        Err("mixed: the copy is not that from before the resync".to_owned())
    }
}

/// Returns whether a node is in a state.
fn is(side: Side, state: State) -> impl Fn(&ScriptedCluster) -> bool {
    move |cluster| cluster.state(side) == Some(state)
}

/// The mark "complete" of a resync waits for the disk. Meanwhile the secondary says that its copy is not complete, the primary
/// serves alone by that word, and the witness would still let the secondary take over.
fn late_mark(seed: u64) -> Result<(), String> {
    let mut cluster = cluster(seed, Some(FAILOVER_AFTER))?;
    let ino = create(&mut cluster, "f")?;
    // The witness does not hear that the copy of the secondary is not complete any more.
    cluster.apply_fault(Fault::CutWitness(Role::Primary))?;
    cluster.apply_fault(Fault::Restart(Role::Secondary, Stop::Power))?;
    cluster.until(IN_SYNC_WITHIN, is(SECONDARY, State::SecondaryResyncing))?;
    cluster.until(IN_SYNC_WITHIN, is(PRIMARY, State::Synced))?;
    cluster.hang(SECONDARY, Some(Hang::All));
    // The secondary does not answer in time. So the nodes meet again.
    ask(&mut cluster, MAKER, write(ino, 1, true))?;
    cluster.apply_fault(Fault::Isolate(Role::Primary))?;
    cluster.run_for(FAILOVER_AFTER)?;
    cluster.hang(SECONDARY, None);
    cluster.run_for(TAKEN_OVER_WITHIN)?;
    check_changes(&cluster, 0)?;
    cluster.end_in_sync()
}

/// A thread of the primary that has accepted a connection stands still while the word of the secondary arrives that its copy is
/// not complete. It goes on after the next sync, while the primary waits for the solo grant, and the secondary has
/// taken over by the answer of the witness.
fn late_word(seed: u64) -> Result<(), String> {
    let mut cluster = cluster(seed, Some(FAILOVER_AFTER))?;
    let ino = create(&mut cluster, "f")?;
    cluster.lose_no_frames();
    // The record of the primary changes by no answer of the witness.
    cluster.apply_fault(Fault::CutWitness(Role::Primary))?;
    cluster.cut_power(SECONDARY);
    cluster.run_for(FAILOVER_AFTER)?;
    // So the secondary dials before the primary does.
    hold(&mut cluster, ThreadRole::Dialing, DIALS_LATER);
    cluster.start(SECONDARY);
    // The primary answers the first message of the meeting. The second one has the word.
    cluster.until(DIALS_LATER, |cluster| cluster.frames_in_flight(PRIMARY) > 0)?;
    hold(&mut cluster, ThreadRole::Meeting, THERE_AND_BACK);
    let goes_on = cluster.now() + THERE_AND_BACK;
    cluster.until(IN_SYNC_WITHIN, is(SECONDARY, State::SecondarySynced))?;
    cluster.until(IN_SYNC_WITHIN, is(PRIMARY, State::Synced))?;
    cluster.hang(SECONDARY, Some(Hang::All));
    cluster.leave(KILLED, write(ino, 1, true), Duration::ZERO)?;
    // The secondary does not answer in time.
    cluster.until(IN_SYNC_WITHIN, is(PRIMARY, State::LeavingSync))?;
    cluster.apply_fault(Fault::Mute(Role::Primary))?;
    cluster.hang(SECONDARY, None);
    cluster.run_for(TAKEN_OVER_WITHIN)?;
    check_changes(&cluster, 1)?;
    let rest = goes_on.saturating_sub(cluster.now());
    cluster.run_for(rest + WHILE)?;
    cluster.end_in_sync()
}

/// A node is forced to lead while its witness is cut off and the other node is down, and stops. The other node starts too early,
/// and takes over by the answer of the witness. The node that was forced to lead starts again, and hears the witness.
fn overtaken_promotion(seed: u64) -> Result<(), String> {
    let mut cluster = cluster(seed, Some(FAILOVER_AFTER))?;
    create(&mut cluster, "f")?;
    cluster.run_for(FAILOVER_AFTER * 2)?;
    cluster.apply_fault(Fault::CutWitness(Role::Primary))?;
    cluster.stop(SECONDARY, Stop::Process);
    cluster.apply_fault(Fault::Restart(Role::Primary, Stop::Process))?;
    cluster.run_for(WHILE)?;
    cluster.promote_by_force(PRIMARY)?;
    cluster.stop(PRIMARY, Stop::Process);
    cluster.apply_fault(Fault::Mute(Role::Primary))?;
    cluster.start(SECONDARY);
    cluster.run_for(TAKEN_OVER_WITHIN)?;
    check_changes(&cluster, 1)?;
    cluster.reach_witness(PRIMARY);
    cluster.start(PRIMARY);
    // Two nodes serve now, unless the node knows that its promotion is overtaken.
    cluster.run_for(TAKEN_OVER_WITHIN)?;
    cluster.demote_next(PRIMARY);
    cluster.end_in_sync()
}

/// The primary is killed in a write, and its recovery sends the bytes to the secondary. A program reads them. Then the secondary
/// loses its power before the first barrier, and takes over.
fn recovered_bytes(seed: u64) -> Result<(), String> {
    let settings = Settings {
        durability: Durability::Always,
        failover_after: Some(FAILOVER_AFTER),
        ..Settings::STEADY
    };
    let mut cluster = cluster_with(seed, &settings)?;
    let ino = create(&mut cluster, "f")?;
    ask(&mut cluster, MAKER, write(ino, 1, true))?;
    cluster.until(IN_SYNC_WITHIN, protects)?;
    // So the secondary does not take over meanwhile.
    cluster.apply_fault(Fault::CutWitness(Role::Secondary))?;
    write_here_only(&mut cluster, ino)?;
    cluster.start(PRIMARY);
    cluster.until(IN_SYNC_WITHIN, is(PRIMARY, State::Synced))?;
    ask(&mut cluster, OTHER, read(ino))?;
    cluster.cut_power(SECONDARY);
    cluster.apply_fault(Fault::Down(Role::Primary, Stop::Process))?;
    cluster.reach_witness(SECONDARY);
    cluster.start(SECONDARY);
    cluster.run_for(TAKEN_OVER_WITHIN)?;
    check_changes(&cluster, 1)?;
    ask(&mut cluster, OTHER, read(ino))?;
    cluster.end_in_sync()
}

/// The primary makes a write whose message is lost, and is killed. The write stays in doubt.
fn write_here_only(cluster: &mut ScriptedCluster, ino: Ino) -> Result<(), String> {
    cluster.run_for(WHILE)?;
    cluster.apply_fault(Fault::Mute(Role::Primary))?;
    cluster.leave(KILLED, write(ino, 2, false), Duration::ZERO)?;
    cluster.run_for(WRITTEN_WITHIN)?;
    cluster.stop(PRIMARY, Stop::Process);
    // The message with the write is lost with the connection.
    cluster.run_for(WHILE)?;
    cluster.end_silence();
    Ok(())
}

/// The primary is killed in a write that the secondary does not get. The secondary takes over, and knows nothing of the write.
fn deposed_in_a_write(seed: u64) -> Result<(), String> {
    let mut cluster = cluster(seed, Some(FAILOVER_AFTER))?;
    let ino = create(&mut cluster, "f")?;
    ask(&mut cluster, MAKER, write(ino, 1, false))?;
    cluster.until(IN_SYNC_WITHIN, protects)?;
    write_here_only(&mut cluster, ino)?;
    cluster.run_for(TAKEN_OVER_WITHIN)?;
    check_changes(&cluster, 1)?;
    cluster.start(PRIMARY);
    cluster.end_in_sync()
}

/// Lets a thread of the primary stand still.
fn hold(cluster: &mut ScriptedCluster, thread: ThreadRole, time: Duration) {
    cluster.hold_thread(HeldThread {
        role: Role::Primary,
        thread: Some(thread),
        time,
    });
}

fn check(script: Script) {
    check_seeds(script, SEEDS);
}

fn check_seeds(script: Script, seeds: u64) {
    for seed in 0..seeds {
        script(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

/// Checks that a script finds a mutant, by one of these messages.
fn check_finds(script: Script, mutant: Mutant, finders: &[&str]) {
    check_seeds_find(script, SEEDS, mutant, finders);
}

fn check_seeds_find(script: Script, seeds: u64, mutant: Mutant, finders: &[&str]) {
    activate(Some(mutant));
    let found: Vec<String> = (0..seeds).filter_map(|seed| script(seed).err()).collect();
    activate(None);
    println!("{mutant:?}: {} of {seeds}: {found:#?}", found.len());
    let is_meant = |what: &String| finders.iter().any(|finder| what.contains(finder));
    assert!(!found.is_empty(), "{mutant:?} is not found");
    assert!(
        found.iter().all(is_meant),
        "found by another check: {found:#?}"
    );
}

#[test]
fn a_request_of_a_killed_program_does_not_run_after_the_other_node_has_served() {
    check(overtaken_in_order);
    check(overtaken_by_the_witness);
}

#[test]
fn a_request_that_runs_late_is_found() {
    check_finds(overtaken_in_order, Mutant::RunOvertaken, &["reads: "]);
    check_finds(overtaken_by_the_witness, Mutant::RunOvertaken, &["reads: "]);
}

#[test]
fn a_claim_without_an_answer_is_of_a_generation_that_is_over() {
    check(unanswered_claim);
}

#[test]
fn a_candidature_without_a_record_is_found() {
    check_finds(
        unanswered_claim,
        Mutant::StandUnrecorded,
        &["in_time", "not in time"],
    );
}

#[test]
fn a_number_is_not_given_out_again_by_the_node_that_only_heard_of_it() {
    check(lost_number);
}

#[test]
fn a_copy_that_was_called_incomplete_takes_nothing_over() {
    check_seeds(late_mark, LATE_SEEDS);
}

#[test]
fn a_mark_after_a_word_is_found() {
    check_seeds_find(
        late_mark,
        LATE_SEEDS,
        Mutant::MarkAfterWord,
        &["one_primary: ", "survives: ", "reads: "],
    );
}

#[test]
fn a_word_from_before_a_sync_permits_nothing() {
    check(late_word);
}

#[test]
fn a_permit_by_an_old_word_is_found() {
    check_finds(
        late_word,
        Mutant::TrustOldWord,
        &["one_primary: ", "survives: ", "reads: "],
    );
}

#[test]
fn a_promotion_that_the_witness_has_overtaken_serves_nobody() {
    check(overtaken_promotion);
}

#[test]
fn a_promotion_that_a_restart_forgets_is_found() {
    check_finds(
        overtaken_promotion,
        Mutant::ForgetUnrecorded,
        &["one_primary: "],
    );
}

#[test]
fn recovered_bytes_that_were_read_are_not_lost() {
    check(recovered_bytes);
}

#[test]
fn recovered_bytes_that_are_not_synced_are_found() {
    check_finds(recovered_bytes, Mutant::RecoverUnsynced, &["reads: "]);
}

#[test]
fn a_deposed_node_gets_the_bytes_that_only_its_write_has_changed() {
    check(deposed_in_a_write);
}

#[test]
fn a_deposed_node_that_forgets_its_write_is_found() {
    check_finds(
        deposed_in_a_write,
        Mutant::RejoinWithoutPaw,
        &["differs, though in sync"],
    );
}

#[test]
fn a_node_that_is_forced_to_lead_in_a_resync_serves_the_whole_copy_from_before() {
    check(forced_in_a_resync);
}

#[test]
fn a_copy_that_is_served_as_a_mixture_is_found() {
    check_finds(forced_in_a_resync, Mutant::ServeMixture, &["mixed: "]);
}
