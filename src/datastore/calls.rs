//! Questions to the peer outside the path of clients' operations, and their answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_repl::message::Response;
use parking_lot::Mutex;

use super::host::{Host, Promise, promise};

/// An answer, or why there is none.
pub(super) type Answer = Result<Response, String>;

/// A question that waits for its answer.
struct Waiting {
    answer: Promise<Answer>,
    /// When it is overdue, as a moment of [`Host::now`].
    due: Duration,
}

/// Questions that wait for their answers.
#[derive(Default)]
pub(super) struct Calls {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
}

impl Calls {
    /// Asks by `send`, which is given the number of the question, and waits for the answer, which is
    /// overdue after `limit`. `None` when the connection is lost.
    pub fn ask(
        &self,
        host: &dyn Host,
        limit: Duration,
        send: impl FnOnce(u64) -> bool,
    ) -> Option<Answer> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, awaited) = promise(host);
        let due = host.now() + limit;
        self.waiting.lock().insert(id, Waiting { answer, due });
        if !send(id) {
            self.waiting.lock().remove(&id);
            return None;
        }
        awaited.get()
    }

    /// Gives an answer to whoever asked.
    pub fn answered(&self, id: u64, answer: Answer) {
        let asker = self.waiting.lock().remove(&id);
        if let Some(asker) = asker {
            asker.answer.keep(answer);
        }
    }

    /// Whether an answer is overdue at this moment.
    pub fn is_overdue(&self, now: Duration) -> bool {
        self.waiting.lock().values().any(|asked| asked.due <= now)
    }

    /// Ends all questions: the connection is lost.
    pub fn abandon(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop(waiting);
    }
}
