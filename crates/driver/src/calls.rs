//! Questions to the peer outside the path of clients' operations, and their answers.
//!
//! The peer answers one after the other, in the order in which it was asked. So only the oldest question
//! can be overdue, and its time runs from when it became the oldest. Time is counted in beats, signs of
//! life that the peer has given: what holds up this node does not make the peer look late.

use std::collections::BTreeMap;

use lockstep_repl::message::{RequestFailure, Response};
use parking_lot::Mutex;

use super::host::{Awaited, Host, Promise, promise};

/// An answer, or why there is none.
pub(super) type Answer = Result<Response, RequestFailure>;

/// A question that waits for its answer.
struct Waiting {
    answer: Promise<Answer>,
    /// How many beats the peer may take over it.
    limit: u64,
}

/// Questions that wait for their answers.
#[derive(Default)]
pub(super) struct Calls(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    /// The number of the next.
    next: u64,
    /// By their numbers: the oldest first.
    waiting: BTreeMap<u64, Waiting>,
    /// Beats since the oldest has become that.
    beats: u64,
}

impl Asked {
    fn remove(&mut self, id: u64) -> Option<Waiting> {
        self.beats = 0;
        self.waiting.remove(&id)
    }
}

impl Calls {
    /// Asks by `send`, which is given the number of the question. The peer may take `limit` beats over the
    /// answer. `None`, or no answer, when the connection is lost.
    pub fn begin(
        &self,
        host: &dyn Host,
        limit: u64,
        send: impl FnOnce(u64) -> bool,
    ) -> Option<Awaited<Answer>> {
        let (answer, awaited) = promise(host);
        let id = {
            let mut asked = self.0.lock();
            let id = asked.next;
            asked.next += 1;
            if asked.waiting.is_empty() {
                asked.beats = 0;
            }
            asked.waiting.insert(id, Waiting { answer, limit });
            id
        };
        if !send(id) {
            let unsent = self.0.lock().remove(id);
            drop(unsent);
            return None;
        }
        Some(awaited)
    }

    /// Gives an answer to whoever asked.
    pub fn answered(&self, id: u64, answer: Answer) {
        let asker = self.0.lock().remove(id);
        if let Some(asker) = asker {
            asker.answer.keep(answer);
        }
    }

    /// The peer has given a sign of life. Whether an answer is overdue now.
    pub fn beat(&self) -> bool {
        let mut asked = self.0.lock();
        asked.beats += 1;
        let oldest = asked.waiting.values().next();
        oldest.is_some_and(|oldest| asked.beats >= oldest.limit)
    }

    /// Ends all questions: the connection is lost.
    pub fn abandon(&self) {
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::host::Machine;

    #[test]
    fn only_the_oldest_question_is_ever_overdue() {
        let machine = Arc::new(Machine::start("test").unwrap());
        let calls = Arc::new(Calls::default());
        let (sent, numbers) = channel();
        let askers: Vec<_> = [4, 2]
            .into_iter()
            .map(|limit| {
                let (calls, machine, sent) = (calls.clone(), machine.clone(), sent.clone());
                let ask = move || {
                    let asked = calls.begin(&*machine, limit, |id| sent.send(id).is_ok());
                    asked.and_then(Awaited::get)
                };
                let asker = std::thread::spawn(ask);
                (asker, numbers.recv().unwrap())
            })
            .collect();
        let late: Vec<bool> = (0..4).map(|_| calls.beat()).collect();
        assert_eq!(late, [false, false, false, true]);
        let mut askers = askers.into_iter();
        let (first, id) = askers.next().unwrap();
        calls.answered(id, Ok(Response::Done));
        assert!(first.join().unwrap().is_some());
        let late: Vec<bool> = (0..2).map(|_| calls.beat()).collect();
        assert_eq!(late, [false, true], "the second has its own time now");
        calls.abandon();
        for (asker, _) in askers {
            assert!(asker.join().unwrap().is_none());
        }
        assert!(!calls.beat());
        machine.stop();
    }
}
