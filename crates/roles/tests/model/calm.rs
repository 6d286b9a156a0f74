//! The time after the failures: both nodes get in sync, without an operator.

use crate::world::{Action, World};

/// More steps than a calm end takes.
const STEPS_MAX: usize = 200;

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
                return false;
            };
            world.step(action);
        }
        false
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

const fn is_message(action: Action) -> bool {
    use Action::{Answer, Connect, Copy, Equal, Hear, Late, Mirror, Start, TellEqual, Witness};
    matches!(
        action,
        Answer(_)
            | Connect
            | Copy(_)
            | Equal(_)
            | Hear(_)
            | Late(..)
            | Mirror(_)
            | Start(_)
            | TellEqual(_)
            | Witness(_)
    )
}

const fn is_timer(action: Action) -> bool {
    use Action::{LeaseEnds, LeaseOver, PauseOver, Sync, Tick};
    matches!(
        action,
        LeaseEnds(_) | LeaseOver(_) | PauseOver(_) | Sync(_) | Tick(_)
    )
}
