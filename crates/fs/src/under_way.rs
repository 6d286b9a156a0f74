//! The changes of a store that are under way: from before their marks until every reader of the store sees them whole.
//!
//! A question of a change reader ([`crate::delta`]) turns ([`ChangesUnderWay::turn`]), and waits until each
//! change that had begun before is over. So each later reading of the
//! store sees the changes that are in the answer.
//!
//! A write is under way from its ticket until its size shows. A metadata operation, a chunk of an image and a repair are under
//! way while they are carried out.
//!
//! There are two counts, one for each side. A turn changes the side of the changes that begin. Invariant: before a turn, the
//! side that comes next has no change under way. No lock is taken, and nothing waits here: the caller asks again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::mutants::{Mutant, is_active};

/// See the head of this file.
#[derive(Default)]
pub struct ChangesUnderWay {
    turns: AtomicU64,
    sides: [AtomicU64; 2],
}

/// A change that is under way until the value is dropped.
pub struct ChangeUnderWay {
    all: Arc<ChangesUnderWay>,
    turn: u64,
}

/// A turn, whose earlier changes may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderTurn(u64);

impl ChangesUnderWay {
    fn side(&self, turn: u64) -> &AtomicU64 {
        let [even, odd] = &self.sides;
        if turn.is_multiple_of(2) { even } else { odd }
    }

    /// A change begins.
    pub fn begin(self: &Arc<Self>) -> ChangeUnderWay {
        loop {
            let turn = self.turns.load(Ordering::SeqCst);
            self.side(turn).fetch_add(1, Ordering::SeqCst);
            if self.turns.load(Ordering::SeqCst) == turn {
                let all = Arc::clone(self);
                return ChangeUnderWay { all, turn };
            }
            self.side(turn).fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether each change from before the last turn is over: then another turn is possible.
    pub fn can_turn(&self) -> bool {
        let turns = self.turns.load(Ordering::SeqCst);
        self.side(turns + 1).load(Ordering::SeqCst) == 0
    }

    /// Changes that begin from now on belong to the next turn. The caller keeps other turns away, and has seen
    /// [`Self::can_turn`].
    pub fn turn(&self) -> ReaderTurn {
        ReaderTurn(self.turns.fetch_add(1, Ordering::SeqCst))
    }

    /// Whether each change that had begun before the turn is over.
    pub fn is_over(&self, turn: ReaderTurn) -> bool {
        // A turn after the next one was possible only because they were over.
        is_active(Mutant::ReaderTurnUndrained)
            || self.turns.load(Ordering::SeqCst) > turn.0 + 1
            || self.side(turn.0).load(Ordering::SeqCst) == 0
    }
}

impl Drop for ChangeUnderWay {
    fn drop(&mut self) {
        self.all.side(self.turn).fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_waits_for_the_changes_before_it_and_for_no_other() {
        let all = Arc::new(ChangesUnderWay::default());
        let before = all.begin();
        assert!(all.can_turn());
        let turn = all.turn();
        let after = all.begin();
        assert!(!all.is_over(turn));
        assert!(!all.can_turn());
        drop(before);
        assert!(all.is_over(turn) && all.can_turn());
        let next = all.turn();
        assert!(all.is_over(turn) && !all.is_over(next));
        drop(after);
        assert!(all.is_over(next));
    }
}
