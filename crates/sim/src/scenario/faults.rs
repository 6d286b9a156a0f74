//! The faults of a schedule, as data, and the random choice of a fault. A fault names a node by the
//! role that the node has when the fault happens.

pub mod held_thread;

use lockstep_types::Errno;
use lockstep_types::settings::Role;

use super::recording::coverage::FileClass;
use super::snapshots::SnapshotAct;
use crate::disk::{CallClass, Verdict};
use crate::history::Stop;
use crate::random::Random;
use crate::world::Hang;
use held_thread::HeldThread;

/// Most disk calls until a crash.
const CALLS_MAX: u64 = 400;

/// Most disk calls from the begin of a clean shutdown, or of a start, until a crash. Few of them
/// make more calls.
const SHUTDOWN_CALLS_MAX: u64 = 60;

/// Most disk calls until a crash, where only the calls on one class of files count.
const CALLS_OF_CLASS_MAX: u64 = 12;

/// Share of torn writes that are cut after whole pages, in percent.
const WHOLE_PAGES_PERCENT: u64 = 30;

/// The roles of the two nodes.
const ROLES: [Role; 2] = [Role::Primary, Role::Secondary];

/// Most disk calls of a class until one of them fails.
pub const FAILING_CALLS_MAX: u64 = 30;

/// One fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A node stops, and starts again.
    Restart(Role, Stop),
    /// Both nodes stop, the primary as the first one says, and start again.
    RestartBoth(Stop, Stop),
    /// A node stops, and starts again only after a heal.
    Down(Role, Stop),
    /// A node stops at a call of its disk.
    CrashAtCall {
        /// The node.
        role: Role,
        /// The crash.
        crash: Crash,
    },
    /// A node is shut down cleanly.
    CleanShutdown(CleanShutdown),
    /// The connection is lost.
    Disconnect,
    /// The next frame of a node is damaged.
    CorruptFrame(Role),
    /// No frame of a node arrives, until a heal.
    Mute(Role),
    /// A disk call fails. An operator starts the node again later.
    FailCall {
        /// The node.
        role: Role,
        /// The class of the call.
        class: CallClass,
        /// Number of the call in its class from now on, from one.
        nth: u64,
        /// The error.
        errno: Errno,
    },
    /// The next change of the secondary's role file fails, although the disk works.
    FailRoleWrite,
    /// Nothing more fits on the disk of a node, until a heal.
    FillDisk(Role),
    /// The disk of the secondary hangs, until a heal. The node answers pings and does everything
    /// that needs memory only. The node begins no other work.
    HangDisk(Hang),
    /// The secondary restarts without its disk. An empty store is in the place of the disk, until a
    /// heal.
    UnmountDisk,
    /// An operator copies the secondary's store, or puts the last copy back.
    PutBack,
    /// A node cannot reach the witness, until a heal.
    CutWitness(Role),
    /// The calls of a node reach the witness, and no answer reaches the node, until a heal.
    LoseAnswersOfWitness(Role),
    /// A thread of a node stands still for a time.
    HoldThread(HeldThread),
    /// A node is cut off from the other node and from the witness, until a heal. Its connections end at once.
    Isolate(Role),
    /// The witness is replaced by one that knows nothing.
    ReplaceWitness,
    /// An operator gives the role of the primary to the secondary.
    HandOver,
    /// The primary stops. An operator promotes the secondary, if its copy is complete. Then the node
    /// that stopped starts.
    TakeOver(Stop),
    /// An operator promotes a node that serves nothing, if the other node is down and no other copy
    /// can hold more.
    EndStandStill,
    /// The primary stops. An operator promotes the secondary by force.
    PromoteByForce(Stop, OldDisk),
    /// An operator makes a primary that serves alone, or is undecided, the secondary, and promotes a node by force.
    Demote,
    /// A new disk is put in the place of the secondary's, for good.
    ExchangeDisk,
    /// An operator makes, renames or deletes a snapshot.
    Snapshot(SnapshotAct),
    /// An operator empties the trash.
    EmptyTrash,
    /// Frames pass again, the disks have room and are mounted, and stopped nodes start.
    Heal,
}

/// The disk of the primary that a forced promotion replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldDisk {
    /// The disk is lost, and a new one takes its place.
    Lost,
    /// The old primary starts again from its disk, and an operator demotes it.
    Reused,
}

/// A clean shutdown of a node, and the events after it.
#[derive(Clone, Copy, Debug)]
pub struct CleanShutdown {
    /// The node.
    pub role: Role,
    /// A crash during the shutdown.
    pub crash: Option<Crash>,
    /// The events after the shutdown, if nothing interrupts it.
    pub then: AfterShutdown,
}

/// The events after a clean shutdown.
#[derive(Clone, Copy, Debug, Default)]
pub struct AfterShutdown {
    /// The machine loses power.
    pub loses_power: bool,
    /// The node starts again only after a heal.
    pub stays_down: bool,
    /// A crash soon after the next start.
    pub crash: Option<Crash>,
}

/// The stop of a node at a call of its disk.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// The way in which the node stops.
    pub stop: Stop,
    /// The call.
    pub at: CallPoint,
}

/// A call of a disk, and the part of the call that is carried out.
#[derive(Clone, Copy, Debug)]
pub struct CallPoint {
    /// Only calls on files of this class count. `None`: all calls count.
    pub class: Option<FileClass>,
    /// Number of counted calls before this call.
    pub skipped: u64,
    /// The result of the call.
    pub verdict: Verdict,
}

impl CleanShutdown {
    /// Draws a clean shutdown.
    pub fn random(random: &mut Random) -> Self {
        let role = *random.pick(&ROLES);
        let crash = random.percent(25).then(|| Crash::random(random));
        let then = AfterShutdown {
            loses_power: random.percent(50),
            stays_down: random.percent(20),
            crash: random.percent(25).then(|| Crash::random(random)),
        };
        Self { role, crash, then }
    }

    fn detailed(self, random: &mut Random) -> Self {
        let crash = self.crash.map(|crash| crash.detailed(random));
        let then = AfterShutdown {
            crash: self.then.crash.map(|crash| crash.detailed(random)),
            ..self.then
        };
        Self {
            crash,
            then,
            ..self
        }
    }
}

impl Crash {
    fn random(random: &mut Random) -> Self {
        let stop = stop(random);
        let at = CallPoint::random(random, SHUTDOWN_CALLS_MAX);
        Self { stop, at }
    }

    fn detailed(self, random: &mut Random) -> Self {
        let at = self.at.detailed(self.stop, random);
        Self { at, ..self }
    }
}

impl Fault {
    /// Draws the next fault. `needs_heal`: an earlier fault lasts until a heal.
    pub fn random(random: &mut Random, needs_heal: bool) -> Self {
        let role = *random.pick(&ROLES);
        let stop = stop(random);
        if needs_heal && random.percent(40) {
            return Self::Heal;
        }
        match random.below(14) {
            0..=2 => Self::Restart(role, stop),
            3 => Self::RestartBoth(stop, self::stop(random)),
            4 => Self::Down(role, stop),
            5..=7 => {
                let at = CallPoint::random(random, CALLS_MAX);
                let crash = Crash { stop, at };
                Self::CrashAtCall { role, crash }
            }
            8 | 9 => Self::Disconnect,
            10 => Self::CorruptFrame(role),
            11 => Self::failing_call(role, FAILING_CALLS_MAX, random),
            12 => Self::FillDisk(role),
            _ => Self::Mute(role),
        }
    }

    /// Draws the failure of one of the next `calls_max` calls of a class of a node's disk.
    pub fn failing_call(role: Role, calls_max: u64, random: &mut Random) -> Self {
        Self::FailCall {
            role,
            class: *random.pick(&[
                CallClass::Write,
                CallClass::Name,
                CallClass::Read,
                CallClass::Sync,
            ]),
            nth: 1 + random.below(calls_max),
            errno: Errno::Io,
        }
    }

    /// Draws the takeover by an operator.
    pub fn take_over(random: &mut Random) -> Self {
        Self::TakeOver(stop(random))
    }

    /// Draws an act of an operator.
    pub fn of_operator(random: &mut Random) -> Self {
        match random.below(10) {
            0..=4 => Self::HandOver,
            5..=7 => Self::take_over(random),
            _ => Self::EndStandStill,
        }
    }

    /// Draws an event of a schedule with a witness: a fault of the witness, or an act of an operator.
    pub fn with_witness(random: &mut Random) -> Self {
        let role = *random.pick(&ROLES);
        match random.below(10) {
            0..=2 => Self::HandOver,
            3 | 4 => Self::CutWitness(role),
            5 => Self::ReplaceWitness,
            6 | 7 => Self::Restart(Role::Primary, Stop::Process),
            _ => Self::Down(role, stop(random)),
        }
    }

    /// Draws an act of an operator who accepts a loss.
    pub fn of_force(random: &mut Random) -> Self {
        match random.below(10) {
            0..=2 => Self::PromoteByForce(stop(random), OldDisk::Lost),
            3..=6 => Self::PromoteByForce(stop(random), OldDisk::Reused),
            _ => Self::Demote,
        }
    }

    /// Returns the same fault with its details drawn from another random source: the error of a
    /// disk call, and the part of a call that a crash leaves.
    #[must_use]
    pub fn detailed(self, random: &mut Random) -> Self {
        match self {
            Self::FailCall {
                role, class, nth, ..
            } => Self::FailCall {
                role,
                class,
                nth,
                errno: errno(class, random),
            },
            Self::CrashAtCall { role, crash } => Self::CrashAtCall {
                role,
                crash: crash.detailed(random),
            },
            Self::CleanShutdown(shutdown) => Self::CleanShutdown(shutdown.detailed(random)),
            other => other,
        }
    }

    /// Returns whether a machine loses power by the fault.
    pub fn loses_power(self) -> bool {
        let by_crash = |crash: Option<Crash>| crash.is_some_and(|crash| crash.stop == Stop::Power);
        match self {
            Self::Restart(_, stop)
            | Self::Down(_, stop)
            | Self::TakeOver(stop)
            | Self::PromoteByForce(stop, _) => stop == Stop::Power,
            Self::RestartBoth(one, other) => [one, other].contains(&Stop::Power),
            Self::CrashAtCall { crash, .. } => crash.stop == Stop::Power,
            Self::CleanShutdown(CleanShutdown { crash, then, .. }) => {
                then.loses_power || by_crash(crash) || by_crash(then.crash)
            }
            _ => false,
        }
    }

    /// Returns whether an operator accepts a loss of operations.
    pub const fn accepts_loss(self) -> bool {
        matches!(self, Self::PromoteByForce(..) | Self::Demote)
    }

    /// Returns whether a snapshot that was acknowledged may be lost by the fault, or bytes that it shows without a loss of power.
    pub const fn may_lose_snapshots(self) -> bool {
        self.accepts_loss()
            || matches!(
                self,
                Self::FailCall { .. }
                    | Self::FailRoleWrite
                    | Self::FillDisk(_)
                    | Self::UnmountDisk
                    | Self::PutBack
                    | Self::ExchangeDisk
            )
    }

    /// Returns whether the fault lasts until a heal.
    pub const fn lasts(self) -> bool {
        matches!(
            self,
            Self::Down(..)
                | Self::Mute(_)
                | Self::FillDisk(_)
                | Self::HangDisk(_)
                | Self::CutWitness(_)
                | Self::Isolate(_)
                | Self::LoseAnswersOfWitness(_)
                | Self::UnmountDisk
        )
    }
}

impl CallPoint {
    /// Draws one of the next `calls_max` calls, or one of fewer calls on one class of files.
    fn random(random: &mut Random, calls_max: u64) -> Self {
        let class = random
            .percent(50)
            .then(|| *random.pick(&FileClass::CRITICAL));
        let calls_max = if class.is_some() {
            CALLS_OF_CLASS_MAX
        } else {
            calls_max
        };
        Self {
            class,
            skipped: random.below(calls_max),
            verdict: *random.pick(&[
                Verdict::CrashBefore,
                Verdict::CrashAfter,
                Verdict::CrashTorn(4096),
            ]),
        }
    }

    /// A process that ends may have done any part of a write. At a power loss, only whole pages of
    /// an unfinished write survive.
    fn detailed(self, stop: Stop, random: &mut Random) -> Self {
        let thousandths = u16::try_from(random.below(1000)).unwrap_or(0);
        let is_torn = matches!(self.verdict, Verdict::CrashTorn(_));
        if !is_torn || stop == Stop::Power || random.percent(WHOLE_PAGES_PERCENT) {
            return self;
        }
        Self {
            verdict: Verdict::CrashInside { thousandths },
            ..self
        }
    }
}

/// Draws the error of a failing call. The error of a sync is mostly that of a broken disk. The error
/// of a read or of a look at the disk always is.
fn errno(class: CallClass, random: &mut Random) -> Errno {
    // The reserve may help against the first two.
    let temporary = [Errno::NoSpace, Errno::QuotaExceeded, Errno::NoMemory];
    let percent = match class {
        CallClass::Write | CallClass::Name => 60,
        CallClass::Sync => 20,
        CallClass::Read | CallClass::Look => 0,
    };
    if random.percent(percent) {
        *random.pick(&temporary)
    } else {
        Errno::Io
    }
}

fn stop(random: &mut Random) -> Stop {
    if random.percent(65) {
        Stop::Process
    } else {
        Stop::Power
    }
}
