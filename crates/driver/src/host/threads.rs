//! Threads without which a node cannot work.
//!
//! Invariant: none of them ends silently. A node without one of them would look alive and serve no peer, or hold
//! locks forever. Every other part can bear a stop at any instruction, so a panic stops the process.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::abort;
use std::thread::{Builder, JoinHandle};

/// Starts a thread. If the thread panics, the process ends at once.
///
/// # Errors
/// If the system gives no thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread = name.to_owned();
    Builder::new().name(name.to_owned()).spawn(move || {
        // No code looks at the state that the panic left half changed.
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
