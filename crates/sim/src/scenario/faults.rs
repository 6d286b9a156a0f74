//! What goes wrong in a schedule.

use crate::disk::{CallClass, Verdict};
use crate::history::Stop;
use crate::random::Random;
use crate::world::{Hang, Side};

use lockstep_types::Errno;

use super::coverage::FileClass;
use super::half::CallAt;

/// Disk calls until a crash at one of them, at most.
const CALLS_MAX: u64 = 400;

/// The same from the beginning of a stop in order, or of a start: few take more.
const ORDER_CALLS_MAX: u64 = 60;

/// The same, where only calls on one class of files count.
const CALLS_OF_CLASS_MAX: u64 = 12;

/// So many writes of a hundred that a process ends in are cut after whole pages.
const WHOLE_PAGES_PERCENT: u64 = 30;

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
        /// At which.
        at: CallAt,
    },
    /// A node is stopped in order.
    StopsInOrder(Order),
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
        /// With which error.
        errno: Errno,
    },
    /// The secondary cannot change its role file the next time, though its disk is well.
    MarkFails,
    /// Nothing more fits on the disk of a node.
    Full(Side),
    /// The disk of the secondary hangs: its node answers whether it is there, takes what can be done in
    /// memory, and begins nothing of the rest.
    Hangs(Hang),
    /// The secondary's disk is not mounted when its node is started again: an empty store lies in its
    /// place.
    DiskAway,
    /// Frames pass again, disks have room and are mounted, and who is away comes back.
    Healed,
}

/// A node is to stop in order, and what comes of that.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Which node.
    pub side: Side,
    /// In the middle of it, it stops otherwise.
    pub cut: Option<Cut>,
    /// What follows, if nothing comes between.
    pub then: Then,
}

/// What follows when a node has stopped in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Then {
    /// Its machine loses power.
    pub loses_power: bool,
    /// It starts again only some time later.
    pub is_away: bool,
    /// Soon after it has started, it stops otherwise.
    pub cut: Option<Cut>,
}

/// A node stops at a call of its disk.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// How.
    pub stop: Stop,
    /// At which.
    pub at: CallAt,
}

impl Order {
    /// Any.
    pub fn random(chance: &mut Random) -> Self {
        let side = *chance.pick(&Side::BOTH);
        let cut = chance.percent(25).then(|| Cut::random(chance));
        let then = Then {
            loses_power: chance.percent(50),
            is_away: chance.percent(20),
            cut: chance.percent(25).then(|| Cut::random(chance)),
        };
        Self { side, cut, then }
    }

    fn detailed(self, chance: &mut Random) -> Self {
        let mut detailed = |cut: Option<Cut>| {
            cut.map(|Cut { stop, at }| Cut {
                stop,
                at: at.detailed(stop, chance),
            })
        };
        let cut = detailed(self.cut);
        let then = Then {
            cut: detailed(self.then.cut),
            ..self.then
        };
        Self { cut, then, ..self }
    }
}

impl Cut {
    fn random(chance: &mut Random) -> Self {
        let stop = stop(chance);
        let at = CallAt::random(chance, ORDER_CALLS_MAX);
        Self { stop, at }
    }
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
                errno: Errno::Io,
            },
            12 => Self::Full(side),
            _ => Self::Silent(side),
        }
    }

    fn stops_at_call(chance: &mut Random, side: Side, stop: Stop) -> Self {
        let at = CallAt::random(chance, CALLS_MAX);
        Self::StopsAtCall { side, stop, at }
    }

    /// The same fault, with how exactly a disk fails or a process ends in the middle of a call drawn by
    /// another chance.
    #[must_use]
    pub fn detailed(self, chance: &mut Random) -> Self {
        match self {
            Self::DiskFails {
                side, class, nth, ..
            } => Self::DiskFails {
                side,
                class,
                nth,
                errno: errno(class, chance),
            },
            Self::StopsAtCall { side, stop, at } => Self::StopsAtCall {
                side,
                stop,
                at: at.detailed(stop, chance),
            },
            Self::StopsInOrder(order) => Self::StopsInOrder(order.detailed(chance)),
            other => other,
        }
    }

    /// Whether it hurts until it is healed.
    pub const fn lasts(self) -> bool {
        matches!(
            self,
            Self::Away(..) | Self::Silent(_) | Self::Full(_) | Self::Hangs(_) | Self::DiskAway
        )
    }
}

impl CallAt {
    /// One of the next `calls_max`, or of fewer on files of one class.
    fn random(chance: &mut Random, calls_max: u64) -> Self {
        let only = chance
            .percent(50)
            .then(|| *chance.pick(&FileClass::TELLING));
        let most = if only.is_some() {
            CALLS_OF_CLASS_MAX
        } else {
            calls_max
        };
        Self {
            only,
            calls: chance.below(most),
            verdict: *chance.pick(&[
                Verdict::CrashBefore,
                Verdict::CrashAfter,
                Verdict::CrashTorn(4096),
            ]),
        }
    }
}

impl CallAt {
    /// A process that ends may have done any part of a write; of one that is under way when power is lost,
    /// only whole pages count.
    fn detailed(self, stop: Stop, chance: &mut Random) -> Self {
        let thousandths = u16::try_from(chance.below(1000)).unwrap_or(0);
        let is_torn = matches!(self.verdict, Verdict::CrashTorn(_));
        if !is_torn || stop == Stop::Power || chance.percent(WHOLE_PAGES_PERCENT) {
            return self;
        }
        Self {
            verdict: Verdict::CrashInside { thousandths },
            ..self
        }
    }
}

/// With what a call fails: a sync, and a look at the disk, mostly as on a broken disk.
fn errno(class: CallClass, chance: &mut Random) -> Errno {
    // The first two the reserve may help against.
    let that_pass = [Errno::NoSpace, Errno::QuotaExceeded, Errno::NoMemory];
    let percent = match class {
        CallClass::Write | CallClass::Name => 60,
        CallClass::Sync => 20,
        CallClass::Read | CallClass::Look => 0,
    };
    if chance.percent(percent) {
        *chance.pick(&that_pass)
    } else {
        Errno::Io
    }
}

fn stop(chance: &mut Random) -> Stop {
    if chance.percent(65) {
        Stop::Process
    } else {
        Stop::Power
    }
}
