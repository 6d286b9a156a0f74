//! The namespace is carried over by one thread while another changes it, at any moment that the machine chooses.
//!
//! The other tests change something between two messages, and the simulator only where a thread calls the disk.
//! Real threads also change records while one message is put together.

use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_resync::{Progress, ResyncError, send_content, send_image, send_tail};
use lockstep_types::{Ino, MetaRequest, NodeKind, SyncId};

use super::converge::assert_equal;
use super::nodes::{FreeLocks, NoOperations, Node, PeerAtHand, name};

/// Resyncs in a row, each of which begins with what the one before has left on the secondary.
const RESYNCS: usize = 8;
/// Files that stay: the records of two messages.
const FILES: usize = 4000;

/// Makes and removes names, one after the other, until it is told to stop. No name comes twice: the second time
/// would put right what was wrong the first time. Does what the node does beside that: as the log is far smaller
/// than what is logged, it makes a checkpoint as soon as one is due; and it lets the sender catch up.
fn churn(primary: &Node, stop: &AtomicBool) {
    let store = primary.store();
    while !stop.load(Ordering::Relaxed) {
        if store.changes_exceed() {
            std::thread::yield_now();
            continue;
        }
        come_and_go(primary);
        if store.needs_checkpoint() {
            store.checkpoint().unwrap();
        }
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
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Carries everything over; names come and go until the tail.
fn resync_beside_changes(primary: &Node, secondary: &Node) -> Result<(), ResyncError> {
    let peer = PeerAtHand::new(secondary);
    let sync = SyncId::next(None, [1; 16]);
    let stop = AtomicBool::new(false);
    let changes = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| churn(primary, &stop));
        send_image(primary.store(), &peer, sync, &NoOperations)
    })?;
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
