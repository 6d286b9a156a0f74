//! A resync against a secondary that answers at the test's command.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use lockstep_fs::plan::View;
use lockstep_fs::record;
use lockstep_link::{FrameRef, LinkError, Payload, ReceiveFrames, SendFrames};
use lockstep_repl::checked::SumsWord;
use lockstep_repl::message::{
    ContentSource, Envelope, MarkAccount, Message, PROTOCOL_VERSION, Request, Response, Welcome,
};
use lockstep_repl::state::State;
use lockstep_roles::{RoleOffer, RoleRecord};
use lockstep_sums::SummedBytes;
use lockstep_types::backing::Room;
use lockstep_types::settings::Role;
use lockstep_types::{Hash128, Ino, NodeKind, Osn};
use parking_lot::Mutex;

use crate::Datastore;
use crate::open::tests::{Place, creation};
use crate::peer::dial::{Dial, DialError, Halves};

/// A message of the primary, with its payload.
type Said = (Message, Vec<u8>);

/// The channel to the secondary. Once closed, it closes the channel back.
struct Out {
    said: Mutex<Sender<Said>>,
    back: Mutex<Option<Sender<Vec<u8>>>>,
}

impl SendFrames for Out {
    fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        let message = Envelope::decode(header).unwrap().message;
        // The test may have stopped listening.
        let _heard = self.said.lock().send((message, payload.bytes.to_vec()));
        Ok(())
    }

    fn post(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        self.send(header, payload)
    }

    fn enqueue(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
        self.send(header, payload)
    }

    fn send_deferred(&self, header: &[u8], payload: Payload<'_>) -> Result<bool, LinkError> {
        self.send(header, payload).map(|()| true)
    }

    fn flush(&self) -> Result<(), LinkError> {
        Ok(())
    }

    fn flush_nowait(&self) -> Result<(), LinkError> {
        Ok(())
    }

    fn shutdown(&self, _: &str) {
        *self.back.lock() = None;
    }
}

/// The channel back.
struct Back {
    frames: Receiver<Vec<u8>>,
    last: Vec<u8>,
}

impl ReceiveFrames for Back {
    fn set_timeout(&mut self, _: Option<Duration>) -> Result<(), LinkError> {
        Ok(())
    }

    fn recv(&mut self) -> Result<FrameRef<'_>, LinkError> {
        let closed = |_| LinkError::Closed {
            peer: ([127, 0, 0, 1], 9).into(),
            reason: "the test ends it".to_owned(),
        };
        self.last = self.frames.recv().map_err(closed)?;
        Ok(FrameRef {
            header: &self.last,
            payload: SummedBytes::default(),
        })
    }
}

/// A dialer for one connection.
struct Once(Mutex<Option<Halves>>);

impl Dial for Once {
    fn dial(&self) -> Result<Halves, DialError> {
        let halves = self.0.lock().take();
        halves.ok_or_else(|| DialError::NoAddress("127.0.0.1:9".parse().unwrap()))
    }
}

/// The secondary.
struct Secondary {
    said: Receiver<Said>,
    out: Arc<Out>,
    datastore: Arc<Datastore>,
}

impl Secondary {
    /// Answers the exchange as a secondary without a complete copy. Returns the first message after the exchange.
    fn meet(&self) -> Message {
        loop {
            let theirs = match self.said.recv().unwrap() {
                (Message::RoleOffer(theirs), _) => theirs,
                (message, _) => return message,
            };
            self.answer(Message::RoleOffer(RoleOffer {
                record: RoleRecord::begin(Role::Secondary),
                seen: Some(theirs.record),
                ..theirs
            }));
        }
    }

    fn answer(&self, message: Message) {
        let envelope = Envelope {
            datastore: self.datastore.uuid(),
            generation: self.datastore.generation(),
            done_below: Osn::ZERO,
            message,
        };
        let back = self.out.back.lock();
        back.as_ref()
            .unwrap()
            .send(envelope.encode().unwrap())
            .unwrap();
    }

    fn done(&self, id: u64) {
        self.respond(id, Response::Done);
    }

    fn respond(&self, id: u64, response: Response) {
        let response = Ok(response);
        self.answer(Message::Response { id, response });
    }

    /// The next request. Other messages are left unanswered.
    fn question(&self) -> (u64, Request, Vec<u8>) {
        loop {
            if let (Message::Request { id, request }, payload) = self.said.recv().unwrap() {
                return (id, request, payload);
            }
        }
    }
}

/// A request without an answer so far: its number, the request, and its payload.
type WitnessQuery = (u64, Request, Vec<u8>);

/// Connects a primary with a secondary, up to the greeting.
fn greeted(datastore: Arc<Datastore>) -> Secondary {
    let (said_here, said) = channel();
    let (back, frames) = channel();
    let out = Arc::new(Out {
        said: Mutex::new(said_here),
        back: Mutex::new(Some(back)),
    });
    let halves: Halves = (
        out.clone(),
        Box::new(Back {
            frames,
            last: Vec::new(),
        }),
    );
    let primary = Arc::clone(&datastore);
    thread::spawn(move || primary.role().run_dialer(&Once(Mutex::new(Some(halves)))));
    let secondary = Secondary {
        said,
        out,
        datastore,
    };
    let hello = secondary.meet();
    assert!(matches!(hello, Message::Hello(_)), "{hello:?}");
    secondary
}

/// A primary in sync, whose secondary has answered everything so far.
fn in_sync() -> (Place, Secondary) {
    let place = Place::in_sync();
    let datastore = place.start().unwrap();
    let applied = datastore.store().applied();
    let secondary = greeted(datastore);
    secondary.answer(Message::Welcome(Welcome {
        version: PROTOCOL_VERSION,
        in_sync: true,
        base: None,
        sync: None,
        applied,
        waiting: Vec::new(),
        room: Room::ALL,
        marks: MarkAccount::default(),
    }));
    loop {
        let (id, request, _) = secondary.question();
        secondary.done(id);
        if matches!(request, Request::RecoveryDone { .. }) {
            break;
        }
    }
    while secondary.datastore.state() != State::Synced {
        thread::yield_now();
    }
    (place, secondary)
}

/// A primary out of sync. Its secondary has a request for records of the namespace and has not answered. Returns that
/// request, too.
fn stalled() -> (Place, Secondary, VecDeque<WitnessQuery>) {
    let place = Place::in_sync();
    let datastore = place.start_out_of_sync();
    let secondary = greeted(datastore);
    secondary.answer(Message::Welcome(Welcome {
        version: PROTOCOL_VERSION,
        in_sync: false,
        base: None,
        sync: None,
        applied: Osn::ZERO,
        waiting: Vec::new(),
        room: Room::ALL,
        marks: MarkAccount::default(),
    }));
    let (id, begin, _) = secondary.question();
    assert!(matches!(begin, Request::BeginResync { .. }), "{begin:?}");
    secondary.done(id);
    let first = secondary.question();
    let is_run = matches!(first.1, Request::CompareRecords { .. });
    assert!(is_run, "{:?}", first.1);
    (place, secondary, VecDeque::from([first]))
}

fn make_directory(datastore: &Arc<Datastore>, name: &str) -> Receiver<bool> {
    let (told, outcome) = channel();
    let ino = datastore.store().next_ino().unwrap();
    let request = creation(ino, name, NodeKind::Directory);
    let done = Box::new(move |result: Result<_, _>| told.send(result.is_ok()).unwrap());
    datastore.primary().unwrap().pipeline.submit(request, done);
    outcome
}

fn end(secondary: &Secondary) {
    secondary.datastore.stop();
    secondary.datastore.close();
}

/// The namespace may take any time: a network that passes nothing delays no metadata operation.
#[test]
fn metadata_goes_on_while_the_image_is_stalled_and_is_sent_before_its_end() {
    let (_place, secondary, mut asked) = stalled();
    let made = make_directory(&secondary.datastore, "made meanwhile");
    assert!(made.recv().unwrap(), "it waits for the image");
    assert_eq!(secondary.datastore.state(), State::ResyncNamespace);
    let (mut records, mut settled) = (Vec::<u8>::new(), false);
    let later = loop {
        let (id, request, payload) = asked.pop_front().unwrap_or_else(|| secondary.question());
        match request {
            Request::CompareRecords { .. } => {
                // The run differs.
                secondary.respond(id, Response::Differing(vec![1]));
                continue;
            }
            Request::ImageChunk => {}
            Request::ImageChanges => records.extend(payload),
            Request::FlushImage => settled = true,
            Request::EndImage { applied, .. } => {
                assert_eq!(applied, secondary.datastore.store().applied());
                let state = secondary.datastore.state();
                assert_eq!(state, State::ResyncTail);
                // The operation waits now, and is mirrored afterwards.
                let later = make_directory(&secondary.datastore, "made at the end");
                assert!(later.try_recv().is_err());
                secondary.done(id);
                break later;
            }
            other => panic!("{other:?}"),
        }
        secondary.done(id);
    };
    assert!(settled);
    let has = |name: &[u8]| records.windows(name.len()).any(|bytes| bytes == name);
    assert!(has(b"made meanwhile"));
    assert!(!has(b"made at the end"));
    let op = loop {
        if let (Message::Meta { op, .. }, _) = secondary.said.recv().unwrap() {
            break op;
        }
    };
    let outcome = Ok(());
    secondary.answer(Message::MetaAck {
        osn: op.osn,
        outcome,
    });
    assert!(later.recv().unwrap());
    end(&secondary);
}

/// No thread is left waiting if the connection is lost while the end of the image waits for an operation.
#[test]
fn a_resync_that_loses_its_connection_ends() {
    let (_place, secondary, _asked) = stalled();
    secondary.out.shutdown("lost");
    let datastore = &secondary.datastore;
    while datastore.state() != State::OutOfSync {
        thread::yield_now();
    }
    let session = datastore.primary().unwrap();
    let connection = session.replication.peer.next_id();
    assert!(
        session.jobs.hold_metadata(connection).is_err(),
        "over no connection"
    );
    assert!(!datastore.store().image().changes_exceed());
    assert!(make_directory(datastore, "alone").recv().unwrap());
    end(&secondary);
}

/// A silent node costs a failover the limit of the comparison, and no more.
#[test]
fn a_failover_is_not_held_up_by_a_secondary_that_does_not_answer() {
    let (_place, secondary) = in_sync();
    let unproved = secondary.datastore.check_before_failover(false).unwrap();
    let reason = unproved.expect("nothing is proved");
    assert!(reason.contains("not over in time"), "{reason}");
    let (id, source) = loop {
        if let (id, Request::DigestOfBatch { source, .. }, _) = secondary.question() {
            break (id, source);
        }
    };
    assert_eq!(source, ContentSource::Sums);
    // An answer that comes too late harms nothing.
    secondary.done(id);
    assert_eq!(secondary.datastore.state(), State::Synced);
    end(&secondary);
}

/// Answers a comparison as a node with another mode of the root, to the end of the test program.
fn answer_with_other_mode(secondary: &Secondary) {
    let mut inode = secondary
        .datastore
        .store()
        .tree()
        .inode(Ino::ROOT)
        .unwrap()
        .unwrap();
    inode.bits.mode ^= 0o7;
    while let Ok((message, _)) = secondary.said.recv() {
        let Message::Request { id, request } = message else {
            continue;
        };
        let sums = SumsWord::default();
        secondary.respond(
            id,
            match request {
                Request::DigestOfBatch { to, .. } => Response::DigestOfBatch {
                    to,
                    hash: Hash128::of(b"other"),
                    sums,
                },
                Request::Digests { to, .. } => Response::Digests {
                    to,
                    digests: vec![(Ino::ROOT.get(), Hash128::of(b"other"))],
                    sums,
                },
                Request::Inspect { .. } => Response::Inspected {
                    record: Some(record::encode(&inode)),
                    content_bytes: 0,
                },
                Request::Records { .. } => Response::Records {
                    records: Vec::new(),
                    last: true,
                },
                Request::Room { .. } => Response::Room(Room::ALL),
                _ => Response::Done,
            },
        );
    }
}

#[test]
fn a_failover_to_a_copy_that_differs_is_refused_unless_the_operator_accepts_it() {
    let (_place, secondary) = in_sync();
    let datastore = Arc::clone(&secondary.datastore);
    thread::spawn(move || answer_with_other_mode(&secondary));
    let refused = datastore.check_before_failover(false).unwrap_err();
    assert!(refused.cause.contains("mode is"), "{refused:?}");
    assert!(
        refused.cure.contains("--despite-differences"),
        "{refused:?}"
    );
    let accepted = datastore.check_before_failover(true).unwrap();
    assert!(accepted.unwrap().contains("mode is"));
    assert!(
        datastore
            .status()
            .verified
            .is_some_and(|found| !found.identical)
    );
    datastore.stop();
    datastore.close();
}
