//! A secondary without a primary asks the other node why: both nodes may be configured as secondary.
//!
//! Only a primary dials. So two secondaries would wait for each other silently, and a primary that cannot reach its
//! secondary has a reason that the secondary does not know. Nothing is decided here: the answer is shown to the operator
//! and ends nothing.
//!
//! Invariant: only the word of an authenticated peer, or a finding of this node at the configured address, becomes the
//! reason of the state.

use std::sync::Arc;
use std::time::Duration;

use lockstep_link::{ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Message};

use crate::peer::connection::Delivery;
use crate::peer::dial::Dial;
use crate::peer::greeting::refuse;
use crate::session::secondary::SecondarySession;

/// Time before the first question. A primary that can connect does so sooner.
const FIRST: Duration = Duration::from_secs(2);
/// Time between two questions.
const AGAIN: Duration = Duration::from_secs(10);

/// Why two secondaries do not connect, for both.
const TWO_SECONDARIES: &str = "both nodes are configured as secondary of this datastore, and wait for a primary: \
                               stop the one that is to be the primary, write role = \"primary\" in its \
                               node.toml, move its store away (`lockstep export` takes out what it holds), run \
                               `lockstep create-store`, and start it";

impl SecondarySession {
    /// Asks the other node from time to time while no primary is connected, until the datastore is stopped.
    pub fn run_waiting(self: &Arc<Self>, dialer: &dyn Dial) {
        let mut pause = FIRST;
        while !self.engine.is_stopping() {
            self.engine.sleep_unless_stopped(pause);
            if !self.engine.is_stopping() && self.waits_for_primary() {
                self.ask_other_node(dialer);
                pause = AGAIN;
            }
        }
    }

    /// Whether no primary is connected and the disk is sound.
    pub fn waits_for_primary(&self) -> bool {
        !self.term.peer.is_connected() && !self.engine.poison.has_failed()
    }

    fn ask_other_node(&self, dialer: &dyn Dial) {
        let learned = match dialer.dial() {
            Ok((sender, mut receiver)) => {
                self.term.reply(&*sender, Message::Waiting, Delivery::Wait);
                let answer = self.read_answer(&mut *receiver);
                sender.shutdown("it was asked");
                answer
            }
            Err(error) => dialer.was_refused().then(|| error.to_string()),
        };
        if let Some(reason) = learned.filter(|_| self.waits_for_primary()) {
            self.engine.notes.set_obstacle(&reason);
        }
    }

    /// Why the other node does not connect. A primary that can connect does not answer.
    fn read_answer(&self, receiver: &mut dyn ReceiveFrames) -> Option<String> {
        let timeout = self.engine.config.peer_timeout;
        receiver.set_timeout(Some(timeout)).ok()?;
        let envelope = Envelope::decode(receiver.recv().ok()?.header).ok()?;
        match envelope.message {
            Message::Refuse { reason } if reason == TWO_SECONDARIES => Some(reason),
            Message::Refuse { reason } => Some(format!("the peer refuses: {reason}")),
            _ => None,
        }
    }

    /// Answers a secondary that asks.
    pub fn answer_secondary(&self, sender: &dyn SendFrames, question: &Envelope) {
        if self.waits_for_primary() {
            self.engine.notes.set_obstacle(TWO_SECONDARIES);
        }
        refuse(sender, question, TWO_SECONDARIES);
    }
}
