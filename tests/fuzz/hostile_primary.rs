//! A secondary whose primary has the right keys and says the wrong things.
//!
//! A peer is trusted to mean well, so what it may do to the content of the copy is no question here.
//! It must not make the node panic, stop answering, or hold more than it may; what it sends is done,
//! or refused with a reason, or ends the connection; and the store it leaves can be opened and made
//! equal by the true peer.

use std::time::Duration;

use lockstep_link::{ReceiveFrames, Receiver, SendFrames, Sender};
use lockstep_repl::message::{Envelope, Hello, Message, PROTOCOL_VERSION, Request};
use lockstep_types::Ino;
use lockstepfs::config::Encryption;

use crate::bytes;
use crate::chance::Chance;
use crate::messages::{self, Knowledge};
use crate::node::Besieged;
use crate::run::cases;
use crate::{store, wire};

/// Cases from one time that the true peer connects to the next.
const CASES_PER_SYNC: u64 = 25;
/// Most messages of a case.
const MESSAGES_MAX: u64 = 60;
/// Longer than an answer takes on a machine with other things to do; not all messages have one.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// More large messages than a node may keep.
const FLOOD_MAX: u64 = 600;

#[test]
fn an_encrypted_secondary_bears_any_primary() {
    attack(
        "hostile_primary::an_encrypted_secondary_bears_any_primary",
        Encryption::On,
    );
}

#[test]
fn a_clear_secondary_bears_any_primary() {
    attack(
        "hostile_primary::a_clear_secondary_bears_any_primary",
        Encryption::Off,
    );
}

fn attack(target: &'static str, encryption: Encryption) {
    let mut node = Besieged::start(encryption);
    let mut done = 0;
    cases(target, 2 * CASES_PER_SYNC, |chance| {
        connection(chance, &node);
        node.assert_in_order();
        done += 1;
        if done % CASES_PER_SYNC == 0 {
            if chance.percent(50) {
                node.restart();
            }
            node.sync_with_true_peer();
        }
    });
    node.restart();
    node.sync_with_true_peer();
    println!("{target}: the node held at most {} KiB", node.peak_kib);
}

/// One connection, from greeting to end.
fn connection(chance: &mut Chance, node: &Besieged) {
    let address = if chance.percent(15) {
        wire::damaged(chance, node.address, 50_000)
    } else {
        node.address
    };
    let Ok(connection) = node.dial(address) else {
        assert_ne!(address, node.address, "the true peer is not let in");
        return;
    };
    let (sender, mut receiver) = connection.split();
    receiver.set_timeout(Some(ANSWER_WITHIN)).unwrap();
    let mut known = Knowledge::of(chance, store::UUID);
    (known.store, known.sync) = node.names();
    let mut talk = Talk {
        chance,
        known,
        sender,
        receiver,
    };
    // That it is over before all was said is the node's right.
    let _over = talk.greet().and_then(|()| talk.go_on());
    talk.sender.shutdown("enough");
}

/// Why a talk ends.
struct Over;

/// A talk with a secondary.
struct Talk<'a> {
    chance: &'a mut Chance,
    known: Knowledge,
    sender: Sender,
    receiver: Receiver,
}

impl Talk<'_> {
    fn greet(&mut self) -> Result<(), Over> {
        let greeting = Message::Hello(Hello {
            version: PROTOCOL_VERSION,
            in_sync: self.chance.percent(50),
            durable: self.chance.percent(50),
            carried_over: self.chance.percent(90),
            store: messages::store(self.chance, &self.known),
            sync: messages::sync(self.chance, &self.known),
        });
        if self.chance.percent(5) {
            let other = messages::any(self.chance, &self.known);
            self.say(other)?;
        } else {
            self.say(greeting)?;
        }
        if let Message::Welcome(welcome) = self.hear()? {
            self.known.last = welcome.applied;
        }
        match self.chance.within(0..20) {
            0..6 => self.begin_resync(),
            6 => self.flood(),
            _ => Ok(()),
        }
    }

    /// Asks much at once and never listens.
    fn flood(&mut self) -> Result<(), Over> {
        let sync = messages::sync_told(&self.known);
        let ask = |request| Message::Request { id: 1, request };
        // What takes a disk some time.
        let floods = [
            ask(Request::InSync),
            ask(Request::BeginResync { sync }),
            Message::Sync {
                id: 1,
                ino: Ino::ROOT,
            },
        ];
        let message = self.chance.pick(&floods).clone();
        let payload = match message {
            Message::Request { .. } => vec![3; 1 << 20],
            _ => Vec::new(),
        };
        let count = if payload.is_empty() {
            200_000
        } else {
            FLOOD_MAX
        };
        let header = messages::envelope(self.chance, &self.known, message).encode();
        let header = header.unwrap();
        for _ in 0..count {
            self.sender.send(&header, &payload).map_err(|_| Over)?;
        }
        Ok(())
    }

    /// So that what follows meets a copy that is being made.
    fn begin_resync(&mut self) -> Result<(), Over> {
        let applied = self.known.last;
        let end = Request::EndImage {
            applied,
            inos_below: 2,
        };
        let begin = Request::BeginResync {
            sync: messages::sync_told(&self.known),
        };
        for request in [begin, end] {
            self.say(Message::Request { id: 1, request })?;
            self.hear()?;
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), Over> {
        for _ in 0..self.chance.within(0..MESSAGES_MAX) {
            let message = if self.chance.percent(self.known.wildness) {
                messages::any(self.chance, &self.known)
            } else {
                messages::of_primary(self.chance, &self.known)
            };
            let numbered = matches!(message, Message::Meta { .. });
            self.say(message)?;
            if numbered {
                self.hear_what_became_of_it()?;
            } else if self.chance.percent(80) {
                self.hear()?;
            }
        }
        Ok(())
    }

    fn say(&mut self, message: Message) -> Result<(), Over> {
        let payload = match self.chance.within(0..10) {
            0..4 => Vec::new(),
            4..9 => bytes::random(self.chance, 20_000),
            _ => vec![
                3;
                *self
                    .chance
                    .pick(&[4096, 4097, 1 << 20, (1 << 20) + 1, (1 << 20) + 4096])
            ],
        };
        let envelope = messages::envelope(self.chance, &self.known, message);
        let header = messages::header(self.chance, &self.known, &envelope);
        self.sender.send(&header, &payload).map_err(|_| Over)
    }

    /// Whatever was asked, what comes back can be read. That nothing comes is not the end.
    fn hear(&mut self) -> Result<Message, Over> {
        match self.receiver.recv() {
            Ok(frame) => Ok(Envelope::decode(frame.header).unwrap().message),
            Err(error) if error.is_timed_out() => Ok(Message::Ping),
            Err(_) => Err(Over),
        }
    }

    /// Answers come in the order of questions but for those that wait for a disk.
    fn hear_what_became_of_it(&mut self) -> Result<(), Over> {
        for _ in 0..MESSAGES_MAX {
            match self.hear()? {
                Message::MetaAck { osn, outcome } => {
                    if outcome.is_ok() {
                        self.known.last = self.known.last.max(osn);
                    }
                    break;
                }
                Message::Ping => break,
                _ => {}
            }
        }
        Ok(())
    }
}
