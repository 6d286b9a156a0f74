//! The cluster address and the NFS server behind it, in the text of `lockstep status`, `lockstep why` and `lockstep health`.

use std::time::Duration;

use lockstep_driver::report::{ClusterStatus, DatastoreStatus, ServiceStatus};
use lockstepfs::config::Role;

use crate::cli::terminal::duration;

/// Time after which an address should have followed the role, and without a question after which keepalived hangs, in
/// milliseconds.
const SETTLED_MS: u64 = 10_000;
/// Time without an answer of the NFS server after which it hangs, in milliseconds: longer than a start of it takes.
const NFS_LIMIT_MS: u64 = 20_000;

/// Time after which an address that has left a server that serves does not come back by itself, in milliseconds: longer than a
/// restart of keepalived, or of the NFS server that keepalived starts anew.
const AWAY_LIMIT_MS: u64 = 20_000;

/// Time without a question after which keepalived is to start anew, in milliseconds.
const HANG_LIMIT_MS: u64 = 20_000;

/// A fault of a helper of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HelperFault {
    /// This node serves, and the address is not here.
    AddressAway,
    /// This node does not serve, and the address is here.
    AddressLeft,
    /// keepalived asks no more.
    Unasked,
    /// The NFS server gives no answer.
    NfsSilent,
}

fn fault(store: &DatastoreStatus, cluster: &ClusterStatus) -> Option<HelperFault> {
    let is_settled = store.sync.service_since_ms >= SETTLED_MS;
    let serves = store.settings.role == Role::Primary
        && !matches!(
            store.sync.service,
            ServiceStatus::None | ServiceStatus::Undecided
        );
    match (serves, cluster.here) {
        (true, true) if nfs_hangs_at(cluster) => Some(HelperFault::NfsSilent),
        (true, false) if is_settled && cluster.moved_ms >= AWAY_LIMIT_MS => {
            Some(HelperFault::AddressAway)
        }
        (false, true) if is_settled => Some(HelperFault::AddressLeft),
        _ if cluster.asked_ms >= SETTLED_MS => Some(HelperFault::Unasked),
        _ => None,
    }
}

fn nfs_hangs_at(cluster: &ClusterStatus) -> bool {
    cluster
        .nfs_silent_ms
        .is_some_and(|silent| silent >= NFS_LIMIT_MS)
}

/// Whether the NFS server at the cluster address hangs, or does not run, and it is to start anew.
pub(in crate::cli) fn nfs_hangs(store: &DatastoreStatus) -> bool {
    store.sync.cluster.as_ref().is_some_and(nfs_hangs_at)
}

/// Whether keepalived has asked this node, and asks no more.
pub(in crate::cli) fn keepalived_hangs(store: &DatastoreStatus) -> bool {
    let cluster = store.sync.cluster.as_ref();
    cluster.is_some_and(|cluster| cluster.asked_ms >= HANG_LIMIT_MS)
}

/// Whether something is wrong with the helpers of a node.
pub(super) fn is_wrong(store: &DatastoreStatus) -> bool {
    let cluster = store.sync.cluster.as_ref();
    cluster.is_some_and(|cluster| fault(store, cluster).is_some())
}

/// The value of the row `address`; `None` if no address moves by the answers of this node.
pub(in crate::cli) fn row(store: &DatastoreStatus) -> Option<String> {
    let cluster = store.sync.cluster.as_ref()?;
    let ago = |millis| duration(Duration::from_millis(millis));
    let state = match fault(store, cluster) {
        None if cluster.here => "here".to_owned(),
        None => "not here".to_owned(),
        Some(HelperFault::AddressAway) => "NOT HERE, although this node serves".to_owned(),
        Some(HelperFault::AddressLeft) => {
            "STILL HERE, although this node does not serve".to_owned()
        }
        Some(HelperFault::Unasked) => {
            format!(
                "KEEPALIVED HANGS or does not run: it has not asked for {}",
                ago(cluster.asked_ms)
            )
        }
        Some(HelperFault::NfsSilent) => format!(
            "here; the NFS SERVER HANGS or does not run: no answer for {}",
            ago(cluster.nfs_silent_ms.unwrap_or_default())
        ),
    };
    Some(format!("{}, {state}", cluster.address))
}

/// The next step for a helper that hangs. A restart of keepalived moves the address to the node that serves.
pub(in crate::cli) fn step(store: &DatastoreStatus) -> Option<&'static str> {
    Some(match fault(store, store.sync.cluster.as_ref()?)? {
        HelperFault::NfsSilent => {
            "keepalived starts the NFS server anew, if its configuration has --ganesha; else restart the server program"
        }
        _ => {
            "restart keepalived on this server (`systemctl restart keepalived`), and see its log; `lockstep keepalived-watch` does that for one that hangs"
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::store;
    use super::super::{is_healthy, store_text};
    use super::*;

    fn with(service: ServiceStatus, cluster: ClusterStatus) -> DatastoreStatus {
        let mut store = store(true, true);
        store.sync.service = service;
        store.sync.service_since_ms = 3_600_000;
        if service == ServiceStatus::None {
            store.settings.role = Role::Secondary;
        }
        store.sync.cluster = Some(cluster);
        store
    }

    fn cluster(here: bool, asked_ms: u64, nfs_silent_ms: Option<u64>) -> ClusterStatus {
        ClusterStatus {
            address: "10.0.0.10".to_owned(),
            here,
            moved_ms: 3_600_000,
            asked_ms,
            nfs_silent_ms,
        }
    }

    #[test]
    fn a_helper_that_hangs_is_shown_with_the_next_step() {
        use ServiceStatus::{Mirrored, None as No};
        for (service, cluster, row, is_well) in [
            (
                Mirrored,
                cluster(true, 900, Some(0)),
                "10.0.0.10, here",
                true,
            ),
            (
                Mirrored,
                cluster(true, 900, Some(4000)),
                "10.0.0.10, here",
                true,
            ),
            (No, cluster(false, 900, None), "10.0.0.10, not here", true),
            (
                Mirrored,
                cluster(false, 900, None),
                "NOT HERE, although",
                false,
            ),
            (
                No,
                cluster(true, 60_000, None),
                "STILL HERE, although",
                false,
            ),
            (No, cluster(false, 60_000, None), "KEEPALIVED HANGS", false),
            (
                Mirrored,
                cluster(true, 900, Some(30_000)),
                "NFS SERVER HANGS",
                false,
            ),
        ] {
            let store = with(service, cluster);
            let text = store_text(&store);
            assert!(text.contains(row), "{row}: {text}");
            assert_eq!(is_healthy(&store), is_well, "{text}");
            assert_eq!(text.contains('→'), !is_well, "{text}");
        }
    }

    #[test]
    fn an_address_gets_the_time_to_follow_the_role() {
        let mut store = with(ServiceStatus::Mirrored, cluster(false, 900, None));
        store.sync.service_since_ms = 2000;
        assert!(!is_wrong(&store));
    }

    #[test]
    fn an_address_is_not_missing_while_a_helper_is_started_anew() {
        for (moved_ms, is_missing) in [(0, false), (19_000, false), (20_000, true)] {
            let away = ClusterStatus {
                moved_ms,
                ..cluster(false, 900, None)
            };
            let store = with(ServiceStatus::Mirrored, away);
            assert_eq!(is_wrong(&store), is_missing, "{moved_ms}");
            let row = row(&store).unwrap();
            assert_eq!(row.contains("NOT HERE"), is_missing, "{row}");
        }
    }
}
