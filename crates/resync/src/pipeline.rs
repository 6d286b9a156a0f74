//! Requests under way: the primary sends several before the first answer, so that each request does not cost the time of
//! a round trip.
//!
//! Bounds: [`BYTES_MAX`] and [`REQUESTS_MAX`]. The sender learns of a failed request in [`RequestPipeline::finish`] at
//! the latest. By then the secondary has carried out the later requests, which is harmless: the resync starts over.

use std::collections::VecDeque;

use lockstep_repl::message::{Request, Response};

use crate::api::{Peer, PeerError, PendingAnswer, ResyncError};

/// Most bytes of payload under way. One larger request alone may have more.
const BYTES_MAX: usize = 4 << 20;
/// Most requests under way. The secondary takes 64 at once, and other threads of the primary ask, too.
const REQUESTS_MAX: usize = 32;

/// A request without an answer yet.
struct SentRequest<'a> {
    what: &'static str,
    bytes: usize,
    answer: PendingAnswer<'a>,
}

/// Requests to the secondary, which carries them out in order.
pub(crate) struct RequestPipeline<'a> {
    peer: &'a dyn Peer,
    under_way: VecDeque<SentRequest<'a>>,
    bytes: usize,
}

impl<'a> RequestPipeline<'a> {
    /// An empty pipeline.
    pub(crate) fn new(peer: &'a dyn Peer) -> Self {
        Self {
            peer,
            under_way: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Sends a request, as soon as there is room for it.
    pub(crate) fn send(
        &mut self,
        what: &'static str,
        request: Request,
        payload: &[u8],
    ) -> Result<(), ResyncError> {
        let bytes = payload.len();
        while self.under_way.len() >= REQUESTS_MAX || self.bytes + bytes > BYTES_MAX {
            if !self.finish_oldest()? {
                break;
            }
        }
        let answer = self.peer.begin(request, payload);
        self.bytes += bytes;
        self.under_way.push_back(SentRequest {
            what,
            bytes,
            answer,
        });
        Ok(())
    }

    /// Waits until all requests are carried out.
    pub(crate) fn finish(&mut self) -> Result<(), ResyncError> {
        while self.finish_oldest()? {}
        Ok(())
    }

    /// Waits for the oldest request; `false` when there is none.
    fn finish_oldest(&mut self) -> Result<bool, ResyncError> {
        let Some(sent) = self.under_way.pop_front() else {
            return Ok(false);
        };
        self.bytes -= sent.bytes;
        match (sent.answer)()? {
            Response::Done => Ok(true),
            _ => Err(PeerError::Unexpected { what: sent.what }.into()),
        }
    }
}
