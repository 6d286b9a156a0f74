//! The primary's side of the connection: dial, introduce, read what the secondary says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockstep_link::{LinkError, ReceiveFrames};
use lockstep_repl::core::{Event, OpId};
use lockstep_repl::message::{Envelope, Hello, Message, PROTOCOL_VERSION, Welcome};
use lockstep_repl::state::Trigger;
use lockstep_types::Osn;
use lockstep_types::settings::Durability;

use super::dial::{Dial, Halves};
use super::host::Reading;
use super::{Datastore, Link, Thread};

/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);
/// While the peer refuses this node: an operator has to see to that.
const RETRY_REFUSED: Duration = Duration::from_secs(2);
/// The longest that is waited before what the nodes could not do is tried once more.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// How a connection ended, and after what time.
struct Ending {
    /// This node ended it, as one of the nodes could not do what the other had done.
    given_up: bool,
    was_in_sync: bool,
    lasted: Duration,
}

/// Why there is no connection, for the operator, and when to try again.
struct Unconnected {
    reason: String,
    retry: Duration,
    /// Waiting for the other node does not help.
    obstacle: bool,
}

impl From<String> for Unconnected {
    fn from(reason: String) -> Self {
        Self {
            reason,
            retry: RETRY,
            obstacle: false,
        }
    }
}

impl Unconnected {
    /// One of the nodes refuses the other, as a configuration or a store does not fit.
    const fn refused(reason: String) -> Self {
        Self {
            reason,
            retry: RETRY_REFUSED,
            obstacle: true,
        }
    }
}

impl Ending {
    /// How long to wait before the next attempt, if before the last one it was `waited`. A disk that
    /// is full should not keep both nodes busy with resyncs, however long one takes until it fails.
    fn wait(&self, waited: Duration) -> Duration {
        let was_long_in_sync = self.was_in_sync && self.lasted >= RETRY_MAX;
        if self.given_up && !was_long_in_sync {
            (waited * 2).min(RETRY_MAX)
        } else {
            RETRY
        }
    }
}

impl Datastore {
    /// Keeps up the connection with the secondary until the datastore is stopped.
    pub fn run_primary(self: &Arc<Self>, dialer: &dyn Dial) {
        let mut wait = RETRY;
        while !self.is_stopping() {
            if self.poison.has_failed() {
                self.tell_peer_poisoned(dialer);
                self.rest(RETRY_MAX);
                continue;
            }
            match self.connect(dialer) {
                Ok((connection, welcome)) => {
                    wait = self.serve_connection(connection, welcome).wait(wait);
                }
                Err(unconnected) => {
                    wait = unconnected.retry;
                    if unconnected.obstacle {
                        self.set_obstacle(&unconnected.reason);
                    } else {
                        self.set_reason(&unconnected.reason);
                    }
                }
            }
            self.rest(wait);
        }
    }

    /// Waits, but not longer than until the datastore is stopped.
    pub(super) fn rest(&self, wait: Duration) {
        let until = self.host.now() + wait;
        while !self.is_stopping() && self.host.now() < until {
            let left = until.saturating_sub(self.host.now());
            self.host.sleep(RETRY.min(left));
        }
    }

    /// Connects and introduces both sides. An error is for the operator.
    fn connect(self: &Arc<Self>, dialer: &dyn Dial) -> Result<(Halves, Welcome), Unconnected> {
        let dialled = dialer.dial();
        let (sender, mut receiver) = dialled.map_err(|reason| {
            if dialer.was_refused() {
                Unconnected::refused(reason)
            } else {
                reason.into()
            }
        })?;
        let role = self.role.state();
        let no_name = || "this node's store has no name in role.json".to_owned();
        let store = role.store.ok_or_else(no_name)?;
        let hello = Hello {
            version: PROTOCOL_VERSION,
            in_sync: role.in_sync,
            carried_over: role.carried_over,
            store,
            sync: role.sync,
            durable: self.config.durability == Durability::Always,
        };
        self.send_on(&*sender, Osn::ZERO, Message::Hello(hello), &[]);
        receiver
            .set_timeout(Some(self.config.peer_timeout))
            .map_err(|error| error.to_string())?;
        let frame = receiver.recv().map_err(|error| error.to_string())?;
        let envelope = Envelope::decode(frame.header).map_err(|error| error.to_string())?;
        if let Message::Welcome(welcome) = &envelope.message {
            let checked = self.check_introduction(&envelope, welcome.version);
            checked.map_err(Unconnected::refused)?;
        }
        match envelope.message {
            Message::Welcome(welcome) => Ok(((sender, receiver), welcome)),
            Message::Refuse { reason } => {
                Err(Unconnected::refused(format!("the peer refuses: {reason}")))
            }
            Message::Poisoned { reason } => Err(self.peer_poisoned(reason)),
            _ => Err(
                "the peer did not answer the greeting as a secondary does: run the same \
                      version of lockstep on both"
                    .to_owned()
                    .into(),
            ),
        }
    }

    /// The secondary's disk has failed: it cannot do what this node does (P15), and will not until an
    /// operator acts.
    fn peer_poisoned(self: &Arc<Self>, reason: String) -> Unconnected {
        self.set_peer_disk_failed(&reason);
        self.drive(Thread::MayWait, Event::Trigger(Trigger::PeerFailed));
        Unconnected {
            reason,
            retry: RETRY_MAX,
            obstacle: false,
        }
    }

    /// Tells the secondary why it is no longer led. It may not be there.
    fn tell_peer_poisoned(&self, dialer: &dyn Dial) {
        let Some(reason) = self.poisoned_because() else {
            return;
        };
        if let Ok((sender, mut receiver)) = dialer.dial() {
            self.send_on(&*sender, Osn::ZERO, Message::Poisoned { reason }, &[]);
            // It closes the connection when it has heard; whatever comes says no more than that.
            let limited = receiver.set_timeout(Some(self.config.peer_timeout));
            let _heard = limited.map(|()| receiver.recv().is_ok());
            sender.shutdown("it was told");
        }
    }

    /// Checks what both sides must agree on before anything else is said.
    pub(super) fn check_introduction(
        &self,
        envelope: &Envelope,
        version: u32,
    ) -> Result<(), String> {
        if version != PROTOCOL_VERSION {
            return Err(format!(
                "the peer speaks protocol version {version}, this node {PROTOCOL_VERSION}: run \
                 the same version of lockstep on both"
            ));
        }
        if envelope.datastore != self.store.uuid() {
            return Err(format!(
                "the peer's datastore is {}, this node's {}: give both the same uuid",
                envelope.datastore,
                self.store.uuid()
            ));
        }
        if envelope.generation != self.generation() {
            return Err(format!(
                "the peer is in generation {}, this node in {}: one of the stores is from another \
                 time; move the secondary's store away, so that it is made anew from the primary's",
                envelope.generation,
                self.generation()
            ));
        }
        Ok(())
    }

    /// Uses a connection until it is lost.
    fn serve_connection(self: &Arc<Self>, (sender, receiver): Halves, welcome: Welcome) -> Ending {
        let start = self.host.now();
        // Rule P8: both marks, of one time (P17, the secondary has looked), and one past.
        let follows = self.store.is_followed_at(welcome.applied);
        let in_sync = self.role.state().in_sync && welcome.in_sync && follows;
        if !self.role.state().in_sync {
            self.set_reason(
                "the secondary lacks what was done without it; it is brought up to date",
            );
        } else if !welcome.in_sync {
            self.set_reason(
                "the secondary's copy is not complete, or not the one that was in sync last",
            );
        } else if !follows {
            self.set_reason(
                "the secondary has done an operation that this node knows nothing of: the histories \
                 of the two stores differ, so everything is compared",
            );
        }
        self.welcome_tells_room(welcome.room, in_sync);
        let link = Link::new(sender.clone(), self.next_connection(), welcome.waiting);
        let (connection, course) = (link.id, Arc::clone(&link.course));
        *self.link.write() = Some(link);
        let ending = || Ending {
            given_up: course.given_up.load(Ordering::Acquire),
            was_in_sync: course.in_sync.load(Ordering::Acquire),
            lasted: self.host.since(start),
        };
        if self.is_stopping() {
            // It may not have seen this connection when it closed the one there was.
            self.drop_link("this node is stopping");
            return ending();
        }
        let up = Event::LinkUp {
            connection,
            in_sync,
            peer_applied: welcome.applied,
        };
        let reason = {
            let _reading = Reading::on(&*self.host);
            self.drive(Thread::Reader, up);
            self.read_answers(receiver)
        };
        sender.shutdown(&reason);
        *self.link.write() = None;
        self.calls.abandon();
        self.tail_is_due(connection, false);
        if !self.is_stopping() {
            self.set_ending(&reason, ending().given_up);
        }
        self.drive(Thread::MayWait, Event::Trigger(Trigger::LinkLost));
        ending()
    }

    /// Reads until the connection is lost; returns why.
    fn read_answers(self: &Arc<Self>, mut receiver: Box<dyn ReceiveFrames>) -> String {
        let limit = self.config.peer_timeout;
        if let Err(error) = receiver.set_timeout(Some(limit / 4)) {
            return error.to_string();
        }
        let mut heard = self.host.now();
        loop {
            match receiver.recv() {
                Ok(frame) => {
                    heard = self.host.now();
                    match Envelope::decode(frame.header) {
                        Ok(envelope) => self.answered(envelope.message),
                        Err(error) => return error.to_string(),
                    }
                }
                // A frame that is arriving is a sign of life.
                Err(error) if error.is_timed_out() && error.is_slow() => {
                    heard = self.host.now();
                }
                Err(error) if error.is_timed_out() && self.host.since(heard) < limit => {}
                Err(error) => return lost(&error, limit),
            }
        }
    }

    fn answered(self: &Arc<Self>, message: Message) {
        let event = match message {
            Message::WriteAck { osn, failed } => {
                if let Some(errno) = failed {
                    self.set_obstacle(&format!("the secondary could not write: {errno}"));
                }
                Event::WriteAcked(osn, failed)
            }
            Message::MetaAck { osn, outcome } => {
                if let Err(errno) = outcome {
                    self.set_obstacle(&format!("the secondary could not follow: {errno}"));
                }
                Event::MetaAcked(osn, outcome)
            }
            Message::SyncAck { id, failed } => {
                if failed.is_some() {
                    self.set_reason("the secondary's disk failed a flush");
                }
                Event::SyncAcked(OpId(id), failed)
            }
            Message::Pong { room } => {
                self.pong_tells_room(room);
                self.pong();
                self.give_up_if_overdue();
                Event::Beat
            }
            // That it came is all it says.
            Message::Alive => return,
            Message::Response { id, response } => return self.calls.answered(id, response),
            Message::Refuse { reason } => return self.set_reason(&reason),
            _ => return self.drop_link("the secondary sent what only a primary may send"),
        };
        self.drive(Thread::Reader, event);
    }
}

fn lost(error: &LinkError, limit: Duration) -> String {
    if error.is_timed_out() {
        return format!("the secondary has been silent for {} ms", limit.as_millis());
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(given_up: bool, was_in_sync: bool, lasted: Duration) -> Ending {
        Ending {
            given_up,
            was_in_sync,
            lasted,
        }
    }

    #[test]
    fn what_the_nodes_could_not_do_is_tried_ever_more_rarely() {
        let long = RETRY_MAX * 2;
        for failed in [
            ending(true, false, RETRY),
            ending(true, true, RETRY),
            ending(true, false, long),
        ] {
            let mut wait = RETRY;
            let mut waits = Vec::new();
            for _ in 0..10 {
                wait = failed.wait(wait);
                waits.push(wait);
            }
            assert_eq!(waits.first(), Some(&(RETRY * 2)));
            assert!(waits.is_sorted());
            assert_eq!(waits.last(), Some(&RETRY_MAX));
        }
    }

    #[test]
    fn a_lost_connection_is_made_anew_at_once() {
        let lost = ending(false, false, Duration::ZERO);
        assert_eq!(lost.wait(RETRY_MAX), RETRY);
        let long_in_order = ending(true, true, RETRY_MAX);
        assert_eq!(long_in_order.wait(RETRY_MAX), RETRY);
    }
}
