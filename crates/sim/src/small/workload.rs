//! The workloads of small worlds: which there are, and how each is set on a stage.

use std::fmt;
use std::time::Duration;

use lockstep_types::settings::{Durability, OnPeerLoss};

use super::script::{Making, Script, Step};
use super::tree::{MAKING, OPERATIONS, Operation, Tree};
use crate::scenario::exact::{self, Ground, Stage};
use crate::scenario::{ANSWER_LIMIT, Settings};

/// Long enough for a checkpoint of both nodes, which come every 20 seconds.
const WITH_CHECKPOINT: Duration = Duration::from_millis(20_500);
/// Long enough for every watermark to arrive and garbage to be removed.
const WITHOUT: Duration = Duration::from_millis(2500);
/// After that frames are signs of life, which come every half second.
const FRAMES: Duration = Duration::from_secs(1);

/// How two operations follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// One client asks the second when the first is answered.
    Then,
    /// Two clients ask at the same moment.
    AtOnce,
}

/// What follows the operations of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Nothing.
    Nothing,
    /// A sync of what the last of them was about.
    Sync,
    /// A checkpoint of both nodes. Faults come in that only.
    Checkpoint,
}

/// One or two operations, and how the datastore is configured.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    first: Operation,
    second: Option<(Order, Operation)>,
    last: Last,
    durability: Durability,
    /// Whether acknowledgements wait for a node that starts again, or go on alone at once.
    patient: bool,
}

/// How the workloads of one operation differ: what makes it durable, and whether it waits for a node
/// that has stopped.
const SINGLES: [(Durability, Last, bool); 4] = [
    (Durability::Posix, Last::Nothing, true),
    (Durability::Posix, Last::Sync, true),
    (Durability::Always, Last::Nothing, true),
    (Durability::Posix, Last::Nothing, false),
];

/// How those of two differ that come one after the other. What comes before the sync is as it would be
/// without.
const PAIRS: [(Durability, Last); 2] = [
    (Durability::Posix, Last::Sync),
    (Durability::Always, Last::Nothing),
];

/// How those of two differ that come at once.
const AT_ONCE: [Durability; 2] = [Durability::Posix, Durability::Always];

/// All workloads of one operation.
pub fn singles() -> Vec<Workload> {
    let of = |first| {
        SINGLES.map(|(durability, last, patient)| Workload {
            first,
            second: None,
            last,
            durability,
            patient,
        })
    };
    OPERATIONS.into_iter().flat_map(of).collect()
}

/// All workloads: those of one operation first, then those of one operation and a checkpoint, then those
/// of two operations.
pub fn all() -> Vec<Workload> {
    let mut all = singles();
    all.extend(OPERATIONS.map(|first| Workload {
        first,
        second: None,
        last: Last::Checkpoint,
        durability: Durability::Posix,
        patient: true,
    }));
    for (number, first) in OPERATIONS.into_iter().enumerate() {
        let pair = |order, second, durability, last| Workload {
            first,
            second: Some((order, second)),
            last,
            durability,
            patient: true,
        };
        for second in OPERATIONS {
            all.extend(PAIRS.map(|(durability, last)| pair(Order::Then, second, durability, last)));
        }
        // At once, neither is first.
        for second in OPERATIONS.into_iter().skip(number) {
            all.extend(
                AT_ONCE.map(|durability| pair(Order::AtOnce, second, durability, Last::Nothing)),
            );
        }
    }
    all
}

/// The grounds of all workloads: the tree, made where durability is asked for, and where everything is
/// durable.
pub(super) fn grounds() -> [Ground; 2] {
    [Durability::Posix, Durability::Always].map(|durability| {
        let stage = Stage {
            settings: settings(durability, true),
            luck: 0,
            step_percent: 0,
            clients: 0,
            before: 0,
            watched: Duration::ZERO,
            frames_watched: Duration::ZERO,
        };
        match exact::ground(&stage, Box::new(Making::default()), MAKING) {
            Ok(ground) => ground,
            Err(failure) => panic!("the tree cannot be made: {failure:?}"),
        }
    })
}

const fn settings(durability: Durability, patient: bool) -> Settings {
    Settings {
        durability,
        on_peer_loss: OnPeerLoss::Continue,
        pause_limit: Duration::from_secs(if patient { 2 } else { 0 }),
        peer_timeout: Duration::from_secs(2),
        answer_limit: ANSWER_LIMIT,
    }
}

/// How often a step lets others go first: also a matter of luck.
const fn step_percent(luck: u64) -> u64 {
    match luck % 3 {
        0 => 0,
        1 => 10,
        _ => 50,
    }
}

impl Workload {
    /// Whether both nodes may stop at once in it. If nobody waits for a node that has stopped, that is
    /// no other workload than with a pause.
    pub(super) const fn has_stops_of_both(&self) -> bool {
        self.patient
    }

    /// Whether everything answered is durable.
    pub(super) fn is_always(&self) -> bool {
        self.durability == Durability::Always
    }

    /// What its clients ask on its ground.
    pub(super) fn script(&self, ground: &Ground) -> Script {
        let mut one = vec![Step::Do(self.first)];
        let mut two = Vec::new();
        match self.second {
            Some((Order::Then, second)) => one.push(Step::Do(second)),
            Some((Order::AtOnce, second)) => two.push(Step::Do(second)),
            None => {}
        }
        if self.last == Last::Sync {
            one.push(Step::Sync);
        }
        Script::new(Tree::made_in(ground.history()), vec![one, two])
    }

    /// The stage it is set on, with some luck.
    pub(super) fn stage(&self, luck: u64) -> Stage {
        Stage {
            settings: settings(self.durability, self.patient),
            luck,
            step_percent: step_percent(luck),
            clients: 2,
            before: self.before(),
            watched: match self.last {
                Last::Checkpoint => WITH_CHECKPOINT,
                Last::Nothing | Last::Sync => WITHOUT,
            },
            frames_watched: FRAMES,
        }
    }

    /// Operations that are answered before faults come: others have shown what comes of those.
    fn before(&self) -> u64 {
        let is_second_after = matches!(self.second, Some((Order::Then, _)));
        u64::from(is_second_after || self.last == Last::Checkpoint)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first.name)?;
        if let Some((order, second)) = &self.second {
            let how = match order {
                Order::Then => "then",
                Order::AtOnce => "and at once",
            };
            write!(f, ", {how} {}", second.name)?;
        }
        match self.last {
            Last::Nothing => {}
            Last::Sync => write!(f, ", then sync")?,
            Last::Checkpoint => write!(f, ", then a checkpoint")?,
        }
        let patience = if self.patient { "" } else { ", no pause" };
        write!(f, " (durability {:?}{patience})", self.durability)
    }
}
