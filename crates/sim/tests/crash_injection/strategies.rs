//! The strategies that generate cases. proptest shrinks a choice towards its first element.

use std::time::Duration;

use lockstep_sim::disk::{CallClass, Verdict};
use lockstep_sim::history::Stop;
use lockstep_sim::scenario::{
    AfterShutdown, CallPoint, CleanShutdown, Crash, Ending, Fault, FileClass, Settings,
};
use lockstep_types::settings::{Durability, OnPeerLoss, OnPowerLoss, Role};
use lockstep_types::{AllocateMode, Errno, NodeKind, RenameMode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::Case;
use super::script::{Place, Range, Step};

/// Most clients.
const CLIENTS_MAX: usize = 4;
/// Most operations of a client.
const STEPS_MAX: usize = 20;
/// Most faults.
const FAULTS_MAX: usize = 8;

pub fn case() -> impl Strategy<Value = Case> {
    let clients = vec(vec(step(), 1..=STEPS_MAX), 1..=CLIENTS_MAX);
    let faults = vec((wait(), fault()), 0..=FAULTS_MAX);
    let rest = (
        any::<u64>(),
        settings(),
        select(vec![0_u64, 10, 50, 100]),
        select(vec![2_u64, 20, 100]),
        select(vec![Ending::Quiet, Ending::Killed]),
    );
    (clients, faults, rest).prop_map(|(clients, faults, rest)| {
        let (run_seed, settings, step_percent, pause_ms, ending) = rest;
        Case {
            run_seed,
            settings,
            step_percent,
            pause_max: Duration::from_millis(pause_ms),
            clients,
            faults,
            ending,
        }
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    let durability = prop_oneof![3 => Just(Durability::Posix), 1 => Just(Durability::Always)];
    let on_peer_loss = prop_oneof![3 => Just(OnPeerLoss::Continue), 1 => Just(OnPeerLoss::Freeze)];
    let pause_ms = prop_oneof![0..100_u64, 0..3000_u64];
    (durability, on_peer_loss, pause_ms, 200..1200_u64).prop_map(
        |(durability, on_peer_loss, pause_ms, timeout_ms)| Settings {
            durability,
            on_peer_loss,
            on_power_loss: OnPowerLoss::Serve,
            pause_limit: Duration::from_millis(pause_ms),
            peer_timeout: Duration::from_millis(timeout_ms),
            ..Settings::STEADY
        },
    )
}

/// The time before a fault: mostly short, while the recovery is still in progress.
fn wait() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => 0..150_000_u64, 2 => 0..1_500_000_u64].prop_map(Duration::from_micros)
}

fn fault() -> impl Strategy<Value = Fault> {
    let verdict = || {
        select(vec![
            Verdict::CrashBefore,
            Verdict::CrashAfter,
            Verdict::CrashTorn(4096),
            Verdict::CrashInside { thousandths: 500 },
        ])
    };
    let class = select(vec![
        (CallClass::Write, Errno::Io),
        (CallClass::Write, Errno::NoSpace),
        (CallClass::Name, Errno::Io),
        (CallClass::Name, Errno::QuotaExceeded),
        (CallClass::Read, Errno::Io),
        (CallClass::Sync, Errno::Io),
    ]);
    prop_oneof![
        2 => Just(Fault::Disconnect),
        2 => Just(Fault::Heal),
        1 => Just(Fault::UnmountDisk),
        3 => (role(), stop()).prop_map(|(role, stop)| Fault::Restart(role, stop)),
        1 => (stop(), stop()).prop_map(|(one, two)| Fault::RestartBoth(one, two)),
        1 => (role(), stop()).prop_map(|(role, stop)| Fault::Down(role, stop)),
        3 => (role(), stop(), call_point(), verdict()).prop_map(
            |(role, stop, (class, skipped), verdict)| {
                let at = CallPoint { class, skipped, verdict };
                Fault::CrashAtCall { role, crash: Crash { stop, at } }
            }
        ),
        1 => (role(), any::<bool>(), any::<bool>()).prop_map(|(role, loses_power, stays_down)| {
            let then = AfterShutdown { loses_power, stays_down, crash: None };
            Fault::CleanShutdown(CleanShutdown { role, crash: None, then })
        }),
        1 => role().prop_map(Fault::CorruptFrame),
        1 => role().prop_map(Fault::Mute),
        1 => role().prop_map(Fault::FillDisk),
        1 => (role(), class, 1..30_u64)
            .prop_map(|(role, (class, errno), nth)| Fault::FailCall { role, class, nth, errno }),
    ]
}

/// The class of the calls that count until a node stops, and their number.
fn call_point() -> impl Strategy<Value = (Option<FileClass>, u64)> {
    let any_file = (0..400_u64).prop_map(|calls| (None, calls));
    let of_class = (select(FileClass::CRITICAL.to_vec()), 0..12_u64)
        .prop_map(|(class, calls)| (Some(class), calls));
    prop_oneof![any_file, of_class]
}

fn role() -> impl Strategy<Value = Role> + Clone {
    select(vec![Role::Secondary, Role::Primary])
}

fn stop() -> impl Strategy<Value = Stop> + Clone {
    prop_oneof![2 => Just(Stop::Process), 1 => Just(Stop::Power)]
}

fn place() -> impl Strategy<Value = Place> + Clone {
    (0..3_u8, 0..3_u8).prop_map(|(directory, name)| Place { directory, name })
}

/// Whole blocks in half of the cases.
fn range() -> impl Strategy<Value = Range> + Clone {
    let blocks = (0..6_u64, 1..4_u64).prop_map(|(offset, length)| Range {
        offset: offset * 4096,
        length: length * 4096,
    });
    let bytes = (0..24_000_u64, 1..9000_u64).prop_map(|(offset, length)| Range { offset, length });
    prop_oneof![blocks, bytes]
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        5 => Just(NodeKind::File),
        2 => Just(NodeKind::Directory),
        1 => Just(NodeKind::Symlink),
    ];
    let space = select(vec![
        AllocateMode::Allocate,
        AllocateMode::AllocateKeepSize,
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange,
        AllocateMode::ZeroRangeKeepSize,
    ]);
    let mode = select(vec![
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ]);
    let content = prop_oneof![
        4 => (place(), range()).prop_map(|(place, range)| Step::Read(place, range)),
        6 => (place(), range()).prop_map(|(place, range)| Step::Write(place, range)),
        2 => (place(), range()).prop_map(|(place, range)| Step::WriteDurably(place, range)),
        2 => place().prop_map(Step::Sync),
        2 => (place(), 0..24_000_u64).prop_map(|(place, size)| Step::Truncate(place, size)),
        2 => (place(), range(), space).prop_map(|(place, range, mode)| Step::Space(place, range, mode)),
    ];
    let names = prop_oneof![
        8 => (place(), kind).prop_map(|(place, kind)| Step::Make(place, kind)),
        2 => (place(), place()).prop_map(|(from, to)| Step::Link(from, to)),
        2 => place().prop_map(Step::Unlink),
        1 => place().prop_map(Step::Rmdir),
        3 => (place(), place(), mode).prop_map(|(from, to, mode)| Step::Rename(from, to, mode)),
        1 => place().prop_map(Step::SyncDirectory),
    ];
    let rest = prop_oneof![
        2 => place().prop_map(Step::Look),
        1 => place().prop_map(Step::List),
        1 => (place(), 0..0o1000_u32).prop_map(|(place, mode)| Step::SetMode(place, mode)),
        1 => (place(), 0..1_000_000_i64).prop_map(|(place, secs)| Step::SetTimes(place, secs)),
        1 => (place(), any::<u8>()).prop_map(|(place, value)| Step::SetXattr(place, value)),
        1 => place().prop_map(Step::RemoveXattr),
    ];
    prop_oneof![1 => rest, 3 => content, 3 => names]
}
