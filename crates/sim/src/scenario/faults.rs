//! What goes wrong in a schedule.

use crate::disk::{CallClass, Verdict};
use crate::history::Stop;
use crate::random::Random;
use crate::world::{Hang, Side};

use super::coverage::FileClass;

/// Disk calls until a crash at one of them, at most.
const CALLS_MAX: u64 = 400;

/// The same, where only calls on one class of files count.
const CALLS_OF_CLASS_MAX: u64 = 12;

/// Disk calls of a class until one fails, at most.
const FAILING_CALLS_MAX: u64 = 30;

/// One fault.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A node stops, and starts again.
    Stopped(Side, Stop),
    /// Both do.
    BothStopped(Stop, Stop),
    /// A node stops, and starts again only some time later.
    Away(Side, Stop),
    /// A node stops at a disk call, so many from now.
    StopsAtCall {
        /// Which node.
        side: Side,
        /// How.
        stop: Stop,
        /// Counted are only calls on files of this class, or all.
        only: Option<FileClass>,
        /// How many of them from now.
        calls: u64,
        /// What becomes of that call.
        verdict: Verdict,
    },
    /// The connection is lost.
    Cut,
    /// The next frame from a node is damaged.
    Corrupt(Side),
    /// Nothing from a node arrives.
    Silent(Side),
    /// A disk call fails. An operator starts the node again later.
    DiskFails {
        /// Of which node.
        side: Side,
        /// Of which kind.
        class: CallClass,
        /// Which of them from now.
        nth: u64,
    },
    /// Nothing more fits on the disk of a node.
    Full(Side),
    /// The disk of the secondary hangs: its node answers whether it is there, takes what can be done in
    /// memory, and begins nothing of the rest.
    Hangs(Hang),
    /// Frames pass again, disks have room, and who is away comes back.
    Healed,
}

impl Fault {
    /// The next fault, where something is `hurt` that does not mend by itself, or not.
    pub fn random(chance: &mut Random, hurt: bool) -> Self {
        let side = *chance.pick(&Side::BOTH);
        let stop = stop(chance);
        if hurt && chance.percent(40) {
            return Self::Healed;
        }
        match chance.below(14) {
            0..=2 => Self::Stopped(side, stop),
            3 => Self::BothStopped(stop, self::stop(chance)),
            4 => Self::Away(side, stop),
            5..=7 => Self::stops_at_call(chance, side, stop),
            8 | 9 => Self::Cut,
            10 => Self::Corrupt(side),
            11 => Self::DiskFails {
                side,
                class: *chance.pick(&[
                    CallClass::Write,
                    CallClass::Name,
                    CallClass::Read,
                    CallClass::Sync,
                ]),
                nth: 1 + chance.below(FAILING_CALLS_MAX),
            },
            12 => Self::Full(side),
            _ => Self::Silent(side),
        }
    }

    fn stops_at_call(chance: &mut Random, side: Side, stop: Stop) -> Self {
        let only = chance
            .percent(50)
            .then(|| *chance.pick(&FileClass::TELLING));
        let most = if only.is_some() {
            CALLS_OF_CLASS_MAX
        } else {
            CALLS_MAX
        };
        Self::StopsAtCall {
            side,
            stop,
            only,
            calls: chance.below(most),
            verdict: *chance.pick(&[
                Verdict::CrashBefore,
                Verdict::CrashAfter,
                Verdict::CrashTorn(4096),
            ]),
        }
    }

    /// Whether it hurts until it is healed.
    pub const fn lasts(self) -> bool {
        matches!(
            self,
            Self::Away(..) | Self::Silent(_) | Self::Full(_) | Self::Hangs(_)
        )
    }
}

fn stop(chance: &mut Random) -> Stop {
    if chance.percent(65) {
        Stop::Process
    } else {
        Stop::Power
    }
}
