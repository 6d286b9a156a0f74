//! Nodes that are stopped in order, at any moment: by an operator, or as their machines go down.

use super::Pair;
use crate::check::closed;
use crate::history::Stop;
use crate::scenario::faults::Order;
use crate::world::Side;

impl Pair {
    /// Asks a node to stop in order. What follows comes when it has, and if nothing stops it before.
    pub(super) fn ask_to_stop(&mut self, order: Order) {
        let half = order.side.of_mut(&mut self.halves);
        if !half.lives() {
            return;
        }
        if let Some(cut) = order.cut {
            half.stop_at_call(cut.stop, cut.at, &self.coverage);
        }
        half.then = Some(order.then);
        half.node.stop_in_order();
    }

    /// A node has stopped in order.
    pub(super) fn has_stopped_in_order(&mut self, side: Side) {
        let then = self.half(side).then.take().unwrap_or_default();
        let is_closed = self.half(side).is_closed();
        if !is_closed && !self.excuses.disk_failed {
            self.note(Err(format!(
                "{side:?} was stopped in order, and its role file does not say so"
            )));
        }
        self.stop(side, Stop::Process);
        if then.loses_power {
            self.lose_power_at_rest(side, is_closed);
        }
        let half = self.half(side);
        half.is_away = then.is_away;
        half.cut_at_start = then.cut;
        if !then.is_away {
            self.start(side);
        }
    }

    /// A machine on which no process has the store open loses power.
    fn lose_power_at_rest(&mut self, side: Side, is_closed: bool) {
        if !is_closed {
            self.stop(side, Stop::Power);
            return;
        }
        let mut chance = self.chance.fork();
        let half = self.half(side);
        let before = half.store_at_rest();
        half.power_off(Stop::Power, &mut chance);
        if before.is_err() && half.is_out_of_sync() {
            // A resync was broken off: its records are there already, their content is not (P10).
            return;
        }
        let judged = before.and_then(|before| {
            let after = half.store_at_rest()?;
            closed::check(side, &before, &after).map_err(|violation| violation.to_string())
        });
        self.note(judged);
    }
}
