//! The start of a node whose address is not there yet, or whose predecessor has not ended yet.
//!
//! A process that was killed keeps its port, its control socket and the lock of its store until the last of its threads has
//! left the kernel. At boot an address may come after the node. So a start that meets one of these is tried again for a while.

use std::io;
use std::time::{Duration, Instant};

use lockstep_driver::DatastoreError;
use signal_hook::iterator::Signals;

use super::error::NodeError;
use crate::control::ControlError;

/// The longest wait for the end of another process. A process that was killed in the middle of a long flush ends when the
/// disk has answered.
const PREDECESSOR_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for an address of this server.
const ADDRESS_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The time for which a start that failed with this error is tried again; `None` if time does not help.
fn limit(error: &NodeError) -> Option<Duration> {
    match error {
        NodeError::Listen { source, .. } => match source.kind() {
            io::ErrorKind::AddrInUse => Some(PREDECESSOR_LIMIT),
            io::ErrorKind::AddrNotAvailable => Some(ADDRESS_LIMIT),
            _ => None,
        },
        NodeError::Control(ControlError::InUse { .. })
        | NodeError::Datastore(DatastoreError::InUse { .. }) => Some(PREDECESSOR_LIMIT),
        _ => None,
    }
}

/// Starts a node by `start`, again and again while waiting may help. `None` if a signal ends the wait.
pub(super) fn start<T>(
    signals: &mut Signals,
    mut start: impl FnMut() -> Result<T, NodeError>,
) -> Result<Option<T>, NodeError> {
    let begin = Instant::now();
    let mut is_told = false;
    loop {
        let error = match start() {
            Ok(node) => return Ok(Some(node)),
            Err(error) => error,
        };
        let left = limit(&error).and_then(|limit| limit.checked_sub(begin.elapsed()));
        let Some(left) = left else {
            return Err(error);
        };
        if !std::mem::replace(&mut is_told, true) {
            let error = error.to_string();
            tracing::warn!(
                error,
                wait_s = left.as_secs(),
                "cannot start yet: trying again"
            );
        }
        if signals.pending().next().is_some() {
            return Ok(None);
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(kind: io::ErrorKind) -> NodeError {
        NodeError::Listen {
            listen: "10.0.0.1:7400".to_owned(),
            source: kind.into(),
        }
    }

    #[test]
    fn a_start_waits_for_a_predecessor_and_for_an_address() {
        let mut signals = Signals::new([signal_hook::consts::SIGUSR2]).unwrap();
        let mut failures = vec![
            listen(io::ErrorKind::AddrNotAvailable),
            listen(io::ErrorKind::AddrInUse),
            NodeError::Datastore(DatastoreError::InUse {
                path: "/s".to_owned(),
            }),
        ];
        let started = start(&mut signals, || failures.pop().map_or(Ok(7), Err));
        assert_eq!(started.unwrap(), Some(7));
    }

    #[test]
    fn a_start_waits_for_nothing_else() {
        let mut signals = Signals::new([signal_hook::consts::SIGUSR2]).unwrap();
        let mut attempts = 0;
        let started = start(&mut signals, || {
            attempts += 1;
            Err::<(), _>(listen(io::ErrorKind::PermissionDenied))
        });
        assert!(started.is_err() && attempts == 1);
    }
}
