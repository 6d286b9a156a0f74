//! Questions to the peer outside the path of clients' operations, and their answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};

use lockstep_repl::message::Response;
use parking_lot::Mutex;

/// An answer, or why there is none.
pub(super) type Answer = Result<Response, String>;

/// Questions that wait for their answers.
#[derive(Default)]
pub(super) struct Calls {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Sender<Answer>>>,
}

impl Calls {
    /// Asks by `send`, which is given the number of the question, and waits for the answer. `None`
    /// when the connection is lost.
    pub fn ask(&self, send: impl FnOnce(u64) -> bool) -> Option<Answer> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = channel();
        self.waiting.lock().insert(id, sender);
        if !send(id) {
            self.waiting.lock().remove(&id);
            return None;
        }
        receiver.recv().ok()
    }

    /// Gives an answer to whoever asked.
    pub fn answered(&self, id: u64, answer: Answer) {
        if let Some(asker) = self.waiting.lock().remove(&id) {
            // Whoever no longer listens does not need it.
            let _told = asker.send(answer);
        }
    }

    /// Ends all questions: the connection is lost.
    pub fn abandon(&self) {
        self.waiting.lock().clear();
    }
}
