//! The workloads of small worlds: the list of workloads, and the setup of each workload.

use std::fmt;
use std::time::Duration;

use lockstep_types::settings::{Durability, OnPowerLoss};

use super::script::{Script, Step, TreeMaker};
use super::tree::{MAKING, OPERATIONS, Operation, Tree};
use crate::scenario::injection::{self, Setup};
use crate::scenario::{Baseline, Settings};

/// Long enough for a checkpoint of both nodes. Checkpoints happen every 20 seconds.
const WITH_CHECKPOINT: Duration = Duration::from_millis(20_500);
/// Long enough for every watermark to arrive and for garbage to be removed.
const WITHOUT: Duration = Duration::from_millis(2500);
/// After this time, the only frames are signs of life, sent every half second.
const FRAMES: Duration = Duration::from_secs(1);

/// The order of two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// One client requests the second operation when the first is answered.
    Then,
    /// Two clients request the operations at the same moment.
    AtOnce,
}

/// The step after the operations of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Nothing.
    Nothing,
    /// A sync of the inode of the last operation.
    Sync,
    /// A checkpoint of both nodes. Faults happen only during the checkpoint.
    Checkpoint,
}

/// One or two operations, and the configuration of the datastore.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    first: Operation,
    second: Option<(Order, Operation)>,
    last: Last,
    durability: Durability,
    /// Whether acknowledgements wait for a stopped node to start again. If not, the other node
    /// continues alone at once.
    waits_for_peer: bool,
}

/// The variants of the workloads of one operation. They differ in the way in which the operation
/// becomes durable, and in whether the workload waits for a stopped node.
const SINGLES: [(Durability, Last, bool); 4] = [
    (Durability::Posix, Last::Nothing, true),
    (Durability::Posix, Last::Sync, true),
    (Durability::Always, Last::Nothing, true),
    (Durability::Posix, Last::Nothing, false),
];

/// The variants of the workloads of two operations, one after the other. The part before the sync
/// is the same as without a sync.
const PAIRS: [(Durability, Last); 2] = [
    (Durability::Posix, Last::Sync),
    (Durability::Always, Last::Nothing),
];

/// The variants of the workloads of two operations at once.
const AT_ONCE: [Durability; 2] = [Durability::Posix, Durability::Always];

/// Returns all workloads of one operation.
pub fn singles() -> Vec<Workload> {
    let of = |first| {
        SINGLES.map(|(durability, last, waits_for_peer)| Workload {
            first,
            second: None,
            last,
            durability,
            waits_for_peer,
        })
    };
    OPERATIONS.into_iter().flat_map(of).collect()
}

/// Returns all workloads. The order is: workloads of one operation, workloads of one operation and
/// a checkpoint, workloads of two operations.
pub fn all() -> Vec<Workload> {
    let mut all = singles();
    all.extend(OPERATIONS.map(|first| Workload {
        first,
        second: None,
        last: Last::Checkpoint,
        durability: Durability::Posix,
        waits_for_peer: true,
    }));
    for (number, first) in OPERATIONS.into_iter().enumerate() {
        let pair = |order, second, durability, last| Workload {
            first,
            second: Some((order, second)),
            last,
            durability,
            waits_for_peer: true,
        };
        for second in OPERATIONS {
            all.extend(PAIRS.map(|(durability, last)| pair(Order::Then, second, durability, last)));
        }
        // For operations at once, the order of the pair makes no difference.
        for second in OPERATIONS.into_iter().skip(number) {
            all.extend(
                AT_ONCE.map(|durability| pair(Order::AtOnce, second, durability, Last::Nothing)),
            );
        }
    }
    all
}

/// Returns the baselines of all workloads. The tree is made twice: once in a datastore where a client
/// requests durability, and once where everything is durable.
pub(super) fn baselines() -> [Baseline; 2] {
    [Durability::Posix, Durability::Always].map(|durability| {
        let setup = Setup {
            settings: settings(durability, true),
            seed: 0,
            step_percent: 0,
            clients: 0,
            answers_before: 0,
            calls_counted: Duration::ZERO,
            frames_counted: Duration::ZERO,
        };
        match injection::make_baseline(&setup, Box::new(TreeMaker::default()), MAKING) {
            Ok(baseline) => baseline,
            Err(failure) => panic!("the tree cannot be made: {failure:?}"),
        }
    })
}

const fn settings(durability: Durability, waits_for_peer: bool) -> Settings {
    Settings {
        durability,
        on_power_loss: OnPowerLoss::Serve,
        pause_limit: Duration::from_secs(if waits_for_peer { 2 } else { 0 }),
        peer_timeout: Duration::from_secs(2),
        ..Settings::STEADY
    }
}

/// Returns the percentage of steps that let other threads go first. The random seed decides it too.
const fn step_percent(seed: u64) -> u64 {
    match seed % 3 {
        0 => 0,
        1 => 10,
        _ => 50,
    }
}

impl Workload {
    /// Returns whether both nodes may stop at once in the workload. If no operation waits for a
    /// stopped node, such a stop gives the same worlds as the workload with a pause.
    pub(super) const fn stops_both(&self) -> bool {
        self.waits_for_peer
    }

    /// Returns whether every answered operation is durable.
    pub(super) fn is_always(&self) -> bool {
        self.durability == Durability::Always
    }

    /// Returns the requests of the workload's clients on its baseline.
    pub(super) fn script(&self, baseline: &Baseline) -> Script {
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
        Script::new(Tree::made_in(baseline.history().calls()), vec![one, two])
    }

    /// Returns the setup of the workload, for a random seed.
    pub(super) fn setup(&self, seed: u64) -> Setup {
        Setup {
            settings: settings(self.durability, self.waits_for_peer),
            seed,
            step_percent: step_percent(seed),
            clients: 2,
            answers_before: self.before(),
            calls_counted: match self.last {
                Last::Checkpoint => WITH_CHECKPOINT,
                Last::Nothing | Last::Sync => WITHOUT,
            },
            frames_counted: FRAMES,
        }
    }

    /// Returns the number of operations that are answered before faults happen. Other workloads
    /// test faults in those operations.
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
        let patience = if self.waits_for_peer {
            ""
        } else {
            ", no pause"
        };
        write!(f, " (durability {:?}{patience})", self.durability)
    }
}
