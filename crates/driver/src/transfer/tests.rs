//! A resync against a secondary that answers when the test lets it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use lockstep_link::{FrameRef, LinkError, ReceiveFrames, SendFrames};
use lockstep_repl::message::{Envelope, Message, PROTOCOL_VERSION, Request, Response, Welcome};
use lockstep_repl::state::State;
use lockstep_types::backing::Room;
use lockstep_types::{FileName, Ino, MetaRequest, NodeKind, Osn};
use parking_lot::Mutex;

use super::super::Datastore;
use super::super::dial::{Dial, Halves};
use super::super::start::tests::Place;

/// What the primary says.
type Said = (Message, Vec<u8>);

/// The way to the secondary. Closed, it ends the way back, too.
struct Out {
    said: Mutex<Sender<Said>>,
    back: Mutex<Option<Sender<Vec<u8>>>>,
}

impl SendFrames for Out {
    fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        let message = Envelope::decode(header).unwrap().message;
        // The test may have heard enough.
        let _heard = self.said.lock().send((message, payload.to_vec()));
        Ok(())
    }

    fn post(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.send(header, payload)
    }

    fn enqueue(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
        self.send(header, payload)
    }

    fn send_deferred(&self, header: &[u8], payload: &[u8]) -> Result<bool, LinkError> {
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

/// The way back.
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
            payload: &[],
        })
    }
}

/// One connection, once.
struct Once(Mutex<Option<Halves>>);

impl Dial for Once {
    fn dial(&self) -> Result<Halves, String> {
        let halves = self.0.lock().take();
        halves.ok_or_else(|| "there is no other".to_owned())
    }
}

/// The secondary.
struct Secondary {
    said: Receiver<Said>,
    out: Arc<Out>,
    datastore: Arc<Datastore>,
}

impl Secondary {
    fn answer(&self, message: Message) {
        let envelope = Envelope {
            datastore: self.datastore.store.uuid(),
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
        let response = Ok(Response::Done);
        self.answer(Message::Response { id, response });
    }

    /// The next question; whatever else is said is left unanswered.
    fn question(&self) -> (u64, Request, Vec<u8>) {
        loop {
            if let (Message::Request { id, request }, payload) = self.said.recv().unwrap() {
                return (id, request, payload);
            }
        }
    }
}

/// A question that is not answered yet: its number, what it asks, and its payload.
type Question = (u64, Request, Vec<u8>);

/// A primary out of sync, connected with a secondary that has been asked for records of the namespace and
/// has not answered. Returns with it what was asked.
fn stalled() -> (Place, Secondary, VecDeque<Question>) {
    let place = Place::in_sync();
    let datastore = place.start_out_of_sync();
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
    thread::spawn(move || primary.run_primary(&Once(Mutex::new(Some(halves)))));
    let secondary = Secondary {
        said,
        out,
        datastore,
    };
    let (hello, _) = secondary.said.recv().unwrap();
    assert!(matches!(hello, Message::Hello(_)), "{hello:?}");
    secondary.answer(Message::Welcome(Welcome {
        version: PROTOCOL_VERSION,
        in_sync: false,
        applied: Osn::ZERO,
        waiting: Vec::new(),
        room: Room::ALL,
    }));
    let (id, begin, _) = secondary.question();
    assert!(matches!(begin, Request::BeginResync { .. }), "{begin:?}");
    secondary.done(id);
    let first = secondary.question();
    assert!(matches!(first.1, Request::ImageChunk), "{:?}", first.1);
    (place, secondary, VecDeque::from([first]))
}

fn make_directory(datastore: &Arc<Datastore>, name: &str) -> Receiver<bool> {
    let (told, outcome) = channel();
    let request = MetaRequest::Create {
        parent: Ino::ROOT,
        name: FileName::new(name.as_bytes()).unwrap(),
        ino: datastore.store.next_ino().unwrap(),
        kind: NodeKind::Directory,
        mode: 0o755,
        umask: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
    };
    let done = Box::new(move |result: Result<_, _>| told.send(result.is_ok()).unwrap());
    datastore.submit_meta(request, done);
    outcome
}

fn end(secondary: &Secondary) {
    secondary.datastore.stop();
    secondary.datastore.close();
}

/// However long the namespace takes: a network that passes nothing holds up no metadata operation.
#[test]
fn metadata_goes_on_while_the_image_is_stalled_and_is_sent_before_its_end() {
    let (_place, secondary, mut asked) = stalled();
    let made = make_directory(&secondary.datastore, "made meanwhile");
    assert!(made.recv().unwrap(), "it waits for the image");
    assert_eq!(
        secondary.datastore.core.lock().state(),
        State::ResyncNamespace
    );
    let (mut records, mut settled) = (Vec::<u8>::new(), false);
    let later = loop {
        let (id, request, payload) = asked.pop_front().unwrap_or_else(|| secondary.question());
        match request {
            Request::ImageChunk => {}
            Request::ImageChanges => records.extend(payload),
            Request::SettleImage => settled = true,
            Request::EndImage { applied, .. } => {
                assert_eq!(applied, secondary.datastore.store.applied());
                let state = secondary.datastore.core.lock().state();
                assert_eq!(state, State::ResyncTail);
                // It waits now, and is mirrored afterwards.
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

/// A connection that is lost while the end of the image waits for an operation leaves nobody waiting.
#[test]
fn a_resync_that_loses_its_connection_ends() {
    let (_place, secondary, _asked) = stalled();
    secondary.out.shutdown("lost");
    let datastore = &secondary.datastore;
    while datastore.core.lock().state() != State::OutOfSync {
        thread::yield_now();
    }
    let connection = datastore.next_connection();
    assert!(
        datastore.hold_names(connection).is_err(),
        "over no connection"
    );
    assert!(!datastore.store.changes_exceed());
    assert!(make_directory(datastore, "alone").recv().unwrap());
    end(&secondary);
}
