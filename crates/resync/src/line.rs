//! Orders under way: several are sent before the first is answered, so that the time of a round trip is not
//! paid for each.
//!
//! Bounds: [`BYTES_MAX`] and [`ORDERS_MAX`]. An order that fails is heard of at the latest in
//! [`Line::finish`]; what was sent behind it was done by then, which is harmless in a resync: it starts over.

use std::collections::VecDeque;

use lockstep_repl::message::{Request, Response};

use crate::{Asked, Peer, PeerError, ResyncError};

/// Most bytes of payload under way, but for one order that is larger alone.
const BYTES_MAX: usize = 4 << 20;
/// Most orders under way. The secondary takes 64 questions at once, and others ask, too.
const ORDERS_MAX: usize = 32;

/// An order that is not answered yet.
struct Order<'a> {
    what: &'static str,
    bytes: usize,
    answer: Asked<'a>,
}

/// Orders to the secondary, which it carries out one after the other.
pub(crate) struct Line<'a> {
    peer: &'a dyn Peer,
    under_way: VecDeque<Order<'a>>,
    bytes: usize,
}

impl<'a> Line<'a> {
    /// With no order in it.
    pub(crate) fn new(peer: &'a dyn Peer) -> Self {
        Self {
            peer,
            under_way: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Sends an order, as soon as there is room for it.
    pub(crate) fn send(
        &mut self,
        what: &'static str,
        request: Request,
        payload: &[u8],
    ) -> Result<(), ResyncError> {
        let bytes = payload.len();
        while self.under_way.len() >= ORDERS_MAX || self.bytes + bytes > BYTES_MAX {
            if !self.finish_oldest()? {
                break;
            }
        }
        let answer = self.peer.begin(request, payload);
        self.bytes += bytes;
        self.under_way.push_back(Order {
            what,
            bytes,
            answer,
        });
        Ok(())
    }

    /// Waits until all orders are carried out.
    pub(crate) fn finish(&mut self) -> Result<(), ResyncError> {
        while self.finish_oldest()? {}
        Ok(())
    }

    /// Waits for the oldest order; `false` when there is none.
    fn finish_oldest(&mut self) -> Result<bool, ResyncError> {
        let Some(order) = self.under_way.pop_front() else {
            return Ok(false);
        };
        self.bytes -= order.bytes;
        match (order.answer)()? {
            Response::Done => Ok(true),
            _ => Err(PeerError::Unexpected { what: order.what }.into()),
        }
    }
}
