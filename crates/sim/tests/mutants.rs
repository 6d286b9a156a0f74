//! Tests the simulator with mutants. The simulator must find each mutant, and the finding check
//! must be one that is meant for such a mutant.

use std::collections::HashSet;
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use lockstep_sim::mutant_search;
use lockstep_sim::shrink::Case;
use lockstep_sim::test_output::print_result;
use lockstep_types::mutants::{ALL, Mutant};
use parking_lot::Mutex;

/// Maximum number of schedules, more than any of the mutants needs but the scripted ones.
const SCHEDULES_MAX: usize = 8_000;
/// Mutants that random schedules have too seldom, or cannot have: no disk changes by itself in them, and seldom is a copy put back
/// where roles change. A script finds each: `tests/role_scripts.rs`, `tests/held_threads.rs`, and `doubts.rs`, `healed.rs`,
/// `put_back.rs`, `restarted.rs`, `touched.rs`, `deposed.rs` and `resync_power.rs` in `poison`; `sums.rs`, `healed.rs`,
/// `numbers.rs` and `history.rs` in `store_on_disk` find those of sums, of a repair, of numbers and of kept values, `tests/barrier_marks.rs` those of the marks of mirrored
/// intervals, and `tests/change_readers.rs` those of change readers.
const SCRIPTED: [Mutant; 63] = [
    Mutant::ServeMixture,
    Mutant::FallbackOverwritten,
    Mutant::KeepOfSuccessor,
    Mutant::GivenUpUnmarked,
    Mutant::RejoinWithoutPaw,
    Mutant::StandUnrecorded,
    Mutant::ForgetUnrecorded,
    Mutant::RecoverUnsynced,
    Mutant::ForgetNumbers,
    Mutant::MarkAfterWord,
    Mutant::TrustOldWord,
    Mutant::TrustResync,
    Mutant::TrustLaterCopy,
    Mutant::TrustOldCopy,
    Mutant::RollBackExecuted,
    Mutant::FinishedOfOtherCopy,
    Mutant::SilenceFromLook,
    Mutant::SumNotRecomputed,
    Mutant::SumOfOldBlock,
    Mutant::SumOfOtherBytes,
    Mutant::VoidForgotten,
    Mutant::ChangingUnnoted,
    Mutant::RepairFromBad,
    Mutant::RepairOtherSum,
    Mutant::RemakeUncompared,
    Mutant::AdoptUncompared,
    Mutant::HealAsWrite,
    Mutant::BarrierDropsNewMarks,
    Mutant::BarrierBeforeSync,
    Mutant::AdoptForgetsColumn,
    Mutant::ColumnsLackRest,
    Mutant::MarksOfOldCopy,
    Mutant::KeysNotInColumns,
    Mutant::MarkUndurableAlone,
    Mutant::KeysCutWithLog,
    Mutant::ColumnsUnsyncedAlone,
    Mutant::NewInodeBelowLimit,
    Mutant::TraceOutlivesAlone,
    Mutant::RestLacksContent,
    Mutant::RestUnsyncedAtBarrier,
    Mutant::NamesOutliveResync,
    Mutant::ResyncUnannounced,
    Mutant::AnnounceAfterWrite,
    Mutant::AnnouncedUnmarked,
    Mutant::NewFileUnmarked,
    Mutant::NewFileUnannouncedForever,
    Mutant::ReaderTurnDropsMarks,
    Mutant::ReaderTurnUndrained,
    Mutant::ReaderForgetsKeys,
    Mutant::ReaderForgetsImage,
    Mutant::ReaderTrustsAnyPoint,
    Mutant::KeepAfterWrite,
    Mutant::KeepUnsynced,
    Mutant::TouchedBeforeSync,
    Mutant::KeepTwice,
    Mutant::KeepNoHole,
    Mutant::KeepForNewestOnly,
    Mutant::BodyUnrecovered,
    Mutant::DeleteTakesNeighbours,
    Mutant::DeleteRelabels,
    Mutant::HistoryMissesFold,
    Mutant::AbsentLeavesHistory,
    Mutant::SettledUnsynced,
];

/// A snapshot shows another moment.
const SNAPSHOT: &str = "snapshot: ";
/// A block differs and is not in PAW or SAW.
const TABLES: &str = "differs, though in sync";
/// The trash differs between the nodes, or lacks something.
const TRASH: &str = "trash: ";
const IDENTICAL: &str = "identical: ";
/// The secondary reports that it cannot do an operation that the primary has done.
const FOLLOWS: &str = "could not follow";
const DURABLE: &str = "durable: ";
const SURVIVES: &str = "survives: ";
const READS: &str = "reads: ";
const EXACTLY_ONCE: &str = "exactly_once: ";
const ONE_PRIMARY: &str = "one_primary: ";
const BOUNDED: &str = "bounded: ";
const LEAKS: &str = "leaks: ";
const CLOSED: &str = "closed: ";
/// A power loss after a clean shutdown has damaged a table.
const TABLE_DAMAGED: &str = "does not match its checksum";
/// The judge of the sums finds a file without its content.
const CONTENT_GONE: &str = "a store cannot be read: Store(ContentLength";
/// A node does not start on its store.
const STARTS: &str = "does not start";
/// An operation was refused because it would do harm, so the nodes do not get in sync.
const IN_TIME: &str = "in_time: ";
const ERROR: &str = "a client saw an error";
/// A thread of a client waits in a full socket.
const WAITED: &str = "has waited for the other node to read";
/// A secondary under resync reports that its copy is in sync.
const MARKED: &str = "is being resynced and says";
/// A node that does not serve lets a request in.
const GATE: &str = "gate: ";
/// A request waits at a node that serves.
const STANDBY: &str = "standby: ";
/// The kernel of the other machine answers from caches.
const CACHES: &str = "caches: ";
/// A node has lost operations, although no operator agreed to that.
const CONSENT: &str = "consent: ";
/// A client saw an error in a planned failover.
const HANDED_OVER: &str = "handed_over: ";
/// The comparison at the end of a resync has found a difference, and healed it.
const PROVED: &str = "proved: ";
/// Clients are not told of a loss, or are told of one that was none.
const VERIFIER: &str = "verifier: ";

/// A copy was brought up to date, and differs.
const DIFFERS: &[&str] = &[
    TABLES,
    IDENTICAL,
    SURVIVES,
    FOLLOWS,
    EXACTLY_ONCE,
    READS,
    PROVED,
];

/// A copy counts although its node has lost power: its tables are read, and it is brought up to date by the difference.
const TRUSTED: &[&str] = &[
    TABLE_DAMAGED,
    TABLES,
    IDENTICAL,
    SURVIVES,
    FOLLOWS,
    EXACTLY_ONCE,
    READS,
    PROVED,
];

/// A node has acted without the answer of the witness. So two nodes have served, or a claim contradicts the record.
const WITHOUT_WITNESS: &[&str] = &[ONE_PRIMARY, SURVIVES, READS, EXACTLY_ONCE, IN_TIME, CLAIM];
/// A node claims what the record of the witness excludes.
const CLAIM: &str = "a node makes the claim";

/// A delta lacks bytes and records, and a resync leaves them as they are.
const SHORT_DELTA: &[&str] = &[
    TABLES,
    IDENTICAL,
    SURVIVES,
    FOLLOWS,
    READS,
    DURABLE,
    EXACTLY_ONCE,
    PROVED,
];

/// Returns the messages that may report a mutant. The first message depends on the order of events.
#[allow(clippy::too_many_lines)] // one arm for each kind of mutant
const fn finders(mutant: Mutant) -> &'static [&'static str] {
    match mutant {
        // An inode that only one node has freed differs, too.
        Mutant::ReapFromTrash => &[TRASH],
        Mutant::TrashUnsent => &[TRASH, IDENTICAL, FOLLOWS, LEAKS],
        Mutant::NoPawEntry | Mutant::NoSawEntry | Mutant::WatermarkTooHigh => &[TABLES, IDENTICAL],
        // A durable write is answered, too.
        Mutant::AnswerBeforePeer => &[TABLES, IDENTICAL, SURVIVES, DURABLE],
        Mutant::IgnorePawInRecovery => &[TABLES, IDENTICAL, SURVIVES],
        // The comparison at the end of the resync finds it first.
        Mutant::ResyncBySize | Mutant::ResyncDropsPiece => &[PROVED, IN_TIME],
        // Only the judge of the schedule, and its end, compare everything.
        Mutant::InSyncUnproved
        | Mutant::DeltaForgetsUnapplied
        | Mutant::TrustResync
        | Mutant::ResumeTooFar => DIFFERS,
        Mutant::RejoinFromAnyCopy | Mutant::ForgetLostPower => TRUSTED,
        // A write that the delta lacks may be a durable one.
        Mutant::DeltaForgetsWrites => {
            &[TABLES, IDENTICAL, SURVIVES, FOLLOWS, READS, DURABLE, PROVED]
        }
        // Records may be missing besides.
        Mutant::FullTableForgets | Mutant::MarksDieWithProcess => SHORT_DELTA,
        // A recovery also waits for messages that were not sent again. One of them may be a durable write.
        Mutant::NoResend | Mutant::HandOverUnsynced => {
            &[TABLES, IDENTICAL, SURVIVES, DURABLE, IN_TIME]
        }
        // An operation that was finished alone may be a durable one.
        Mutant::FinishAloneUnmarked => {
            &[TABLES, IDENTICAL, SURVIVES, EXACTLY_ONCE, FOLLOWS, DURABLE]
        }
        // A write without locks also collides with the end of its file. The resync also cannot send
        // a file whose content and record have different lengths.
        Mutant::NoRangeLock => &[TABLES, IDENTICAL, SURVIVES, READS, FOLLOWS, IN_TIME, PROVED],
        Mutant::AdmitBeforeRanges => &[TABLES, IDENTICAL, SURVIVES, READS, DURABLE],
        // A name of a synced operation may be missing on the secondary after its loss of power.
        Mutant::RepeatMetadata | Mutant::MetadataOutOfOrder => {
            &[FOLLOWS, IDENTICAL, EXACTLY_ONCE, DURABLE]
        }
        // The nodes wait for the operation.
        Mutant::ForgetInDoubt => &[FOLLOWS, IDENTICAL, EXACTLY_ONCE, IN_TIME, SURVIVES],
        // A range that is zeroed in doubt shows its old bytes to a program, and zeros to later ones: then the operation has
        // happened after the answer to a later program (P4).
        Mutant::ShowNamesInDoubt => &[EXACTLY_ONCE, READS, SURVIVES, FOLLOWS, SNAPSHOT],
        Mutant::NumbersAgain => &[FOLLOWS, IDENTICAL, EXACTLY_ONCE, TABLES, DURABLE, PROVED],
        Mutant::RangesBeforeMetadata => &[FOLLOWS, IDENTICAL, EXACTLY_ONCE, ERROR],
        Mutant::ForgetChange => &[
            FOLLOWS,
            IDENTICAL,
            EXACTLY_ONCE,
            DURABLE,
            IN_TIME,
            ERROR,
            PROVED,
        ],
        Mutant::NoOutcomeLogged => &[SURVIVES, IDENTICAL, DURABLE, TABLES],
        // The log is not synced either: a client may see that a metadata operation is lost on the primary.
        Mutant::NoLocalSync => &[DURABLE, READS, EXACTLY_ONCE],
        // A file without its name has no content.
        Mutant::NoNameSync => &[DURABLE, READS, CONTENT_GONE],
        Mutant::SyncHereOnly | Mutant::NoRemoteSync | Mutant::MarkBeforeSync => &[DURABLE],
        // A program may read the old bytes after the loss of power.
        Mutant::NoContentSync => &[DURABLE, READS],
        // Removed content also returns. A file whose content is missing cannot be sent.
        Mutant::ForgetNames => &[DURABLE, LEAKS, IN_TIME],
        Mutant::ResyncUnmarked => &[MARKED, IN_TIME],
        // A power loss may also damage a table. A program may read from the copy that lost.
        Mutant::TrustAfterPowerLoss => {
            &[IDENTICAL, TABLES, FOLLOWS, SURVIVES, TABLE_DAMAGED, READS]
        }
        // The copy that lost has another verifier.
        Mutant::KeepLoserComplete => &[
            IDENTICAL,
            TABLES,
            FOLLOWS,
            SURVIVES,
            TABLE_DAMAGED,
            READS,
            VERIFIER,
        ],
        Mutant::TrustOldCopy | Mutant::TrustLaterCopy | Mutant::KeepNameOfSync => {
            &[IDENTICAL, TABLES, FOLLOWS, SURVIVES, DURABLE, READS]
        }
        Mutant::CutLogUnsynced => &[STARTS, DURABLE, EXACTLY_ONCE, CLOSED],
        Mutant::HideFailure => &[DURABLE, IDENTICAL, TABLES, SURVIVES],
        Mutant::SecondaryServes | Mutant::RecordUnwritten => &[ONE_PRIMARY, IN_TIME],
        Mutant::PromoteInSameGeneration => &[ONE_PRIMARY, IN_TIME, CLAIM],
        // A resync waits forever for the lock.
        Mutant::KeepLock => &[LEAKS, IN_TIME],
        Mutant::LeaveDraft | Mutant::KeepDirectory | Mutant::DropUnreaped => &[LEAKS],
        Mutant::KeepPawEntry
        | Mutant::KeepSawEntry
        | Mutant::SendWithoutRoom
        | Mutant::KeepWithoutLimit => &[BOUNDED],
        Mutant::IgnorePeerRoom => &[FOLLOWS],
        Mutant::WaitToSend => &[WAITED],
        // The bytes that are read back differ from the bytes that were stored. A place that is given out twice counts twice.
        Mutant::OneSlot => &[ERROR, BOUNDED],
        Mutant::NoTablesSync => &[TABLE_DAMAGED, CLOSED],
        Mutant::ClosedTooEarly => &[CLOSED],
        Mutant::ServeUndecided => &[ONE_PRIMARY],
        // Where no node was promoted, the primary lacks what only the secondary still has, or the nodes refuse each other.
        Mutant::LeadAfterPowerLoss => &[ONE_PRIMARY, SURVIVES, READS, EXACTLY_ONCE, IN_TIME],
        Mutant::AdmitInAnyStanding => &[GATE],
        Mutant::ServeWithoutLease | Mutant::TakeOverEarly | Mutant::SilenceFromLook => {
            &[ONE_PRIMARY, READS, EXACTLY_ONCE]
        }
        Mutant::CachesOutliveLease => &[CACHES],
        Mutant::GoAloneUnasked => WITHOUT_WITNESS,
        Mutant::ForgetWaiting => &[STANDBY],
        // The end of the file, or its attributes, may show the late change first.
        Mutant::RunOvertaken => &[SURVIVES, READS, DURABLE],
        Mutant::PromoteUnasked | Mutant::FollowAfterAlone => &[CONSENT],
        // Two nodes lead in one generation. A witness has then one record for both.
        Mutant::ForceIntoNextGeneration | Mutant::ForceUntold | Mutant::DemoteInSameGeneration => {
            &[ONE_PRIMARY, CLAIM, IN_TIME, READS, SURVIVES, EXACTLY_ONCE]
        }
        // A demoted node whose copy counts as complete may take over.
        Mutant::KeepDemotedComplete => &[
            IDENTICAL,
            TABLES,
            FOLLOWS,
            SURVIVES,
            EXACTLY_ONCE,
            DURABLE,
            ONE_PRIMARY,
            CLAIM,
            VERIFIER,
        ],
        Mutant::KeepVerifierOfLostMemory
        | Mutant::KeepOwnVerifier
        | Mutant::KeepVerifierOfDemoted
        | Mutant::PromoteWithOldVerifier => &[VERIFIER],
        Mutant::MarksUnasked => &[IDENTICAL, PROVED],
        Mutant::GateLetsWriteThrough
        | Mutant::GateOpensEarly
        | Mutant::FoldUnlogged
        | Mutant::TornUnnoted
        | Mutant::DeleteHeld => &[SNAPSHOT],
        Mutant::HandOverBusy => &[HANDED_OVER, TABLES],
        Mutant::KeepSession => &[IN_TIME, LEAKS, IDENTICAL],
        // The resync waits for the operations in doubt.
        Mutant::KeepInDoubt => &[IN_TIME, EXACTLY_ONCE, IDENTICAL],
        // The scripts name the messages. A mutant that is in no line is found by no check.
        _ => &[],
    }
}

/// Returns the seed with which the search for a mutant begins. A search for a rare one begins near a schedule that finds
/// the mutant. Where the schedules have changed since, the search only takes longer.
const fn first_seed(mutant: Mutant) -> u64 {
    match mutant {
        Mutant::ForgetLostPower => 90,
        Mutant::PromoteUnasked => 7_960,
        Mutant::KeepDemotedComplete => 58_080,
        Mutant::ForceUntold => 14_180,
        Mutant::ForceIntoNextGeneration => 15_130,
        Mutant::WatermarkTooHigh => 12_430,
        Mutant::FollowAfterAlone => 1_240,
        // Schedule 17 finds an effect on the verifier before.
        Mutant::ResyncUnmarked => 20,
        Mutant::DropUnreaped => 3_600,
        Mutant::GoAloneUnasked => 1_150,
        Mutant::LeadAfterPowerLoss => 810,
        Mutant::HandOverBusy => 1_030,
        Mutant::KeepLoserComplete => 7_480,
        Mutant::RejoinFromAnyCopy => 172,
        Mutant::CachesOutliveLease => 1_320,
        Mutant::RunOvertaken => 15_990,
        Mutant::IgnorePeerRoom => 6_280,
        Mutant::SendWithoutRoom => 1_940,
        Mutant::MetadataOutOfOrder => 3_420,
        Mutant::NoSawEntry => 1_010,
        Mutant::AdmitBeforeRanges => 1_880,
        Mutant::RangesBeforeMetadata => 10_090,
        Mutant::KeepNameOfSync => 2_760,
        Mutant::HideFailure => 390,
        Mutant::RepeatMetadata => 170,
        Mutant::DeltaForgetsUnapplied => 49_670,
        Mutant::KeepVerifierOfDemoted | Mutant::MarksUnasked => 4_540,
        Mutant::PromoteWithOldVerifier => 440,
        Mutant::ForgetInDoubt => 600,
        Mutant::ShowNamesInDoubt => 15_390,
        Mutant::ForgetNames => 610,
        Mutant::IgnorePawInRecovery => 640,
        Mutant::KeepInDoubt => 1_220,
        Mutant::DemoteInSameGeneration => 4_539,
        Mutant::SyncHereOnly | Mutant::NoRemoteSync => 210,
        Mutant::MarkBeforeSync => 350,
        Mutant::NoContentSync => 870,
        Mutant::FullTableForgets => 3_610,
        Mutant::NoResend => 205,
        Mutant::KeepWithoutLimit => 100,
        Mutant::DeleteHeld => 2_640,
        _ => 1,
    }
}

/// Returns the first schedule that finds a mutant, and its message.
fn found(mutant: Mutant) -> Option<(u64, String)> {
    let mut seeds = mutant_search::seeds(mutant, first_seed(mutant)).take(SCHEDULES_MAX);
    seeds.find_map(|seed| {
        let failure = Case::of(seed).run(Some(mutant)).err()?;
        let what = failure.what.lines().next().unwrap_or_default();
        Some((seed, what.to_owned()))
    })
}

/// Searches for a mutant. Returns the mistake, if the mutant is not found as it must be.
fn check(mutant: Mutant) -> Option<String> {
    let start = Instant::now();
    let Some((seed, what)) = found(mutant) else {
        return Some(format!("{mutant:?} is not found"));
    };
    let result = format!("{mutant:?} by schedule {seed}: {what}");
    let is_expected = finders(mutant).iter().any(|finder| what.contains(finder));
    let wrong = (!is_expected).then(|| format!("found by another check: {result}"));
    print_result("mutants_are_found", result, start.elapsed());
    wrong
}

#[test]
fn the_page_of_results_names_every_mutant() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/simulation.md");
    let page = fs::read_to_string(path).unwrap();
    let words: HashSet<&str> = page.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let names = ALL.iter().map(|mutant| format!("{mutant:?}"));
    let missing: Vec<_> = names.filter(|name| !words.contains(&name[..])).collect();
    assert!(
        missing.is_empty(),
        "docs/results/simulation.md does not name {missing:?}"
    );
}

#[test]
fn mutants_are_found() {
    let usual: Vec<Mutant> = ALL
        .iter()
        .copied()
        .filter(|one| !SCRIPTED.contains(one))
        .collect();
    assert_found(&usual);
}

/// A mutant is active on one thread only, so several threads search at a time.
fn assert_found(mutants: &[Mutant]) {
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mistake = check(*mutant);
                    wrong.lock().extend(mistake);
                }
            });
        }
    });
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
