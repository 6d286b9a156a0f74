//! The start of a node whose address is not there yet, or whose predecessor has not ended yet.
//!
//! A process that was killed keeps its port, its control socket and the lock of its store until the last of its threads has
//! left the kernel. At boot an address may come after the node. So a start that meets one of these is tried again for a while.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use lockstep_driver::DatastoreError;

use super::error::NodeError;
use crate::control::ControlError;
use crate::signals::ShutdownRequests;

/// The longest wait for the end of another process. A process that was killed in the middle of a long flush ends when the
/// disk has answered.
const PREDECESSOR_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for an address of this server.
const ADDRESS_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The event that a start waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Obstacle {
    /// Another process has a port, the control socket or a store.
    Predecessor,
    /// This server does not have the address yet.
    Address,
}

impl Obstacle {
    /// The cause of a failed start; `None` if time does not help.
    fn of(error: &NodeError) -> Option<Self> {
        match error {
            NodeError::Listen { source, .. } => match source.kind() {
                io::ErrorKind::AddrInUse => Some(Self::Predecessor),
                io::ErrorKind::AddrNotAvailable => Some(Self::Address),
                _ => None,
            },
            NodeError::Control(ControlError::InUse { .. })
            | NodeError::Datastore(DatastoreError::InUse { .. })
            | NodeError::NoneStarted {
                is_one_in_use: true,
                ..
            } => Some(Self::Predecessor),
            _ => None,
        }
    }

    const fn limit(self) -> Duration {
        match self {
            Self::Predecessor => PREDECESSOR_LIMIT,
            Self::Address => ADDRESS_LIMIT,
        }
    }
}

/// When each obstacle was met first. An address that comes late leaves a predecessor its time.
#[derive(Default)]
struct Patience(HashMap<Obstacle, Instant>);

impl Patience {
    /// The time that is left for an obstacle; `None` if that is over.
    fn left(&mut self, obstacle: Obstacle, now: Instant) -> Option<Duration> {
        let met = *self.0.entry(obstacle).or_insert(now);
        let waited = now.saturating_duration_since(met);
        obstacle.limit().checked_sub(waited)
    }
}

/// Starts a node by `start`, again and again while waiting may help. `None` if a signal ends the wait.
pub(super) fn start<T>(
    requests: &mut ShutdownRequests,
    mut start: impl FnMut() -> Result<T, NodeError>,
) -> Result<Option<T>, NodeError> {
    let mut patience = Patience::default();
    let mut is_told = false;
    loop {
        let error = match start() {
            Ok(node) => return Ok(Some(node)),
            Err(error) => error,
        };
        let obstacle = Obstacle::of(&error);
        let left = obstacle.and_then(|obstacle| patience.left(obstacle, Instant::now()));
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
        if requests.wait(Some(RETRY_INTERVAL)).is_some() {
            return Ok(None);
        }
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
        let mut requests = ShutdownRequests::of(vec![signal_hook::consts::SIGUSR2]).unwrap();
        let mut failures = vec![
            listen(io::ErrorKind::AddrNotAvailable),
            listen(io::ErrorKind::AddrInUse),
            NodeError::Datastore(DatastoreError::InUse {
                path: "/s".to_owned(),
            }),
            NodeError::NoneStarted {
                failures: String::new(),
                is_one_in_use: true,
            },
        ];
        let started = start(&mut requests, || failures.pop().map_or(Ok(7), Err));
        assert_eq!(started.unwrap(), Some(7));
    }

    #[test]
    fn each_obstacle_has_its_own_time() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let mut left = |obstacle, seconds| {
            let now = start + Duration::from_secs(seconds);
            patience.left(obstacle, now).map(|left| left.as_secs())
        };
        assert_eq!(left(Obstacle::Address, 0), Some(30));
        assert_eq!(left(Obstacle::Address, 20), Some(10));
        assert_eq!(left(Obstacle::Predecessor, 20), Some(5));
        assert_eq!(left(Obstacle::Address, 21), Some(9));
        assert_eq!(left(Obstacle::Predecessor, 26), None);
    }

    #[test]
    fn a_start_waits_for_nothing_else() {
        let mut requests = ShutdownRequests::of(vec![signal_hook::consts::SIGUSR2]).unwrap();
        let mut attempts = 0;
        let started = start(&mut requests, || {
            attempts += 1;
            Err::<(), _>(listen(io::ErrorKind::PermissionDenied))
        });
        assert!(started.is_err() && attempts == 1);
    }
}
