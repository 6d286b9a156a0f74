//! Requests to the peer outside the path of clients' operations, and their responses.
//!
//! The peer responds to one request after the other, in the order of the requests. So only the oldest request
//! can be overdue, and its time begins when it becomes the oldest. Time is counted in beats, the signs of life
//! of the peer: a delay of this node never makes the peer look late.
//!
//! A request with a payload waits for its room on the way ([`BulkPace`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_repl::message::{RequestFailure, Response};
use lockstep_types::time::millis;
use parking_lot::Mutex;

use super::bulk_pace::{BulkPace, Taken};
use crate::host::oneshot::{Awaited, Promise, promise};
use crate::host::{Gate, Host};

/// A response, or the peer's reason why there is none.
pub(crate) type Answer = Result<Response, RequestFailure>;

/// A request without a response so far.
struct PendingRequest {
    answer: Promise<Answer>,
    /// Number of beats that the peer may take.
    limit: u64,
    /// The room of its payload.
    room: Option<Taken>,
}

/// Requests that wait for their responses.
#[derive(Default)]
pub(crate) struct PendingRequests(Mutex<RequestTable>);

#[derive(Default)]
struct RequestTable {
    /// Number of the next request.
    next: u64,
    /// The requests by their numbers, the oldest first.
    waiting: BTreeMap<u64, PendingRequest>,
    /// Beats since the oldest request became the oldest.
    beats: u64,
    bulk: BulkPace,
}

impl RequestTable {
    /// Adds a request; returns its number.
    fn add(&mut self, request: PendingRequest) -> u64 {
        let id = self.next;
        self.next += 1;
        if self.waiting.is_empty() {
            self.beats = 0;
        }
        self.waiting.insert(id, request);
        id
    }

    fn remove(&mut self, id: u64) -> Option<PendingRequest> {
        self.beats = 0;
        self.waiting.remove(&id)
    }
}

impl PendingRequests {
    /// Sends a request by `send`, which gets the number of the request. The peer may take `limit` beats. Waits until there
    /// is room for `bytes` bytes on the way. Returns `None`, or a promise without a value, when the connection is lost.
    pub fn begin(
        &self,
        host: &dyn Host,
        limit: u64,
        bytes: usize,
        send: impl FnOnce(u64) -> bool,
    ) -> Option<Awaited<Answer>> {
        let (answer, awaited) = promise(host);
        let room = (bytes > 0).then(|| self.take_room(host, bytes as u64));
        let id = self.0.lock().add(PendingRequest {
            answer,
            limit,
            room,
        });
        if !send(id) {
            let unsent = self.0.lock().remove(id);
            if let Some(room) = unsent.as_ref().and_then(|unsent| unsent.room) {
                let gates = self.0.lock().bulk.cancel(room);
                open_all(gates);
            }
            return None;
        }
        Some(awaited)
    }

    /// Waits for room on the way. After the loss of the connection there is room at once.
    fn take_room(&self, host: &dyn Host, bytes: u64) -> Taken {
        loop {
            let gate = {
                let bulk = &mut self.0.lock().bulk;
                match bulk.take(bytes, millis(host.now())) {
                    Some(taken) => return taken,
                    None => bulk.gate(host),
                }
            };
            gate.wait();
        }
    }

    /// Completes a request.
    pub fn complete(&self, host: &dyn Host, id: u64, answer: Answer) {
        let (request, gates) = {
            let mut queue = self.0.lock();
            let request = queue.remove(id);
            let room = request.as_ref().and_then(|request| request.room);
            let gates = room.map(|room| queue.bulk.give_back(room, millis(host.now())));
            (request, gates.unwrap_or_default())
        };
        open_all(gates);
        if let Some(request) = request {
            request.answer.keep(answer);
        }
    }

    /// Counts a sign of life of the peer; returns whether the oldest request is overdue.
    pub fn beat(&self) -> bool {
        let mut queue = self.0.lock();
        queue.beats += 1;
        let oldest = queue.waiting.values().next();
        oldest.is_some_and(|oldest| queue.beats >= oldest.limit)
    }

    /// Drops all requests: the connection is lost.
    pub fn abandon(&self) {
        let (waiting, bulk) = {
            let mut queue = self.0.lock();
            let waiting = std::mem::take(&mut queue.waiting);
            (waiting, std::mem::take(&mut queue.bulk))
        };
        open_all(bulk.waiting);
        drop(waiting);
    }
}

fn open_all(gates: Vec<Arc<dyn Gate>>) {
    for gate in gates {
        gate.open();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::host::OsHost;

    #[test]
    fn only_the_oldest_request_is_overdue() {
        let host = Arc::new(OsHost::start("test").unwrap());
        let requests = Arc::new(PendingRequests::default());
        let (sent, numbers) = channel();
        let askers: Vec<_> = [4, 2]
            .into_iter()
            .map(|limit| {
                let (requests, host, sent) = (requests.clone(), host.clone(), sent.clone());
                let ask = move || {
                    let asked = requests.begin(&*host, limit, 0, |id| sent.send(id).is_ok());
                    asked.and_then(Awaited::get)
                };
                let asker = std::thread::spawn(ask);
                (asker, numbers.recv().unwrap())
            })
            .collect();
        let late: Vec<bool> = (0..4).map(|_| requests.beat()).collect();
        assert_eq!(late, [false, false, false, true]);
        let mut askers = askers.into_iter();
        let (first, id) = askers.next().unwrap();
        requests.complete(&*host, id, Ok(Response::Done));
        assert!(first.join().unwrap().is_some());
        let late: Vec<bool> = (0..2).map(|_| requests.beat()).collect();
        assert_eq!(
            late,
            [false, true],
            "the time of the second request begins now"
        );
        requests.abandon();
        for (asker, _) in askers {
            assert!(asker.join().unwrap().is_none());
        }
        assert!(!requests.beat());
        host.stop();
    }
}
