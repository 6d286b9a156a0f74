//! A secondary whose primary has the right keys and sends wrong messages.
//!
//! A peer is trusted with the content of the copy, so these tests do not check that content. The primary must not
//! make the node panic, stop answering, or exceed its memory bound. The node carries a message out, refuses it with a
//! reason, or closes the connection. The store can be opened afterwards, and the true peer can make it equal.

use std::sync::Arc;
use std::time::Duration;

use lockstep_link::{Payload, ReceiveFrames, Receiver, SendFrames, Sender};
use lockstep_repl::message::{Envelope, Hello, Message, PROTOCOL_VERSION, Request, ResyncScope};
use lockstep_sums::{SumKey, SumSecret};
use lockstep_testbed::chance::Chance;
use lockstep_types::settings::Role;
use lockstep_types::{Ino, WriteVerifier};
use lockstepfs::config::Encryption;

use crate::bytes;
use crate::messages::{self, PeerState};
use crate::node::AttackedNode;
use crate::run::cases;
use crate::{store, wire};

/// Cases between two connections of the true peer.
const CASES_PER_SYNC: u64 = 25;
/// Most messages of a case.
const MESSAGES_MAX: u64 = 60;
/// Longer than an answer takes on a busy machine; some messages have no answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// More large messages than a node may hold.
const FLOOD_MAX: u64 = 600;

#[test]
fn an_encrypted_secondary_withstands_any_primary() {
    attack(
        "hostile_primary::an_encrypted_secondary_withstands_any_primary",
        Encryption::On,
    );
}

#[test]
fn a_clear_secondary_withstands_any_primary() {
    attack(
        "hostile_primary::a_clear_secondary_withstands_any_primary",
        Encryption::Off,
    );
}

fn attack(target: &'static str, encryption: Encryption) {
    let mut node = AttackedNode::start(encryption);
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
    println!("{target}: the node held at most {} bytes", node.peak_bytes);
}

/// One connection, from greeting to end.
fn connection(chance: &mut Chance, node: &AttackedNode) {
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
    let mut known = PeerState::of(chance, store::UUID);
    (known.store, known.sync) = node.names();
    let mut conversation = Conversation {
        chance,
        known,
        sender,
        receiver,
    };
    // The node may close the connection before all messages are sent.
    let _ended = conversation
        .greet()
        .and_then(|()| conversation.send_messages());
    conversation.sender.shutdown("enough");
}

/// The connection has ended.
struct Ended;

/// A conversation with a secondary.
struct Conversation<'a> {
    chance: &'a mut Chance,
    known: PeerState,
    sender: Sender,
    receiver: Receiver,
}

impl Conversation<'_> {
    /// Meets the node: its answer to the second record may be acted on.
    fn meet(&mut self) -> Result<(), Ended> {
        let mut seen = None;
        for _ in 0..2 {
            let own = messages::meet(self.chance, &self.known, Role::Primary, seen);
            self.send(Message::RoleOffer(own))?;
            if let Message::RoleOffer(theirs) = self.receive()? {
                seen = Some(theirs.record);
            }
        }
        Ok(())
    }

    fn greet(&mut self) -> Result<(), Ended> {
        self.meet()?;
        let in_sync = self.chance.percent(50);
        let secret = SumSecret::new([in_sync.into(); 32]);
        let greeting = Message::Hello(Hello {
            version: PROTOCOL_VERSION,
            in_sync,
            durable: self.chance.percent(50),
            was_resynced: self.chance.percent(90),
            store: messages::store(self.chance, &self.known),
            sync: messages::standing(self.chance, &self.known),
            sum_secret: Some(secret.clone()),
        });
        if self.chance.percent(5) {
            let other = messages::any(self.chance, &self.known);
            self.send(other)?;
        } else {
            self.send(greeting)?;
            self.sender.use_sum_key(&Arc::new(SumKey::new(&secret)));
        }
        if let Message::Welcome(welcome) = self.receive()? {
            self.known.last = welcome.applied;
        }
        match self.chance.within(0..20) {
            0..6 => self.begin_resync(),
            6 => self.flood(),
            _ => Ok(()),
        }
    }

    /// Sends many requests at once and reads no answer.
    fn flood(&mut self) -> Result<(), Ended> {
        let sync = messages::sync_sent(&self.known);
        let ask = |request| Message::Request { id: 1, request };
        let begin = |scope| ask(Request::BeginResync { sync, scope });
        // Requests that take a disk some time.
        let floods = [
            ask(Request::InSync {
                verifier: WriteVerifier::NONE,
            }),
            begin(ResyncScope::Everything),
            begin(ResyncScope::Changes),
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
            self.sender
                .send(&header, Payload::of(&payload))
                .map_err(|_| Ended)?;
        }
        Ok(())
    }

    /// Begins a resync, so that the later messages meet an incomplete copy.
    fn begin_resync(&mut self) -> Result<(), Ended> {
        let applied = self.known.last;
        let end = Request::EndImage {
            applied,
            inos_below: 2,
        };
        let begin = Request::BeginResync {
            sync: messages::sync_sent(&self.known),
            scope: ResyncScope::Everything,
        };
        for request in [begin, end] {
            self.send(Message::Request { id: 1, request })?;
            self.receive()?;
        }
        Ok(())
    }

    fn send_messages(&mut self) -> Result<(), Ended> {
        for _ in 0..self.chance.within(0..MESSAGES_MAX) {
            let message = if self.chance.percent(self.known.wildness) {
                messages::any(self.chance, &self.known)
            } else {
                messages::of_primary(self.chance, &self.known)
            };
            let numbered = matches!(message, Message::Meta { .. });
            self.send(message)?;
            if numbered {
                self.await_outcome()?;
            } else if self.chance.percent(80) {
                self.receive()?;
            }
        }
        Ok(())
    }

    fn send(&mut self, message: Message) -> Result<(), Ended> {
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
        self.sender
            .send(&header, Payload::of(&payload))
            .map_err(|_| Ended)
    }

    /// Receives a message, which must be readable. A timeout does not end the conversation.
    fn receive(&mut self) -> Result<Message, Ended> {
        match self.receiver.recv() {
            Ok(frame) => Ok(Envelope::decode(frame.header).unwrap().message),
            Err(error) if error.is_timed_out() => Ok(Message::Ping {
                disk_silent_ms: 0,
                resync: None,
            }),
            Err(_) => Err(Ended),
        }
    }

    /// Waits for the outcome of an operation. Answers come in the order of requests, except those that wait for a
    /// disk.
    fn await_outcome(&mut self) -> Result<(), Ended> {
        for _ in 0..MESSAGES_MAX {
            match self.receive()? {
                Message::MetaAck { osn, outcome } => {
                    if outcome.is_ok() {
                        self.known.last = self.known.last.max(osn);
                    }
                    break;
                }
                Message::Ping { .. } => break,
                _ => {}
            }
        }
        Ok(())
    }
}
