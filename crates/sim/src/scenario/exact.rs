//! A schedule in which one thing goes wrong, or one after another, at places that are said exactly.
//!
//! It begins on a *ground*: what one client has made, on stable storage on both nodes, in sync. The nodes
//! start there; when they are in sync and at rest, clients come, and from then on (or some answers later)
//! each call of a disk and each frame is counted: these are the places. Where they lie depends on ground,
//! stage and source alone, so a first run without fault tells them all. After a fault they are counted
//! anew until the nodes are in sync and at rest again, and a run with that fault alone tells those.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lockstep_types::mutants::Mutant;

use super::pair::{Pair, Users, Watch};
use super::plan::Settings;
use super::{Failure, IN_SYNC_WITHIN, WORK_ON, guarded};
use crate::disk::{CallKind, Disk, Survivors, Verdict};
use crate::history::{History, Stop};
use crate::random::Random;
use crate::workload::Source;
use crate::world::Side;

/// All of such a schedule but its operations and its fault.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// The datastore's.
    pub settings: Settings,
    /// Of everything that is drawn while it runs.
    pub luck: u64,
    /// How often in a hundred a step of a thread lets others go first.
    pub step_percent: u64,
    /// Clients that come.
    pub clients: u32,
    /// Answers that they have before anything counts.
    pub before: u64,
    /// For how long they are watched, in the world's time.
    pub watched: Duration,
    /// For how long frames count, in the world's time: later ones are signs of life.
    pub frames_watched: Duration,
}

/// What schedules begin with: both nodes in sync, stopped, and all they have on stable storage.
#[derive(Clone)]
pub struct Ground {
    pub(super) disks: [Disk; 2],
    pub(super) history: History,
}

impl Ground {
    /// What clients asked and were told when it was made.
    pub const fn history(&self) -> &History {
        &self.history
    }
}

/// Makes a ground: what one client asks of two new nodes, so many operations.
pub fn ground(
    stage: &Stage,
    source: Box<dyn Source>,
    operations: u64,
) -> Result<Ground, Box<Failure>> {
    let mut pair = Pair::new(
        &stage.settings,
        users(1, source),
        stage.step_percent,
        Random::new(stage.luck),
    );
    let made = guarded(None, || pair.make_ground(operations));
    made.map_err(|what| Box::new(failure(&pair, what, &[])))
}

fn users(clients: u32, source: Box<dyn Source>) -> Users {
    Users {
        clients,
        pause_max: Duration::ZERO,
        source,
    }
}

/// A place in a schedule. Numbers count from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A call of the disk of a side.
    Call(Side, u64),
    /// Before a frame that a side sends.
    Frame(Side, u64),
}

/// Who stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// One node.
    One(Side),
    /// Both nodes at the same moment.
    Both,
}

impl Who {
    /// Whether a side is among them.
    pub fn includes(self, side: Side) -> bool {
        self == Self::Both || self == Self::One(side)
    }
}

/// What goes wrong at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Nodes stop, and start again. Of the frames that one of them has on the way, so many arrive.
    Stop {
        /// Which.
        who: Who,
        /// How.
        stop: Stop,
        /// What becomes of the call, if the node that makes it stops.
        verdict: Verdict,
        /// What losses of power leave on the disks of both sides, and a seed for what that leaves open.
        left: [(Survivors, u64); 2],
        /// Frames that arrive, at most.
        kept: u64,
    },
    /// The connection is lost. Of the frames of the other direction, so many arrive.
    Lose {
        /// Frames that arrive, at most.
        kept: u64,
    },
}

/// One thing that goes wrong at a place, counted from the beginning or from the fault before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exact {
    /// Where.
    pub place: Place,
    /// What.
    pub harm: Harm,
}

/// What was met at a place.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The place.
    pub place: Place,
    /// The call, for the place of one: what it does, where, and how many bytes.
    pub call: Option<(CallKind, u64, u64)>,
    /// Things on the disk of each side that no sync covers.
    pub unsynced: [u64; 2],
    /// Frames of each side that are on their way.
    pub on_the_way: [u64; 2],
    /// Frames that each side has sent so far.
    pub frames: [u64; 2],
    /// What clients have asked and were answered so far, together.
    pub events: u64,
}

/// What a schedule with a fault came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// It ran to its end, and nothing was wrong.
    Well,
    /// Its fault left what another has left that ran before; it was not run to its end.
    Alike,
}

/// Runs a stage with some faults, judges it, and tells the places at which another may follow.
pub fn places(
    ground: &Ground,
    stage: &Stage,
    source: Box<dyn Source>,
    faults: &[Exact],
    bug: Option<Mutant>,
) -> Result<Vec<Seen>, Box<Failure>> {
    run(ground, stage, source, faults, bug, |pair| {
        for (before, exact) in faults.iter().enumerate() {
            come_to(pair, stage, before, Some(*exact))?;
        }
        let watch = come_to(pair, stage, faults.len(), None)?;
        to_the_end(pair)?;
        Ok(watch.places())
    })
}

/// Runs a stage with faults, at least one. `left` are the digests of what the last fault has left in other
/// runs of the same ground, stage, source and faults before it, and gets that of this one.
pub fn run_exactly(
    ground: &Ground,
    stage: &Stage,
    source: Box<dyn Source>,
    faults: &[Exact],
    left: &mut BTreeSet<u64>,
    bug: Option<Mutant>,
) -> Result<Came, Box<Failure>> {
    run(ground, stage, source, faults, bug, |pair| {
        for (before, exact) in faults.iter().enumerate() {
            let watch = come_to(pair, stage, before, Some(*exact))?;
            let is_last = before + 1 == faults.len();
            if is_last && !left.insert(pair.digest_of_what_is_left(&watch, exact)) {
                return pair.verdict().map(|()| Came::Alike);
            }
        }
        to_the_end(pair)?;
        Ok(Came::Well)
    })
}

fn run<T>(
    ground: &Ground,
    stage: &Stage,
    source: Box<dyn Source>,
    faults: &[Exact],
    bug: Option<Mutant>,
    body: impl FnOnce(&mut Pair) -> Result<T, String>,
) -> Result<T, Box<Failure>> {
    let mut pair = Pair::on(ground, stage, users(0, source));
    let came = guarded(bug, || {
        pair.set_stage(stage)?;
        body(&mut pair)
    });
    // Of no use here, but not to be counted for the next.
    let _ = pair.coverage().met();
    came.map_err(|what| Box::new(failure(&pair, what, faults)))
}

/// Lets everything run until the next fault has come and who stopped is started; without one, as long as
/// places count.
fn come_to(
    pair: &mut Pair,
    stage: &Stage,
    faults_before: usize,
    exact: Option<Exact>,
) -> Result<Arc<Watch>, String> {
    let is_first = faults_before == 0;
    let frames_watched = if is_first {
        stage.frames_watched
    } else {
        IN_SYNC_WITHIN
    };
    let watch = pair.watch(exact, stage.before, frames_watched);
    let ran = if is_first {
        pair.run_watched(&watch, stage.watched)
    } else {
        pair.run_watched_until_in_sync(&watch)
    };
    pair.unwatch();
    ran?;
    if exact.is_some() && !watch.has_come() {
        return Err("the same luck did not lead to the same place".to_owned());
    }
    Ok(watch)
}

fn to_the_end(pair: &mut Pair) -> Result<(), String> {
    pair.run_for(WORK_ON)?;
    pair.until_in_sync(IN_SYNC_WITHIN)?;
    pair.send_clients_away();
    pair.until_in_sync(IN_SYNC_WITHIN)?;
    pair.rest()?;
    pair.judge()
}

fn failure(pair: &Pair, what: String, faults: &[Exact]) -> Failure {
    Failure {
        what,
        faults: faults.iter().map(|exact| format!("{exact:?}")).collect(),
        history: pair.history(),
    }
}
