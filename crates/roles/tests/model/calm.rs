//! The time after the failures: both nodes get in sync, without an operator, unless a conflict needs one.

use crate::limits::Limits;
use crate::world::{Action, Disk, World};

/// More steps than a calm end takes.
const STEPS_MAX: usize = 300;

impl World {
    /// Whether both nodes are in sync after a while without failures. Messages are faster than timers.
    pub fn comes_to_rest(&self) -> bool {
        let mut world = self.clone();
        let mut turn = 0;
        for _ in 0..STEPS_MAX {
            if world.is_in_sync() {
                return true;
            }
            let Some(action) = world.calm_action(&mut turn) else {
                break;
            };
            world.step(action);
        }
        world.waits_for_operator()
    }

    /// The next step without failures. The timers take turns.
    pub fn calm_action(&self, turn: &mut usize) -> Option<Action> {
        let mut actions = Vec::new();
        self.actions(&mut actions);
        let mut fast = actions.iter().filter(|action| is_message(**action));
        if let Some(action) = fast.next() {
            return Some(*action);
        }
        let timers: Vec<_> = actions
            .into_iter()
            .filter(|action| is_timer(*action))
            .collect();
        *turn += 1;
        timers.get(*turn % timers.len().max(1)).copied()
    }
}

/// Prints the states of a path, and the time after the path.
pub fn print_path(limits: Limits, path: &[Action]) {
    let mut world = World::new(limits).canonical();
    for action in path {
        world.step(*action);
        world.print(*action);
        world = world.canonical();
    }
    let mut turn = 0;
    println!("The time after that:");
    for _ in 0..STEPS_MAX {
        let Some(action) = world.calm_action(&mut turn) else {
            return;
        };
        world.step(action);
        world.print(action);
    }
}

impl World {
    fn print(&self, action: Action) {
        println!("{action:?}");
        for (at, node) in self.nodes.iter().enumerate() {
            let record = node.durable;
            let marks = [
                (record.is_candidate, "candidate"),
                (record.complete, "complete"),
                (record.peer_complete, "peer complete"),
                (node.machine.is_none(), "down"),
                (node.lease, "lease"),
                (node.unrecorded.is_some(), "unrecorded"),
                (node.is_forced, "forced"),
                (node.disk != Disk::Answers, "hangs"),
            ];
            let marks: Vec<_> = marks
                .iter()
                .filter(|mark| mark.0)
                .map(|mark| mark.1)
                .collect();
            let (memory, synced) = (node.memory, node.synced);
            println!(
                "    {at}: {:?} {} {:?} {memory:b} {synced:b} {marks:?}",
                record.role, record.generation, node.session
            );
        }
        let known = self
            .witness
            .map(|known| (known.generation, known.primary, known.in_sync));
        println!("    {known:?}");
    }
}

const fn is_message(action: Action) -> bool {
    use Action::{
        Answer, Copy, Enter, Equal, Hear, Late, LeaveSync, Mirror, NoteEqual, Start, TellEqual,
        Witness,
    };
    matches!(
        action,
        Answer(_)
            | Copy(_)
            | Enter(_)
            | Equal(_)
            | Hear
            | Late(..)
            | LeaveSync(_)
            | Mirror(_)
            | NoteEqual(_)
            | Start(_)
            | TellEqual(_)
            | Witness(_)
    )
}

const fn is_timer(action: Action) -> bool {
    use Action::{Ask, Connect, DiskAnswers, LeaseEnds, PauseOver, Sync};
    matches!(
        action,
        Ask(_) | Connect(_) | DiskAnswers(_) | LeaseEnds(_) | PauseOver(_) | Sync(_)
    )
}
