//! The namespace is carried over by one thread while another changes it, at any moment that the machine chooses.
//!
//! The other tests change something between two messages, and the simulator only where a thread calls the disk.
//! Real threads also change records while one message is put together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lockstep_repl::message::{Request, Response};
use lockstep_resync::{
    Peer, PeerError, Progress, ResyncError, send_content, send_image, send_tail,
};
use lockstep_types::{Ino, MetaRequest, NodeKind, SyncId};

use super::converge::assert_equal;
use super::nodes::{FreeLocks, NoOperations, Node, PeerAtHand, name};

/// Resyncs in a row, each of which begins with what the one before has left on the secondary.
const RESYNCS: usize = 2;
/// Files that stay: the records of two messages.
const FILES: usize = 4000;
/// Names that come and go before a message is answered. As each changes three records, there are more left in
/// every round than may be in the tail, so that all rounds are gone through.
const TURNS: usize = 200;

/// The thread that makes and removes names.
#[derive(Default)]
struct Churn {
    stop: AtomicBool,
    turns: AtomicUsize,
}

impl Churn {
    /// Makes and removes names, one after the other, until it is told to stop. No name comes twice: the second
    /// time would put right what was wrong the first time. Does what the node does beside that: as the log is
    /// far smaller than what is logged, it makes a checkpoint as soon as one is due; and it lets the sender catch
    /// up.
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

/// A secondary that answers when the primary's clients have done something meanwhile.
struct SlowPeer<'a> {
    secondary: PeerAtHand<'a>,
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

/// A name that comes and goes. In the order of keys it is before all others, so that it is taken at once when it
/// has come, and again when it has gone, also by whoever has begun with others.
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

/// Ends the churning also when the test fails meanwhile: or the other thread would never end.
struct Stop<'a>(&'a Churn);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Carries everything over; names come and go until the tail.
fn resync_beside_changes(primary: &Node, secondary: &Node) -> Result<(), ResyncError> {
    let sync = SyncId::next(None, [1; 16]);
    let churn = Churn::default();
    let changes = std::thread::scope(|scope| {
        let _stop = Stop(&churn);
        scope.spawn(|| churn.run(primary));
        let peer = SlowPeer {
            secondary: PeerAtHand::new(secondary),
            primary,
            churn: &churn,
        };
        send_image(primary.store(), &peer, sync, &NoOperations)
    })?;
    let peer = PeerAtHand::new(secondary);
    send_tail(primary.store(), &peer, &changes)?;
    let progress = Progress::default();
    send_content(primary.store(), &peer, &FreeLocks, &progress)
}

#[test]
fn names_that_come_and_go_while_a_message_is_put_together_are_gone_on_both_nodes() {
    let (primary, secondary) = (Node::new(), Node::new());
    for number in 0..FILES {
        primary.create(Ino::ROOT, &format!("file {number}"), NodeKind::File);
    }
    for _ in 0..RESYNCS {
        resync_beside_changes(&primary, &secondary).unwrap();
        assert_equal(&primary, &secondary);
    }
}
