//! The log of a node, on its standard error.
//!
//! The log must not report a failure where nothing has failed: an operator who is used to such lines overlooks
//! the others.

use std::fmt::Debug;
use std::io::IsTerminal;

use anyhow::{Context as _, Result};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Starts to log the events that pass the filter: the value of `--log`.
pub(crate) fn start(filter: &str) -> Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| {
        format!("--log {filter:?} is not a filter; write a level such as debug")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // An error of writing the log (a full disk, for example) must not stop the node.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter(AbortedReplyFilter);
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
    Ok(())
}

/// Drops the error that fuser logs when the kernel has aborted a request before its answer. At an unmount the
/// kernel aborts all requests that are under way.
struct AbortedReplyFilter;

impl<S> Filter<S> for AbortedReplyFilter {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        // The target of all events of the crate `log`, which fuser uses.
        if event.metadata().target() != "log" {
            return true;
        }
        let mut fields = EventFields::default();
        event.record(&mut fields);
        !fields.is_aborted_reply()
    }
}

/// The fields of an event that the filter needs.
#[derive(Default)]
struct EventFields {
    by_fuser: bool,
    message: String,
}

impl EventFields {
    fn is_aborted_reply(&self) -> bool {
        self.by_fuser
            && self.message.starts_with("Failed to send FUSE reply")
            && self.message.ends_with("(os error 2)")
    }
}

impl Visit for EventFields {
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
    fn the_reply_to_an_aborted_request_is_no_failure() {
        let log = Lines::default();
        let writer = log.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let logging = tracing_subscriber::registry().with(layer.with_filter(AbortedReplyFilter));
        tracing::subscriber::with_default(logging, || {
            let log_failure = |cause: &str| {
                tracing::error!(
                    target: "log",
                    { log.target = "fuser::reply" },
                    "Failed to send FUSE reply: {cause}"
                );
            };
            log_failure("No such file or directory (os error 2)");
            log_failure("Invalid argument (os error 22)");
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
