//! A primary whose secondary has the right keys and sends wrong messages.
//!
//! The primary does not panic on any message and does not exceed its memory bound. After the end of the
//! connection, every client gets its answer, and every acknowledged operation is found when the store is opened
//! again.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockstep_driver::report::VerifyMode;
use lockstep_fs::StoreView;
use lockstep_link::{
    Connection, Identity, LinkOptions, Payload, ReceiveFrames, Receiver, SendFrames, Sender, accept,
};
use lockstep_repl::checked::SumsWord;
use lockstep_repl::message::{Envelope, Message, Request, Response};
use lockstep_sums::SumKey;
use lockstep_testbed::chance::Chance;
use lockstep_types::backing::Room;
use lockstep_types::{FileName, Hash128, Ino, NodeKind};
use lockstepfs::config::{Encryption, Role};
use tempfile::TempDir;

use crate::bytes;
use crate::client::Client;
use crate::dialer::LinkDialer;
use crate::messages::{self, PeerState};
use crate::run::cases;
use crate::store::{self, Running};

/// Most frames of the primary that the other end answers before it disconnects.
const ANSWERED_MAX: u64 = 120;
/// Number of pings after which no other message is expected.
const PINGS_MAX: u32 = 8;
/// Most operations of clients in a case.
const OPERATIONS_MAX: u64 = 12;
/// Distance between the starts of two writes.
const WRITE_EVERY: u64 = 20_001;

#[test]
fn a_primary_withstands_any_secondary() {
    if !store::can_export() {
        return;
    }
    let place = store::quick_place();
    let template = template(&place);
    let keys = Keys {
        primary: Arc::new(Identity::ephemeral("primary").unwrap()),
        secondary: Identity::ephemeral("secondary").unwrap(),
    };
    let mut number = 0;
    cases(
        "hostile_secondary::a_primary_withstands_any_secondary",
        25,
        |chance| {
            number += 1;
            let dir = place.path().join(format!("store-{number}"));
            store::copy(&template, &dir);
            one(chance, &dir, &keys);
            std::fs::remove_dir_all(dir).unwrap();
        },
    );
}

/// A filled store of a primary.
fn template(place: &TempDir) -> std::path::PathBuf {
    let dir = place.path().join("template");
    store::make(&dir);
    let nobody = Identity::ephemeral("nobody").unwrap().fingerprint();
    let config = store::config(&dir, Role::Primary, nobody, Encryption::On);
    let running = Running::start(store::open_with_fast_clock(&config).unwrap(), None);
    Client::of(&running.datastore).fill();
    running.stop();
    dir
}

struct Keys {
    primary: Arc<Identity>,
    secondary: Identity,
}

/// The acknowledged operations of clients.
struct Acknowledged {
    /// Files made in the root directory.
    names: Vec<String>,
    /// Writes to one file that existed before; none overlaps another.
    writes: Vec<(u64, Vec<u8>)>,
}

fn one(chance: &mut Chance, dir: &Path, keys: &Keys) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialer = LinkDialer {
        address: listener.local_addr().unwrap(),
        identity: Arc::clone(&keys.primary),
        fingerprint: keys.secondary.fingerprint(),
        options: LinkOptions::default(),
    };
    let pinned = keys.secondary.fingerprint();
    let mut config = store::config(dir, Role::Primary, pinned, Encryption::On);
    config.peer_timeout = Duration::from_secs(60);
    let datastore = store::open_with_fast_clock(&config).unwrap();
    let running = Running::start(datastore, Some(Box::new(dialer)));
    let file = running
        .datastore
        .store()
        .tree()
        .lookup(Ino::ROOT, &file_name("f5"));
    let file = file.unwrap().ino;
    let connections = chance.within(1..4);
    let mut other = chance.fork();
    let acknowledged = thread::scope(|scope| {
        scope.spawn(move || {
            let mut known = PeerState::of(&mut other, store::UUID);
            for _ in 0..connections {
                let (socket, _) = listener.accept().unwrap();
                let pinned = BTreeSet::from([keys.primary.fingerprint()]);
                let options = LinkOptions::default();
                if let Ok(connection) = accept(socket, &keys.secondary, &pinned, &options) {
                    answer_badly(&mut other, &mut known, connection);
                }
            }
            // No thread accepts connections from now on.
        });
        if chance.percent(30) {
            // Its outcome depends on the other end.
            let datastore = Arc::clone(&running.datastore);
            scope.spawn(move || drop(datastore.verify(VerifyMode::Repair, &mut |_| {})));
        }
        work(chance, &Client::of(&running.datastore), file)
    });
    running.stop();
    let again = Running::start(store::open_with_fast_clock(&config).unwrap(), None);
    check(&again, file, &acknowledged);
    again.stop();
    store::manifest(dir).unwrap();
}

/// The other end: sends a greeting, then answers each message rightly, wrongly, twice or not at all.
fn answer_badly(chance: &mut Chance, known: &mut PeerState, connection: Connection) {
    let (sender, mut receiver) = connection.split();
    let patience = Duration::from_millis(100);
    receiver.set_timeout(Some(patience)).unwrap();
    loop {
        let Ok(envelope) = receive(&mut receiver) else {
            return;
        };
        assert_eq!(envelope.datastore, known.datastore);
        let theirs = match envelope.message {
            Message::RoleOffer(theirs) => theirs,
            Message::Hello(hello) => {
                if let Some(secret) = &hello.sum_secret {
                    receiver.use_sum_key(&Arc::new(SumKey::new(secret)));
                }
                break;
            }
            _ => break,
        };
        let own = messages::meet(chance, known, Role::Secondary, Some(theirs.record));
        if !send(chance, &sender, known, Message::RoleOffer(own)) {
            return;
        }
    }
    let welcome = if chance.percent(95) {
        Message::Welcome(messages::welcome(chance, known))
    } else {
        messages::any(chance, known)
    };
    if !send(chance, &sender, known, welcome) {
        return;
    }
    // A mostly honest peer gets further.
    let honest = *chance.pick(&[0, 50, 90, 99, 100]);
    let mut pings = 0;
    for _ in 0..chance.within(0..ANSWERED_MAX) {
        let Ok(envelope) = receive(&mut receiver) else {
            return;
        };
        pings += u32::from(matches!(envelope.message, Message::Ping { .. }));
        if pings > PINGS_MAX {
            return;
        }
        let answer = if chance.percent(honest) {
            right_answer(&envelope.message, known)
        } else {
            Some(messages::of_secondary(chance, known))
        };
        let times = if chance.percent(honest) {
            1
        } else {
            chance.within(0..3)
        };
        for answer in answer
            .iter()
            .cycle()
            .take(answer.iter().len() * usize::try_from(times).unwrap())
        {
            if !send(chance, &sender, known, answer.clone()) {
                return;
            }
        }
    }
}

fn receive(receiver: &mut Receiver) -> Result<Envelope, lockstep_link::LinkError> {
    let frame = receiver.recv()?;
    Ok(Envelope::decode(frame.header).unwrap())
}

fn send(chance: &mut Chance, sender: &Sender, known: &PeerState, message: Message) -> bool {
    let envelope = messages::envelope(chance, known, message);
    let payload = if chance.percent(90) {
        Vec::new()
    } else {
        bytes::random(chance, 5000)
    };
    let header = messages::header(chance, known, &envelope);
    sender.send(&header, Payload::of(&payload)).is_ok()
}

/// The answer of a secondary that accepts everything.
fn right_answer(message: &Message, known: &mut PeerState) -> Option<Message> {
    Some(match message {
        Message::Write(write) => Message::WriteAck {
            osn: write.osn,
            failed: None,
        },
        Message::Meta { op, .. } => {
            known.last = op.osn;
            Message::MetaAck {
                osn: op.osn,
                outcome: Ok(()),
            }
        }
        Message::Sync { id, .. } => Message::SyncAck {
            id: *id,
            failed: None,
        },
        Message::Announce { id, .. } => Message::Announced { id: *id },
        Message::Ping { .. } => Message::Pong {
            room: Room::ALL,
            disk_silent_ms: 0,
        },
        Message::Request {
            id,
            request: Request::EndImage { applied, .. },
        } => {
            known.last = *applied;
            Message::Response {
                id: *id,
                response: Ok(Response::Done),
            }
        }
        Message::Request { id, request } => Message::Response {
            id: *id,
            response: Ok(match request {
                Request::SetFiles { .. }
                | Request::CompareRecords { .. }
                | Request::CompareRun { .. }
                | Request::CompareBlocks { .. }
                | Request::CompareSums { .. }
                | Request::CompareHole { .. } => Response::Differing(vec![0x55; 40]),
                Request::DigestOfBatch { to, .. } => Response::DigestOfBatch {
                    to: *to,
                    hash: Hash128::of(&[]),
                    sums: SumsWord::default(),
                },
                Request::Digests { to, .. } => Response::Digests {
                    to: *to,
                    digests: Vec::new(),
                    sums: SumsWord::default(),
                },
                _ => Response::Done,
            }),
        },
        _ => return None,
    })
}

/// Runs the operations of clients and waits for every answer: the other end disconnects sooner or later.
fn work(chance: &mut Chance, client: &Client, file: Ino) -> Acknowledged {
    let (mut making, mut writing, mut syncing) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..chance.within(1..OPERATIONS_MAX) {
        match chance.within(0..3) {
            0 => {
                let name = format!("new{number}");
                let (_, made) = client.begin_create(&name, NodeKind::File, &[]);
                making.push((name, made));
            }
            1 => {
                let data = vec![number.to_le_bytes()[0] + 1; bytes::index(chance, 20_000)];
                let (offset, durable) = (number * WRITE_EVERY, chance.percent(30));
                let written = client.begin_write(file, offset, &data, durable);
                writing.push((offset, data, written));
            }
            _ => syncing.push(client.begin_sync(file)),
        }
        chance.pause(Duration::from_millis(3));
    }
    for synced in syncing {
        synced.get().unwrap();
    }
    Acknowledged {
        names: making
            .into_iter()
            .filter_map(|(name, made)| made.get().is_ok().then_some(name))
            .collect(),
        writes: writing
            .into_iter()
            .filter_map(|(offset, data, done)| done.get().is_ok().then_some((offset, data)))
            .collect(),
    }
}

fn check(running: &Running, file: Ino, acknowledged: &Acknowledged) {
    let store = running.datastore.store();
    for name in &acknowledged.names {
        let found = store.tree().lookup(Ino::ROOT, &file_name(name));
        found.unwrap_or_else(|error| panic!("{name} was acknowledged: {error}"));
    }
    for (offset, data) in &acknowledged.writes {
        let mut found = vec![0; data.len()];
        let length = store.read(file, *offset, &mut found).unwrap();
        assert!(
            length == data.len() && found == *data,
            "the write at {offset} was acknowledged"
        );
    }
}

fn file_name(name: &str) -> FileName {
    FileName::new(name.as_bytes()).unwrap()
}
