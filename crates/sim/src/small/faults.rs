//! Every fault that can happen at the places of a small world.

use crate::disk::{CallKind, Survivors, Verdict};
use crate::history::Stop;
use crate::scenario::exact::{Exact, Harm, Place, Seen, Who};
use crate::world::Side;

/// Size of a page of a file, in bytes. A write that is cut short has written whole pages.
const PAGE_BYTES: u64 = 4096;

/// Percentages of unsynced changes that survive, in the choices made at random.
const MIXED: [u8; 3] = [50, 10, 90];
/// With at most this many unsynced changes, the first percentage is enough.
const FEW: u64 = 4;
const NOTHING: (Survivors, u64) = (Survivors::Nothing, 0);
const EVERYTHING: (Survivors, u64) = (Survivors::Everything, 0);

/// Returns all faults at all places, in the order of the places. `both` says whether to include the
/// faults where both nodes stop.
pub fn at(places: &[Seen], both: bool) -> Vec<Exact> {
    let mut before = None;
    let mut faults = Vec::new();
    for seen in places {
        match (seen.place, seen.call) {
            (Place::Call(side, _), Some(call)) => {
                let stops = Stops {
                    seen,
                    side,
                    call,
                    both,
                    is_new: before.is_none_or(|before| !is_same_moment(before, seen)),
                };
                stops.add_all(&mut faults);
            }
            (Place::Frame(from, _), _) => faults.extend(losses(seen, from)),
            (Place::Call(..), None) => {}
        }
        before = Some(seen);
    }
    faults
}

/// Returns whether only the call of the first place happened between two places. If so, a stop
/// before the second call equals a stop after the first call, and the state of the other node is
/// unchanged.
fn is_same_moment(before: &Seen, seen: &Seen) -> bool {
    let is_of_same_side = matches!(
        (before.place, seen.place),
        (Place::Call(before, _), Place::Call(side, _)) if before == side
    );
    let others = |seen: &Seen| (seen.on_the_way, seen.frames, seen.events);
    is_of_same_side && others(before) == others(seen)
}

/// Returns the losses of the connection before a frame. Any number of the frames on their way to
/// the sender of this frame may still arrive.
fn losses(seen: &Seen, from: Side) -> Vec<Exact> {
    let towards = *from.other().of(&seen.on_the_way);
    let lose = |kept| Exact {
        place: seen.place,
        harm: Harm::Lose { kept },
    };
    (0..=towards).map(lose).collect()
}

/// The stops of nodes at a call.
struct Stops<'a> {
    seen: &'a Seen,
    /// The node that makes the call.
    side: Side,
    call: (CallKind, u64, u64),
    both: bool,
    /// Whether something has happened since the previous call.
    is_new: bool,
}

impl Stops<'_> {
    fn add_all(&self, faults: &mut Vec<Exact>) {
        if self.is_new {
            self.add(faults, Who::One(self.side), Verdict::CrashBefore);
            self.add(faults, Who::Both, Verdict::CrashBefore);
            // The outcome of the call makes no difference to the other node.
            self.add(faults, Who::One(self.side.other()), Verdict::Go);
        }
        for verdict in torn(self.call).into_iter().chain([Verdict::CrashAfter]) {
            self.add(faults, Who::One(self.side), verdict);
            self.add(faults, Who::Both, verdict);
        }
    }

    fn add(&self, faults: &mut Vec<Exact>, who: Who, verdict: Verdict) {
        // If both nodes stop, no node receives the frames on their way.
        let on_the_way = match who {
            Who::One(side) => *side.of(&self.seen.on_the_way),
            Who::Both if self.both => 0,
            Who::Both => return,
        };
        let mut add = |stop, left| {
            faults.extend((0..=on_the_way).map(|kept| Exact {
                place: self.seen.place,
                harm: Harm::Stop {
                    who,
                    stop,
                    verdict,
                    left,
                    kept,
                },
            }));
        };
        add(Stop::Process, [NOTHING; 2]);
        for left in self.left(who, verdict) {
            add(Stop::Power, left);
        }
    }

    /// Returns the possible states of both disks after losses of power, as far as there is a
    /// choice.
    fn left(&self, who: Who, verdict: Verdict) -> Vec<[(Survivors, u64); 2]> {
        let leaves = self.leaves(verdict);
        let choices = |side: Side| {
            if who.includes(side) {
                *side.of(&self.seen.unsynced) + u64::from(leaves && side == self.side)
            } else {
                0
            }
        };
        let [primary, secondary] = Side::BOTH.map(choices);
        let mut left = Vec::new();
        if !leaves {
            // After a call that leaves unsynced changes, the survival of nothing equals a stop
            // before the call.
            left.push([NOTHING; 2]);
        }
        if primary + secondary > 0 {
            left.push([EVERYTHING; 2]);
        }
        if primary > 0 && secondary > 0 {
            left.extend([[NOTHING, EVERYTHING], [EVERYTHING, NOTHING]]);
        }
        let mixed = match primary.max(secondary) {
            0 | 1 => 0,
            2..=FEW => 1,
            _ => MIXED.len(),
        };
        let mixed = MIXED.into_iter().take(mixed);
        left.extend(mixed.map(|percent| self.mixed(percent)));
        left
    }

    /// Returns a mixed choice of survivors. The random seed differs for each side and at each
    /// place.
    fn mixed(&self, percent: u8) -> [(Survivors, u64); 2] {
        let (Place::Call(_, number) | Place::Frame(_, number)) = self.seen.place;
        [1, 2].map(|side| (Survivors::Mixed { percent }, 2 * number + side))
    }

    /// Returns whether the call leaves changes that no sync covers.
    fn leaves(&self, verdict: Verdict) -> bool {
        let (kind, ..) = self.call;
        let is_sync = matches!(
            kind,
            CallKind::Sync | CallKind::SyncDirectory | CallKind::SyncAll
        );
        !is_sync && !matches!(verdict, Verdict::CrashBefore | Verdict::Go)
    }
}

/// Returns the points at which a call can be cut short. A write is cut at the ends of its first
/// page and of its middle page. A table is cut in the middle.
fn torn((kind, offset, length): (CallKind, u64, u64)) -> Vec<Verdict> {
    let cuts = match kind {
        CallKind::Write => {
            let first = PAGE_BYTES - offset % PAGE_BYTES;
            vec![
                first,
                first + (length.saturating_sub(first) / 2).next_multiple_of(PAGE_BYTES),
            ]
        }
        CallKind::TableStore => vec![length / 2],
        _ => Vec::new(),
    };
    let mut cuts: Vec<_> = cuts
        .into_iter()
        .filter(|cut| (1..length).contains(cut))
        .collect();
    cuts.dedup();
    cuts.into_iter().map(Verdict::CrashTorn).collect()
}
