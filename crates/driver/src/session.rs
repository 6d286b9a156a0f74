//! A session: the datastore in one role, from the open or the last change of the role on. All state of a role is in its
//! session: a change of the role ends one session and begins another over the same engine.
//!
//! The parts of a role are the fields of its session. A secondary has no operations of clients, and a primary has no
//! table of writes that wait for the primary.

pub(crate) mod build;
pub(crate) mod connector;
mod copy_base;
mod memory_return;
pub(crate) mod primary;
mod responder;
mod silence;
pub(crate) mod standby;
mod sum_secret;
pub(crate) mod usage;
mod welcome;

use std::sync::Arc;

use lockstep_repl::core::Event;
use lockstep_repl::state::Trigger;

use crate::host::ThreadKind;
use crate::jobs::barriers::Barriers;
use crate::replication::Replication;
use primary::PrimarySession;
use standby::StandbySession;
use usage::SessionUsage;

/// The session of either role.
#[derive(Clone)]
pub(crate) enum Session {
    /// This node serves clients.
    Primary(Arc<PrimarySession>),
    /// This node is the primary by its record, and serves no client yet: the other node may have served since.
    Undecided(Arc<StandbySession>),
    /// This node keeps the second copy.
    Secondary(Arc<StandbySession>),
}

impl Session {
    /// Core, generation and connection.
    pub fn replication(&self) -> &Arc<Replication> {
        match self {
            Self::Primary(session) => &session.replication,
            Self::Undecided(session) | Self::Secondary(session) => &session.replication,
        }
    }

    /// The barriers.
    pub fn barriers(&self) -> &Arc<Barriers> {
        match self {
            Self::Primary(session) => &session.jobs.barriers,
            Self::Undecided(session) | Self::Secondary(session) => &session.barriers,
        }
    }

    /// The numbers of this moment.
    pub fn usage(&self) -> SessionUsage {
        match self {
            Self::Primary(session) => session.usage(),
            Self::Undecided(session) | Self::Secondary(session) => session.usage(),
        }
    }

    /// Reports a failed disk to the core, once (rule P16). The disk itself refuses every change from the moment of the
    /// failure on, so nothing depends on the time of this report.
    pub fn notice_failed_disk(&self) {
        let replication = self.replication();
        if !replication.engine.poison.has_failed() || replication.state().is_poisoned() {
            return;
        }
        let poisoned = Event::Trigger(Trigger::StorePoisoned);
        replication.handle_event(ThreadKind::MayWait, poisoned);
        if let Self::Primary(session) = self {
            // It waited for a mark that is not made any more.
            session.pipeline.release_stuck();
        }
    }

    /// Work of each tick.
    pub fn tick(&self) {
        let replication = self.replication();
        replication.peer.flush_deferred();
        replication.handle_event(ThreadKind::MayWait, Event::Tick);
        if let Self::Primary(session) = self {
            session.spill.room.look_again();
            session.give_memory_back();
            session.reap_gathered();
            session.jobs.look_at_scrub();
            session
                .jobs
                .look_at_daily_check(session.replication.state());
            session.jobs.barriers.tick();
        }
    }

    /// Work of each beat.
    pub fn beat(&self) {
        if let Self::Primary(session) = self {
            session.ping();
        }
    }

    /// Work of each tick on a sound disk.
    pub fn look_at_room(&self) {
        if let Self::Primary(session) = self {
            session.space.look_at_room();
        }
    }

    /// Frees the inodes that lost their last name before this node serves, unless a program of this node has them open.
    /// On a node that does not serve yet, nothing happens.
    pub fn reap_orphans(&self) {
        if let Self::Primary(session) = self {
            let reaper = Arc::clone(session);
            session
                .replication
                .spawn(move || reaper.pipeline.reap_orphans());
        }
    }

    /// Whether this node waits for a primary to connect.
    pub fn waits_for_primary(&self) -> bool {
        match self {
            Self::Primary(_) => false,
            Self::Undecided(session) | Self::Secondary(session) => session.waits_for_primary(),
        }
    }

    /// Ends the session for another one.
    pub fn retire(&self, reason: &str) {
        match self {
            Self::Primary(session) => session.retire(reason),
            Self::Undecided(session) | Self::Secondary(session) => session.retire(reason),
        }
    }

    /// Ends all work: nothing new begins, the connection is closed, queued jobs are done.
    pub fn stop(&self) {
        let replication = self.replication();
        if let Self::Undecided(session) | Self::Secondary(session) = self {
            session.say_that_it_stops();
        }
        replication.peer.close("this node is stopping");
        match self {
            Self::Primary(session) => session.stop(),
            Self::Undecided(_) | Self::Secondary(_) => replication.engine.host.stop(),
        }
    }
}
