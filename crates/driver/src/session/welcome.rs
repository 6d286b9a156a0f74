//! The answer of a secondary to the greeting of a primary.
//!
//! Invariant: a primary whose store does not belong to this copy is refused before anything changes (rule P17).

use std::io;

use lockstep_fs::StoreError;
use lockstep_link::SendFrames;
use lockstep_repl::core::{ConnectionId, Event};
use lockstep_repl::message::{Envelope, Hello, Message, PROTOCOL_VERSION, Welcome};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Lineage, Osn, SyncNames};
use thiserror::Error;

use super::standby::StandbySession;
use super::sum_secret;
use crate::durable::machine_count;
use crate::host::ThreadKind;
use crate::replication::greeting::{self, GreetingError};

/// Why a primary is refused.
#[derive(Debug, Error)]
pub(super) enum NotWelcome {
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    #[error(
        "{found}: {cure}, or, if the datastore is to begin anew with what the primary has, stop the \
         secondary's node and move the secondary's store ({store}) away"
    )]
    OtherStore {
        found: &'static str,
        cure: &'static str,
        store: String,
    },
    #[error(transparent)]
    RoleFile(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl StandbySession {
    /// Answers the greeting, or returns why the primary is refused.
    pub(super) fn welcome(
        &self,
        sender: &dyn SendFrames,
        connection: ConnectionId,
        hello: &Hello,
        envelope: &Envelope,
    ) -> Result<(), NotWelcome> {
        greeting::check(&self.replication, envelope, hello.version)?;
        self.check_store(hello)?;
        let generation = self.replication.generation();
        self.engine.role_file.follow(generation, hello.store)?;
        // A node that follows for the first time has had no name of a store when it was opened.
        if let Some(beside) = self.engine.disk.count.beside() {
            machine_count::note_store(beside, Some(hello.store));
        }
        // The primary may answer as durable what this node reports as committed (rules P8, P11).
        if hello.durable {
            self.engine.store.sync_all_applied()?;
        } else {
            self.engine.role_file.note_unsynced()?;
            self.engine.store.sync_all_logged()?;
        }
        sum_secret::take(&self.engine, hello.sum_secret.as_ref());
        let in_sync = self.is_in_sync_with(hello);
        if in_sync && hello.in_sync {
            self.engine.store.delta().follow(generation);
            if let Some(sync) = hello.sync.names.proposed {
                self.engine.role_file.take_name(generation, sync)?;
                self.engine.disk.count.begin(sync);
            }
        }
        if !self.is_of_sync(hello) {
            self.forget_base()?;
        }
        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            in_sync,
            base: self.base.generation(),
            sync: self.engine.standing().names.newest(),
            applied: self.engine.store.applied(),
            waiting: self.base.waiting(),
            room: self.room(),
            marks: self.engine.store.delta().account(),
        };
        self.answer(sender, Message::Welcome(welcome));
        let up = Event::LinkUp {
            connection,
            in_sync: in_sync && hello.in_sync,
            peer_applied: Osn::ZERO,
        };
        self.replication.handle_event(ThreadKind::MayWait, up);
        Ok(())
    }

    /// The copy is not the one that took part in the last resync of the primary, or is an older one. No later count of the primary
    /// may hide that (rule P17).
    fn forget_base(&self) -> io::Result<()> {
        self.base.forget();
        let role_file = &self.engine.role_file;
        if role_file.state().left_base().is_none() {
            return Ok(());
        }
        role_file.note_base(self.replication.generation(), None)
    }

    /// Refuses a primary whose store is not to be carried over this copy: the disk of either node may not be mounted
    /// (rule P17). Only an operator knows.
    fn check_store(&self, hello: &Hello) -> Result<(), NotWelcome> {
        // This copy has nothing to lose.
        if self.engine.store.applied() == Osn::ZERO {
            return Ok(());
        }
        let own = self.engine.role_file.state();
        let mine = self.engine.standing();
        let seed = SyncNames::settled(own.lineage.seed.and_then(|seed| seed.sync));
        let is_older = mine.names.are_unknown_to(&hello.sync.names)
            || seed.are_unknown_to(&hello.sync.names)
            || mine.names.last.is_some() && mine.lineage(&hello.sync) == Lineage::Older;
        // Clients may have written into the primary's new store since. This copy came from a primary that had noted
        // first that it carries its namespace over.
        let (found, cure) = if !hello.was_resynced {
            (
                "the primary's store is new, but the secondary's holds a datastore",
                "mount the disk that the primary's store was on",
            )
        } else if own.lineage.store != Some(hello.store) {
            (
                "the secondary's store is a copy of another store than the primary has now",
                "mount the disks that belong together",
            )
        } else if is_older {
            (
                "the primary's store is an older copy of the one that the secondary's was made from",
                "put the newer one back",
            )
        } else {
            return Ok(());
        };
        let store = self.engine.config.current().store.display().to_string();
        Err(NotWelcome::OtherStore { found, cure, store })
    }

    /// Whether the mark of this copy says "in sync", and belongs to the same sync as the primary's mark (rule P17):
    /// another copy may have been in sync since.
    fn is_in_sync_with(&self, hello: &Hello) -> bool {
        let is_same = self.is_of_sync(hello) || is_active(Mutant::TrustOldCopy);
        self.engine.role_file.state().has_kept_sync() && is_same
    }

    /// Whether the marks of both copies belong to the same sync, and this copy has all that the primary knows to be there.
    fn is_of_sync(&self, hello: &Hello) -> bool {
        let own = self.engine.standing();
        own.names.last.is_some() && own.lineage(&hello.sync) == Lineage::Same
    }
}
