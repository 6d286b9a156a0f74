//! The log of a node, on its standard error.
//!
//! Holds no line that tells of a failure where nothing has failed: an operator who is used to such lines
//! overlooks the others.

use std::fmt::Debug;
use std::io::IsTerminal;

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Logs what the filter lets through, from now on.
pub(crate) fn start(filter: EnvFilter) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // A log that cannot be written (its disk is full, say) stops nothing.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter(Failures);
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
}

/// Leaves out what fuser takes for a failure: the kernel has given up a request before the answer to it came,
/// as it does with what is under way when a mount is taken away.
struct Failures;

impl<S> Filter<S> for Failures {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        // What was logged by the crate `log`, as fuser does.
        if event.metadata().target() != "log" {
            return true;
        }
        let mut told = Told::default();
        event.record(&mut told);
        !told.is_answer_given_up()
    }
}

/// What an event says.
#[derive(Default)]
struct Told {
    by_fuser: bool,
    message: String,
}

impl Told {
    fn is_answer_given_up(&self) -> bool {
        self.by_fuser
            && self.message.starts_with("Failed to send FUSE reply")
            && self.message.ends_with("(os error 2)")
    }
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "log.target" {
            self.by_fuser = value == "fuser::reply";
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A log that a test reads.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_answer_that_the_kernel_does_not_want_any_more_is_no_failure() {
        let log = Lines::default();
        let writer = log.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let logging = tracing_subscriber::registry().with(layer.with_filter(Failures));
        tracing::subscriber::with_default(logging, || {
            let told = |cause: &str| {
                tracing::error!(
                    target: "log",
                    { log.target = "fuser::reply" },
                    "Failed to send FUSE reply: {cause}"
                );
            };
            told("No such file or directory (os error 2)");
            told("Invalid argument (os error 22)");
            tracing::error!("ours (os error 2)");
        });
        let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(!logged.contains("No such file"), "{logged}");
        assert!(
            logged.contains("Invalid argument") && logged.contains("ours"),
            "{logged}"
        );
    }
}
