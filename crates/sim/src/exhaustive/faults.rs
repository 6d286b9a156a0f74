//! Every fault that can happen at the points of a small world.

use crate::disk::{CallKind, Survivors, Verdict};
use crate::history::Stop;
use crate::scenario::injection::{FaultKind, InjectedFault, Point, PointInfo, StoppedNodes};
use crate::world::Side;

/// Size of a page of a file, in bytes. A write that is cut short has written whole pages.
const PAGE_BYTES: u64 = 4096;

/// Percentages of unsynced changes that survive, in the choices made at random.
const MIXED: [u8; 3] = [50, 10, 90];
/// With at most this many unsynced changes, the first percentage is enough.
const FEW: u64 = 4;
const NOTHING: (Survivors, u64) = (Survivors::Nothing, 0);
const EVERYTHING: (Survivors, u64) = (Survivors::Everything, 0);

/// Returns all faults at all points, in the order of the points. `both` says whether to include the
/// faults where both nodes stop.
pub fn at(points: &[PointInfo], both: bool) -> Vec<InjectedFault> {
    let mut before = None;
    let mut faults = Vec::new();
    for info in points {
        match (info.point, info.call) {
            (Point::Call(side, _), Some(call)) => {
                let stops = Stops {
                    info,
                    side,
                    call,
                    both,
                    is_new: before.is_none_or(|before| !is_same_moment(before, info)),
                };
                stops.add_all(&mut faults);
            }
            (Point::Frame(from, _), _) => faults.extend(disconnects(info, from)),
            (Point::Call(..), None) => {}
        }
        before = Some(info);
    }
    faults
}

/// Returns whether only the call of the first point happened between two points. If so, a stop
/// before the second call equals a stop after the first call, and the state of the other node is
/// unchanged.
fn is_same_moment(before: &PointInfo, info: &PointInfo) -> bool {
    let is_of_same_side = matches!(
        (before.point, info.point),
        (Point::Call(before, _), Point::Call(side, _)) if before == side
    );
    let others = |info: &PointInfo| (info.frames_in_flight, info.frames_sent, info.events);
    is_of_same_side && others(before) == others(info)
}

/// Returns the losses of the connection before a frame. Any number of the frames on their way to
/// the sender of this frame may still arrive.
fn disconnects(info: &PointInfo, from: Side) -> Vec<InjectedFault> {
    let towards = *from.other().of(&info.frames_in_flight);
    let disconnect = |frames_kept| InjectedFault {
        point: info.point,
        kind: FaultKind::Disconnect { frames_kept },
    };
    (0..=towards).map(disconnect).collect()
}

/// The stops of nodes at a call.
struct Stops<'a> {
    info: &'a PointInfo,
    /// The node that makes the call.
    side: Side,
    call: (CallKind, u64, u64),
    both: bool,
    /// Whether something has happened since the previous call.
    is_new: bool,
}

impl Stops<'_> {
    fn add_all(&self, faults: &mut Vec<InjectedFault>) {
        if self.is_new {
            self.add(faults, StoppedNodes::One(self.side), Verdict::CrashBefore);
            self.add(faults, StoppedNodes::Both, Verdict::CrashBefore);
            // The outcome of the call makes no difference to the other node.
            self.add(faults, StoppedNodes::One(self.side.other()), Verdict::Go);
        }
        for verdict in torn(self.call).into_iter().chain([Verdict::CrashAfter]) {
            self.add(faults, StoppedNodes::One(self.side), verdict);
            self.add(faults, StoppedNodes::Both, verdict);
        }
    }

    fn add(&self, faults: &mut Vec<InjectedFault>, nodes: StoppedNodes, verdict: Verdict) {
        // If both nodes stop, no node receives the frames on their way.
        let frames_in_flight = match nodes {
            StoppedNodes::One(side) => *side.of(&self.info.frames_in_flight),
            StoppedNodes::Both if self.both => 0,
            StoppedNodes::Both => return,
        };
        let mut add = |stop, survivors| {
            faults.extend((0..=frames_in_flight).map(|frames_kept| InjectedFault {
                point: self.info.point,
                kind: FaultKind::Stop {
                    nodes,
                    stop,
                    verdict,
                    survivors,
                    frames_kept,
                },
            }));
        };
        add(Stop::Process, [NOTHING; 2]);
        for survivors in self.survivors(nodes, verdict) {
            add(Stop::Power, survivors);
        }
    }

    /// Returns the possible states of both disks after losses of power, as far as there is a
    /// choice.
    fn survivors(&self, nodes: StoppedNodes, verdict: Verdict) -> Vec<[(Survivors, u64); 2]> {
        let leaves = self.leaves_unsynced(verdict);
        let choices = |side: Side| {
            if nodes.includes(side) {
                *side.of(&self.info.unsynced) + u64::from(leaves && side == self.side)
            } else {
                0
            }
        };
        let [primary, secondary] = Side::BOTH.map(choices);
        let mut survivors = Vec::new();
        if !leaves {
            // After a call that leaves unsynced changes, the survival of nothing equals a stop
            // before the call.
            survivors.push([NOTHING; 2]);
        }
        if primary + secondary > 0 {
            survivors.push([EVERYTHING; 2]);
        }
        if primary > 0 && secondary > 0 {
            survivors.extend([[NOTHING, EVERYTHING], [EVERYTHING, NOTHING]]);
        }
        let mixed = match primary.max(secondary) {
            0 | 1 => 0,
            2..=FEW => 1,
            _ => MIXED.len(),
        };
        let mixed = MIXED.into_iter().take(mixed);
        survivors.extend(mixed.map(|percent| self.mixed(percent)));
        survivors
    }

    /// Returns a mixed choice of survivors. The random seed differs for each side and at each
    /// point.
    fn mixed(&self, percent: u8) -> [(Survivors, u64); 2] {
        let (Point::Call(_, number) | Point::Frame(_, number)) = self.info.point;
        [1, 2].map(|side| (Survivors::Mixed { percent }, 2 * number + side))
    }

    /// Returns whether the call leaves changes that no sync covers.
    fn leaves_unsynced(&self, verdict: Verdict) -> bool {
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
