//! One thread carries the namespace over while another thread changes it, at any moment that the machine chooses.
//!
//! The other tests change records between two messages, and the simulator only where a thread calls the disk.
//! Real threads also change records while one message is being encoded.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockstep_repl::message::{Request, Response};
use lockstep_resync::{
    JobProgress, Peer, PeerError, ResyncError, ResyncSource, send_content, send_image, send_tail,
};
use lockstep_types::{Ino, MetaRequest, NodeKind};

use super::converge::assert_equal;
use super::nodes::{FreeLocks, LocalPeer, NoOperations, Node, name, new_resync};

/// Consecutive resyncs; each begins with the secondary's records from the previous resync.
const RESYNCS: usize = 2;
/// Files that stay: the records of two messages.
const FILES: usize = 4000;
/// Names that come and go before each answer. Each name changes three records, so every round leaves more records
/// than the tail may have, and all rounds run.
const TURNS: usize = 200;

/// The thread that makes and removes names.
#[derive(Default)]
struct Churn {
    stop: AtomicBool,
    turns: AtomicUsize,
}

impl Churn {
    /// Creates and removes names, one after the other, until `stop`. No name comes twice: the second
    /// time would repair an error of the first time. Also does the node's other work: the log is
    /// far smaller than the logged operations, so the thread makes a checkpoint as soon as one is due; and the thread
    /// lets the sender catch up.
    fn run(&self, primary: &Node) {
        let store = primary.store();
        while !self.stop.load(Ordering::Relaxed) {
            if store.image().changes_exceed() {
                std::thread::yield_now();
                continue;
            }
            come_and_go(primary);
            self.turns.fetch_add(1, Ordering::Relaxed);
            if store.needs_checkpoint() {
                store.checkpoint().unwrap();
            }
        }
    }
}

/// A secondary that answers only after the primary's clients have changed names.
struct SlowPeer<'a> {
    secondary: LocalPeer<'a>,
    primary: &'a Node,
    churn: &'a Churn,
}

impl Peer for SlowPeer<'_> {
    fn ask(&self, request: Request, payload: &[u8]) -> Result<Response, PeerError> {
        let until = self.churn.turns.load(Ordering::Relaxed) + TURNS;
        while self.churn.turns.load(Ordering::Relaxed) < until
            && !self.primary.store().image().changes_exceed()
        {
            std::thread::yield_now();
        }
        self.secondary.ask(request, payload)
    }
}

/// Creates and removes a name. The name precedes all others in the order of keys, so that the sender takes it at once
/// after the creation, and again after the removal, even if the sender has begun with other names.
fn come_and_go(primary: &Node) {
    let later = u64::MAX - primary.store().next_ino().unwrap().get();
    let text = later.to_string();
    let ino = primary.create(Ino::ROOT, &text, NodeKind::File).unwrap();
    assert!(primary.xattr(ino, "user.short", b"lived"));
    let unlink = MetaRequest::Unlink {
        parent: Ino::ROOT,
        name: name(&text),
    };
    assert!(primary.meta(unlink));
    assert!(primary.meta(MetaRequest::Reap { ino }));
}

/// Stops the churn even if the test fails: otherwise the other thread would never end.
struct Stop<'a>(&'a Churn);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Carries namespace and content over; names come and go until the tail.
fn resync_beside_changes(primary: &Node, secondary: &Node) -> Result<(), ResyncError> {
    let churn = Churn::default();
    let view = primary.store().tree();
    let source = ResyncSource::new(&view, primary.store());
    let changes = std::thread::scope(|scope| {
        let _stop = Stop(&churn);
        scope.spawn(|| churn.run(primary));
        let peer = SlowPeer {
            secondary: LocalPeer::new(secondary),
            primary,
            churn: &churn,
        };
        send_image(
            source,
            &peer,
            new_resync(None, primary.store()),
            &NoOperations,
        )
    })?;
    let peer = LocalPeer::new(secondary);
    send_tail(source, &peer, &changes)?;
    let progress = JobProgress::default();
    send_content(source, &peer, &FreeLocks, &progress, None, &drop)
}

#[test]
fn names_that_come_and_go_while_a_message_is_encoded_are_gone_on_both_nodes() {
    let (primary, secondary) = (Node::new(), Node::new());
    for number in 0..FILES {
        primary.create(Ino::ROOT, &format!("file {number}"), NodeKind::File);
    }
    for _ in 0..RESYNCS {
        resync_beside_changes(&primary, &secondary).unwrap();
        assert_equal(&primary, &secondary);
    }
}
