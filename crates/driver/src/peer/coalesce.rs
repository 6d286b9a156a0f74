//! Writes that leave for the secondary together.
//!
//! A small write costs a system call, a packet and a wake-up of the secondary; its bytes cost almost nothing
//! (docs/adr/0006). So while more requests wait, one write may be deferred: it stays in the queue of the
//! connection, and the next message takes it along.
//!
//! Invariant: a deferred write leaves with the next message, and without one as soon as
//! - a thread takes up the waiting request, and the request is no write
//!   ([`FileService::flush_deferred_writes`]) or cannot start;
//! - the secondary answers anything: the reader flushes the queue before it waits again;
//! - a tick passes. The kernel may withdraw the request before a thread sees it (its program was killed), the
//!   request may be refused, or this node's disk may hold up all threads.
//!
//! [`FileService::flush_deferred_writes`]: crate::client::FileService::flush_deferred_writes

use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_link::{LinkError, Payload, SendFrames};
use lockstep_types::mutants::{Mutant, is_active};

use crate::client::WaitingRequests;

/// Largest write that may be deferred, in bytes. The cost of a larger one lies in its bytes.
const DEFERRED_BYTES_MAX: usize = 16 << 10;

/// Sends without waiting for the peer.
pub(super) fn post(
    sender: &dyn SendFrames,
    header: &[u8],
    payload: Payload<'_>,
) -> Result<(), LinkError> {
    if is_active(Mutant::WaitToSend) {
        return sender.send(header, payload);
    }
    sender.post(header, payload)
}

/// Whether a deferred write may lie in the queue of a connection.
#[derive(Debug, Default)]
pub(crate) struct WriteCoalescer {
    /// May be set although a later message has taken the write along.
    has_deferred: AtomicBool,
}

impl WriteCoalescer {
    /// Sends a write, or defers it for the next one.
    pub fn send(
        &self,
        sender: &dyn SendFrames,
        header: &[u8],
        data: Payload<'_>,
        waiting: Option<&dyn WaitingRequests>,
    ) -> Result<(), LinkError> {
        let is_first = !self.take();
        let is_deferrable = is_first && data.bytes.len() <= DEFERRED_BYTES_MAX;
        let Some(waiting) = waiting.filter(|_| is_deferrable) else {
            return post(sender, header, data);
        };
        if sender.send_deferred(header, data)? {
            self.has_deferred.store(true, Ordering::Release);
            // The flag is set before this look, so a thread that takes up the waiting request sees the flag.
            if !waiting.any() && self.take() {
                sender.flush_nowait()?;
            }
        }
        Ok(())
    }

    /// Returns whether there may be a deferred write, which the caller sends then.
    pub fn take(&self) -> bool {
        let flag = &self.has_deferred;
        flag.load(Ordering::Acquire) && flag.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// A sending half that records its frames. One thread uses it.
    #[derive(Default)]
    pub(crate) struct Recorder {
        queued: Mutex<Vec<u8>>,
        sent: Mutex<Vec<u8>>,
    }

    impl SendFrames for Recorder {
        fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
            self.enqueue(header, payload)?;
            self.flush()
        }

        fn post(&self, header: &[u8], payload: Payload<'_>) -> Result<(), LinkError> {
            self.send(header, payload)
        }

        fn enqueue(&self, header: &[u8], _payload: Payload<'_>) -> Result<(), LinkError> {
            self.queued.lock().extend(header);
            Ok(())
        }

        fn send_deferred(&self, header: &[u8], payload: Payload<'_>) -> Result<bool, LinkError> {
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

    impl WaitingRequests for Always {
        fn any(&self) -> bool {
            self.0
        }
    }

    /// The frames that have left after each of the writes, by their names.
    fn sent_after(writes: &[(u8, usize, Option<bool>)]) -> Vec<Vec<u8>> {
        let (coalescer, recorder) = (WriteCoalescer::default(), Recorder::default());
        let send = |(name, bytes, waits): &(u8, usize, Option<bool>)| {
            let waiting = waits.map(Always);
            let waiting = waiting
                .as_ref()
                .map(|waiting| waiting as &dyn WaitingRequests);
            let data = vec![0; *bytes];
            coalescer
                .send(&recorder, &[*name], Payload::of(&data), waiting)
                .unwrap();
            recorder.sent.lock().clone()
        };
        writes.iter().map(send).collect()
    }

    #[test]
    fn a_write_is_deferred_while_requests_wait_and_the_next_takes_it_along() {
        let busy = Some(true);
        let sent = sent_after(&[(b'a', 1, busy), (b'b', 1, busy), (b'c', 1, busy)]);
        assert_eq!(sent, [&b""[..], b"ab", b"ab"]);
        let sent = sent_after(&[(b'a', 1, busy), (b'b', 1, None), (b'c', 1, busy)]);
        assert_eq!(sent, [&b""[..], b"ab", b"ab"]);
    }

    #[test]
    fn no_write_is_deferred_without_a_waiting_request_or_if_it_is_large() {
        for waits in [Some(false), None] {
            assert_eq!(sent_after(&[(b'a', 1, waits)]), [b"a"]);
        }
        let large = DEFERRED_BYTES_MAX + 1;
        let sent = sent_after(&[
            (b'a', large, Some(true)),
            (b'b', 1, Some(true)),
            (b'c', large, Some(true)),
        ]);
        assert_eq!(sent, [&b"a"[..], b"a", b"abc"]);
    }

    #[test]
    fn a_deferred_write_is_taken_once() {
        let (coalescer, recorder) = (WriteCoalescer::default(), Recorder::default());
        assert!(!coalescer.take());
        let waiting = Always(true);
        coalescer
            .send(&recorder, b"a", Payload::of(&[1]), Some(&waiting))
            .unwrap();
        assert!(recorder.sent.lock().is_empty());
        assert!(coalescer.take() && !coalescer.take());
    }

    /// The thread that takes up the waiting request may look at any moment.
    #[test]
    fn a_write_deferred_while_the_request_is_taken_up_is_sent_by_one_of_the_two() {
        #[derive(Debug)]
        struct TakenUp<'a>(&'a WriteCoalescer);

        impl WaitingRequests for TakenUp<'_> {
            fn any(&self) -> bool {
                assert!(
                    self.0.take(),
                    "the thread that takes the request up does not see the write"
                );
                false
            }
        }

        let (coalescer, recorder) = (WriteCoalescer::default(), Recorder::default());
        let waiting = TakenUp(&coalescer);
        coalescer
            .send(&recorder, b"a", Payload::of(&[1]), Some(&waiting))
            .unwrap();
        assert!(recorder.sent.lock().is_empty() && !coalescer.take());
    }
}
