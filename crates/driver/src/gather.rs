//! Writes that go to the secondary together.
//!
//! Sending a small write costs a system call, a packet and the secondary's waking up, and hardly anything
//! for its bytes (docs/adr/0006). So where more requests wait already, one write may be left in the queue
//! of the connection, for the next to take along.
//!
//! Invariant: what was left goes with whatever is sent next, and without that as soon as
//! - the request that waited is taken up and is no write ([`FileService::hurry`]), or one that cannot start;
//! - the secondary answers anything: the reader sends what it finds in the queue before it waits again;
//! - a tick passes: for a request that is taken back before we see it (its program was killed), or refused,
//!   or that no thread comes to, as all of them are held up by this node's disk.
//!
//! [`FileService::hurry`]: crate::client::FileService::hurry

use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_link::{LinkError, SendFrames};
use lockstep_repl::core::ConnectionId;
use lockstep_repl::message::{Message, WriteMessage};
use lockstep_types::mutants::{Mutant, is_active};

use super::{Datastore, Link};
use crate::client::Waiting;

/// Largest write that may be left, in bytes: of a larger one the bytes are what costs.
const LEFT_BYTES_MAX: usize = 16 << 10;

/// Whether a write lies in the queue of a connection.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// It may: what was sent since took it along.
    left: AtomicBool,
}

impl Gathering {
    /// Sends a write, or leaves it for the next one.
    fn send(
        &self,
        sender: &dyn SendFrames,
        header: &[u8],
        data: &[u8],
        waiting: Option<&dyn Waiting>,
    ) -> Result<(), LinkError> {
        let is_first = !self.take();
        let may_be_left = is_first && data.len() <= LEFT_BYTES_MAX;
        let Some(waiting) = waiting.filter(|_| may_be_left) else {
            if is_active(Mutant::WaitToSend) {
                return sender.send(header, data);
            }
            return sender.post(header, data);
        };
        if sender.send_deferred(header, data)? {
            self.left.store(true, Ordering::Release);
            // Looked at after that, so whoever takes up the request that waits sees what was left.
            if !waiting.any() && self.take() {
                sender.flush_nowait()?;
            }
        }
        Ok(())
    }

    /// Whether there is one; the caller sends it then.
    fn take(&self) -> bool {
        self.left.load(Ordering::Acquire) && self.left.swap(false, Ordering::AcqRel)
    }
}

impl Datastore {
    /// Sends a write over a connection, if that still stands, or leaves it for the next one.
    pub(super) fn send_write_over(
        &self,
        connection: ConnectionId,
        write: WriteMessage,
        data: &[u8],
        waiting: Option<&dyn Waiting>,
    ) {
        let Some(link) = self.link_of(connection) else {
            return;
        };
        let waiting = waiting.filter(|_| !write.durable);
        let message = Message::Write(write);
        let done_below = self.core.lock().send(&message);
        let sender = &*link.sender;
        let gathering = &link.course.gathering;
        self.give_to(sender, done_below, message, |header| {
            gathering.send(sender, header, data, waiting)
        });
    }

    /// Sends the write that was left, if there is one, and what others queue meanwhile. Waits for nobody: who
    /// asks may be a client that needs nothing of the peer.
    pub(super) fn send_left(&self) {
        let has_left = |link: &&Link| link.course.gathering.take();
        let link = self.link.read().as_ref().filter(has_left).cloned();
        // That the connection is lost shows in its reader.
        if let Some(Link { sender, .. }) = link {
            let _flushed = sender.flush_nowait();
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// A connection that keeps what it is given; nobody else sends over it.
    #[derive(Default)]
    struct Kept {
        queued: Mutex<Vec<u8>>,
        sent: Mutex<Vec<u8>>,
    }

    impl SendFrames for Kept {
        fn send(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
            self.enqueue(header, payload)?;
            self.flush()
        }

        fn post(&self, header: &[u8], payload: &[u8]) -> Result<(), LinkError> {
            self.send(header, payload)
        }

        fn enqueue(&self, header: &[u8], _payload: &[u8]) -> Result<(), LinkError> {
            self.queued.lock().extend(header);
            Ok(())
        }

        fn send_deferred(&self, header: &[u8], payload: &[u8]) -> Result<bool, LinkError> {
            let is_only_one = self.queued.lock().is_empty();
            self.enqueue(header, payload)?;
            if !is_only_one {
                self.flush()?;
            }
            Ok(is_only_one)
        }

        fn flush(&self) -> Result<(), LinkError> {
            self.sent.lock().append(&mut self.queued.lock());
            Ok(())
        }

        fn flush_nowait(&self) -> Result<(), LinkError> {
            self.flush()
        }

        fn shutdown(&self, _reason: &str) {}
    }

    #[derive(Debug)]
    struct Always(bool);

    impl Waiting for Always {
        fn any(&self) -> bool {
            self.0
        }
    }

    /// What has left after each of the writes, by their names.
    fn sent_after(writes: &[(u8, usize, Option<bool>)]) -> Vec<Vec<u8>> {
        let (gathering, kept) = (Gathering::default(), Kept::default());
        let send = |(name, bytes, waits): &(u8, usize, Option<bool>)| {
            let waiting = waits.map(Always);
            let waiting = waiting.as_ref().map(|waiting| waiting as &dyn Waiting);
            let data = vec![0; *bytes];
            gathering.send(&kept, &[*name], &data, waiting).unwrap();
            kept.sent.lock().clone()
        };
        writes.iter().map(send).collect()
    }

    #[test]
    fn one_is_left_while_requests_wait_and_the_next_takes_it_along() {
        let busy = Some(true);
        let sent = sent_after(&[(b'a', 1, busy), (b'b', 1, busy), (b'c', 1, busy)]);
        assert_eq!(sent, [&b""[..], b"ab", b"ab"]);
        let sent = sent_after(&[(b'a', 1, busy), (b'b', 1, None), (b'c', 1, busy)]);
        assert_eq!(sent, [&b""[..], b"ab", b"ab"]);
    }

    #[test]
    fn none_is_left_where_nothing_waits_or_nobody_knows_or_bytes_count() {
        for waits in [Some(false), None] {
            assert_eq!(sent_after(&[(b'a', 1, waits)]), [b"a"]);
        }
        let large = LEFT_BYTES_MAX + 1;
        let sent = sent_after(&[
            (b'a', large, Some(true)),
            (b'b', 1, Some(true)),
            (b'c', large, Some(true)),
        ]);
        assert_eq!(sent, [&b"a"[..], b"a", b"abc"]);
    }

    #[test]
    fn who_hurries_learns_of_what_was_left_once() {
        let (gathering, kept) = (Gathering::default(), Kept::default());
        assert!(!gathering.take());
        let waiting = Always(true);
        gathering.send(&kept, b"a", &[1], Some(&waiting)).unwrap();
        assert!(kept.sent.lock().is_empty());
        assert!(gathering.take() && !gathering.take());
    }

    /// Who takes up the request that waited sends what it finds, at whatever moment that is.
    #[test]
    fn what_is_left_while_the_request_is_taken_up_is_sent_by_one_of_the_two() {
        #[derive(Debug)]
        struct TakenUp<'a>(&'a Gathering);

        impl Waiting for TakenUp<'_> {
            fn any(&self) -> bool {
                assert!(self.0.take(), "not seen by who takes the request up");
                false
            }
        }

        let (gathering, kept) = (Gathering::default(), Kept::default());
        let waiting = TakenUp(&gathering);
        gathering.send(&kept, b"a", &[1], Some(&waiting)).unwrap();
        assert!(kept.sent.lock().is_empty() && !gathering.take());
    }
}
