//! A secondary that nobody leads asks the other node why (both may be configured as secondary).
//!
//! Only a primary dials, so two secondaries would wait for each other without a word, and a primary that cannot reach
//! its secondary has a reason that the secondary does not know. Nothing is decided here: what is learned is shown to
//! the operator and ends nothing. Invariant: only what an authenticated peer says, or what this node finds at
//! the configured address, becomes the reason of the state.

use std::sync::Arc;
use std::time::Duration;

use lockstep_link::{ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Message};
use lockstep_types::Osn;
use lockstep_types::settings::Role;

use super::Datastore;
use super::dial::Dial;
use super::secondary::refuse;

/// Before a secondary asks for the first time: a primary that can connect does so sooner.
const FIRST: Duration = Duration::from_secs(2);
/// Between two questions.
const AGAIN: Duration = Duration::from_secs(10);

/// Why two secondaries do not get together, for both.
const TWO_SECONDARIES: &str = "both nodes are configured as secondary of this datastore, and wait for a primary: \
                               stop the one that is to be the primary, write role = \"primary\" in its \
                               node.toml, move its store away (`lockstep export` takes out what it holds), run \
                               `lockstep create-store`, and start it";

impl Datastore {
    /// Asks the other node from time to time, as long as no primary leads this one, until the datastore is
    /// stopped.
    pub fn run_waiting(self: &Arc<Self>, dialer: &dyn Dial) {
        let mut pause = FIRST;
        while !self.is_stopping() {
            self.rest(pause);
            if !self.is_stopping() && self.waits_for_primary() {
                self.ask_other_node(dialer);
                pause = AGAIN;
            }
        }
    }

    /// Whether this node is a secondary without a connection, and its disk is well.
    pub(super) fn waits_for_primary(&self) -> bool {
        self.config.role == Role::Secondary
            && self.link.read().is_none()
            && !self.poison.has_failed()
    }

    fn ask_other_node(&self, dialer: &dyn Dial) {
        let learned = match dialer.dial() {
            Ok((sender, mut receiver)) => {
                self.send_on(&*sender, Osn::ZERO, Message::Waiting, &[]);
                let answer = self.heard(&mut *receiver);
                sender.shutdown("it was asked");
                answer
            }
            Err(reason) => dialer.was_refused().then_some(reason),
        };
        if let Some(reason) = learned.filter(|_| self.waits_for_primary()) {
            self.set_obstacle(&reason);
        }
    }

    /// Why the other node does not lead this one; a primary that can does not answer.
    fn heard(&self, receiver: &mut dyn ReceiveFrames) -> Option<String> {
        receiver.set_timeout(Some(self.config.peer_timeout)).ok()?;
        let envelope = Envelope::decode(receiver.recv().ok()?.header).ok()?;
        match envelope.message {
            Message::Refuse { reason } if reason == TWO_SECONDARIES => Some(reason),
            Message::Refuse { reason } => Some(format!("the peer refuses: {reason}")),
            _ => None,
        }
    }

    /// Answers a secondary that nobody leads. A primary does not: it dials by itself.
    pub fn told_of_waiting(&self, sender: &dyn SendFrames, question: &Envelope) {
        if self.config.role != Role::Secondary {
            return;
        }
        if self.waits_for_primary() {
            self.set_obstacle(TWO_SECONDARIES);
        }
        refuse(sender, question, TWO_SECONDARIES);
    }
}
