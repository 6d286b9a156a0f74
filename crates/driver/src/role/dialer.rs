//! Dials the other node: a primary keeps up its connection, every other node meets the other one from time to time.
//!
//! Only a primary serves over a connection that it has dialled. So two nodes that are not primary would wait for each
//! other silently, and a node that does not know its role yet would never know it.
//!
//! Invariant: only the word of an authenticated peer, or a finding of this node at the configured address, becomes the
//! reason of the state.

use std::sync::Arc;
use std::time::Duration;

use super::keeper::RoleKeeper;
use crate::engine::status_notes::StatusNotes;
use crate::peer::dial::{Dial, DialError};
use crate::replication::role_exchange::{self, ExchangeError};
use crate::session::Session;
use crate::session::connector::Connector;
use crate::session::standby::StandbySession;

/// Time before a secondary that starts meets the other node. A primary that can connect does so sooner.
const FIRST: Duration = Duration::from_secs(2);
/// Time between two exchanges of a secondary without a primary.
const AGAIN: Duration = Duration::from_secs(10);
/// Time before a node whose role has just changed meets the other node. If the change came of an exchange, the other node is about
/// to greet: a record that says "not complete" after its greeting would let the resync that begins count for nothing.
const GREETING: Duration = Duration::from_millis(5);
/// Time between two exchanges of a primary that may not serve yet, and of a node whose role has just changed: it may be that
/// no node serves until they meet.
const SOON: Duration = Duration::from_millis(200);

impl RoleKeeper {
    /// Dials the peer until the datastore is stopped. A primary keeps up the connection. Any other node meets the other
    /// node from time to time.
    pub fn run_dialer(&self, dialer: &dyn Dial) {
        let mut pauses = [FIRST, AGAIN];
        while !self.engine.is_stopping() {
            match self.role.session() {
                Session::Primary(session) => Connector::new(&session, dialer, self).run(),
                Session::Undecided(session) => {
                    let soon = pauses.map(|pause| pause.min(SOON));
                    self.wait_for_primary(&session, dialer, soon, true);
                }
                Session::Secondary(session) => {
                    self.wait_for_primary(&session, dialer, pauses, false);
                }
            }
            // The role changes: the other node is to learn of that at once. The next session may not have begun yet.
            self.engine
                .wait_until(None, || !self.role.session().replication().is_over());
            pauses = [GREETING, SOON];
        }
    }

    /// Meets the other node from time to time while no primary is connected, until the session is over. `pauses`: before the
    /// first exchange, and before each further one until a primary has been connected.
    fn wait_for_primary(
        &self,
        session: &Arc<StandbySession>,
        dialer: &dyn Dial,
        [first, mut again]: [Duration; 2],
        is_undecided: bool,
    ) {
        let mut pause = first;
        while !session.replication.is_over() {
            self.engine
                .sleep_unless(pause, || session.replication.is_over());
            if !session.waits_for_primary() {
                again = if is_undecided { SOON } else { AGAIN };
            } else if let Some(reason) = self.engine.stall_reason() {
                self.engine.notes.set_reason(&reason);
            } else if !session.replication.is_over() {
                self.visit(session, dialer, is_undecided);
            }
            pause = again;
        }
    }

    /// Meets the other node, and remembers why nothing comes of that.
    fn visit(&self, session: &StandbySession, dialer: &dyn Dial, is_undecided: bool) {
        let met = match dialer.dial() {
            Ok((sender, mut receiver)) => {
                let limited = receiver.set_timeout(Some(self.engine.config.current().peer_timeout));
                let met = limited.map_err(ExchangeError::from);
                let met = met.and_then(|()| role_exchange::call(self, &*sender, &mut *receiver));
                sender.shutdown("the nodes have met");
                met.map(drop).map_err(Unmet::Exchange)
            }
            Err(error) => Err(Unmet::Unreachable(error)),
        };
        if let Err(unmet) = met
            && !session.replication.is_over()
            && session.waits_for_primary()
        {
            note_unmet(
                &self.engine.notes,
                &unmet,
                dialer.was_refused(),
                is_undecided,
            );
        }
    }
}

/// Why nodes have not met.
#[derive(Debug, thiserror::Error)]
enum Unmet {
    #[error(transparent)]
    Unreachable(DialError),
    #[error(transparent)]
    Exchange(ExchangeError),
}

fn note_unmet(notes: &StatusNotes, unmet: &Unmet, was_refused: bool, is_undecided: bool) {
    let reason = unmet.to_string();
    match unmet {
        Unmet::Exchange(ExchangeError::PeerPoisoned(_)) => notes.set_peer_disk_failed(&reason),
        Unmet::Exchange(error) if error.is_obstacle() => notes.set_obstacle(&reason),
        Unmet::Unreachable(_) if was_refused => notes.set_obstacle(&reason),
        _ if is_undecided => notes.set_reason(&reason),
        _ => {}
    }
}
