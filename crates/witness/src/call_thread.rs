//! The thread that runs the asynchronous calls of a client, so that threads without a runtime can make calls and wait.
//!
//! A call that has reached its limit is dropped. The drop of a [`CallThread`] ends all calls.

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Time beyond the limit of a call for its outcome to reach the caller.
const GRACE: Duration = Duration::from_millis(50);

/// A runtime on a thread of its own.
#[derive(Debug)]
pub(crate) struct CallThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CallThread {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("witness calls".to_owned())
            .spawn(move || {
                // An error means that the sender was dropped, which asks for the stop as well.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_background();
            })?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Runs a call and waits for its outcome; `None` at the limit.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            let outcome = tokio::time::timeout(limit, call).await.ok();
            // The caller may have given up.
            let _ = sender.send(outcome);
        });
        receiver.recv_timeout(limit + GRACE).ok().flatten()
    }
}

impl Drop for CallThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_at_its_limit_and_others_go_on() {
        let thread = CallThread::start().unwrap();
        let endless = std::future::pending::<()>();
        assert_eq!(thread.call(Duration::from_millis(1), endless), None);
        let outcome = thread.call(Duration::from_secs(60), async { 7 });
        assert_eq!(outcome, Some(7));
    }
}
