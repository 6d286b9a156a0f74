//! Threads that a node cannot do without.
//!
//! Invariant: none of them ends in silence. Half a node is worse than none: it would look alive and
//! serve no peer, or hold locks for ever. A stop at any instruction is what everything else is
//! made for, so a panic stops the process.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::abort;
use std::thread::{Builder, JoinHandle};

/// Starts a thread; should it panic, the process ends at once.
///
/// # Errors
/// When the system gives no thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread = name.to_owned();
    Builder::new().name(name.to_owned()).spawn(move || {
        // Nothing of what the panic left half done is looked at again.
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            tracing::error!(thread, "a thread panicked");
            stop_process();
        }
    })
}

/// Ends the process at once, after a panic.
pub fn stop_process() -> ! {
    tracing::error!("a broken invariant of lockstep: this process stops; start the node again");
    abort()
}
