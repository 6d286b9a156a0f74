//! Operations that no program has asked for: on snapshots, and on the trash. A thread of the node submits one, and waits for the outcome.
//!
//! Invariant: no such thread outlasts its session. The end of a session, and the stop of a node, wait for the threads that work for them. An operation that waits for
//! the other node then may never have an outcome.

use std::sync::Arc;

use lockstep_types::{Errno, MetaRequest};
use parking_lot::Mutex;

use super::meta_pipeline::MetaPipeline;
use crate::engine::Engine;

/// Carries an operation out on both nodes.
///
/// # Errors
/// [`Errno::Again`] if the session ends, or the node stops, before the outcome is known. Otherwise the reason for which the operation is refused.
pub(crate) fn carry_out(
    request: MetaRequest,
    engine: &Engine,
    pipeline: &MetaPipeline,
) -> Result<(), Errno> {
    if pipeline.is_over() {
        return Err(Errno::Again);
    }
    let outcome = Arc::new(Mutex::new(None));
    let (slot, changes) = (Arc::clone(&outcome), Arc::clone(&engine.wakes.changes));
    let done = move |result: Result<_, Errno>| {
        *slot.lock() = Some(result.map(drop));
        changes.raise();
    };
    pipeline.submit(request, Box::new(done));
    engine.wait_until(None, || outcome.lock().is_some() || pipeline.is_over());
    outcome.lock().take().unwrap_or(Err(Errno::Again))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::datastore::Datastore;
    use crate::open::tests::Place;

    /// A thread that waits for longer waits forever.
    const LONG_ENOUGH: Duration = Duration::from_secs(60);

    /// Begins an operation on a thread of a primary that waits for its peer.
    fn begin(datastore: &Datastore) -> Receiver<Result<(), Errno>> {
        let session = datastore.primary().unwrap();
        let engine = Arc::clone(&session.engine);
        let (told, outcome) = channel();
        let pipeline = Arc::clone(&session.pipeline);
        session.replication.spawn(move || {
            let request = MetaRequest::TrashDrop { inos: Vec::new() };
            told.send(carry_out(request, &engine, &pipeline)).unwrap();
        });
        while session.replication.core.lock().in_flight().submitted == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        outcome
    }

    #[test]
    fn a_stop_does_not_wait_for_an_operation_that_waits_for_the_peer() {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let outcome = begin(&datastore);
        let stopping = Arc::clone(&datastore);
        let stop = thread::spawn(move || stopping.stop());
        assert_eq!(outcome.recv_timeout(LONG_ENOUGH), Ok(Err(Errno::Again)));
        stop.join().unwrap();
        datastore.close();
    }

    #[test]
    fn the_end_of_a_session_does_not_wait_for_such_an_operation() {
        let place = Place::in_sync();
        let datastore = place.start().unwrap();
        let outcome = begin(&datastore);
        let session = datastore.primary().unwrap();
        let retire = thread::spawn(move || session.retire("a test"));
        assert_eq!(outcome.recv_timeout(LONG_ENOUGH), Ok(Err(Errno::Again)));
        retire.join().unwrap();
        datastore.stop();
        datastore.close();
    }
}
