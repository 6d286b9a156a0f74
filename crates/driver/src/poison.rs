//! What a datastore does when the disk of its store has failed (rule P16).
//!
//! The disk itself refuses everything that would change or save something from the moment of the
//! failure on ([`lockstep_fs::poison`]), so nothing depends on how soon the core hears of it here.

use std::sync::Arc;

use lockstep_repl::core::Event;
use lockstep_repl::state::Trigger;
use lockstep_types::settings::Choice;

use super::{Datastore, Thread};

impl Datastore {
    /// Lets the core know once the disk has failed.
    pub(super) fn notice_poison(self: &Arc<Self>) {
        if self.poison.has_failed() && !self.state().is_poisoned() {
            self.drive(Thread::MayWait, Event::Trigger(Trigger::StorePoisoned));
            // It waited for a mark that is not made any more.
            self.apply_stuck();
        }
    }

    /// Why nothing is promised here any more, if so: for operators of either node.
    pub(super) fn poisoned_because(&self) -> Option<String> {
        let failure = self.poison.failure()?;
        Some(format!(
            "the {}'s disk failed {failure}; it promises nothing until it is repaired or replaced \
             and `lockstep clear-poison {}` was run there",
            self.config.role.word(),
            self.name()
        ))
    }

    /// The primary says that its disk has failed. This copy stays what it is.
    pub fn told_of_poison(&self, reason: &str) {
        self.set_peer_disk_failed(reason);
    }

    /// Why this node ends the connection when its state says so.
    pub(super) fn why_dropped(&self) -> &'static str {
        if self.poison.has_failed() {
            "the disk of this node has failed"
        } else {
            "the peer is out of sync"
        }
    }
}
