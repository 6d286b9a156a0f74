//! The status of a node that does not run, with one datastore, for tests of commands. A test changes the parts that it is about.

use lockstep_driver::report::{
    CopyStatus, DatastoreStatus, PeerStatus, ServiceStatus, SettingsStatus, SyncStatus, WorkStatus,
};
use lockstepfs::config::{Durability, Encryption, OnPeerLoss, Role};
use lockstepfs::control::NodeStatus;

/// The primary of `alpha`, with this service, in sync and connected or neither.
pub fn alpha(service: ServiceStatus, in_sync: bool) -> DatastoreStatus {
    DatastoreStatus {
        settings: SettingsStatus {
            name: "alpha".to_owned(),
            uuid: "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001".to_owned(),
            role: Role::Primary,
            mount: Some("/srv/alpha".to_owned()),
            durability: Durability::Posix,
            on_peer_loss: OnPeerLoss::Continue,
        },
        sync: SyncStatus {
            state: "some state".to_owned(),
            service,
            service_since_ms: 0,
            restart_within_ms: None,
            in_sync,
            copy: CopyStatus {
                marked_in_sync: in_sync,
                complete: true,
                write_verifier: Some(7),
                as_of: None,
            },
            since_ms: 10,
            reason: None,
            started: true,
            disk_stall: None,
            cluster: None,
        },
        work: WorkStatus {
            generation: 1,
            osn: "1.5".to_owned(),
            writes_in_flight: 0,
            metadata_in_flight: 0,
            kept_bytes: 0,
            waiting_requests: 0,
            paw: 0,
            saw: 0,
            slow_operation: None,
        },
        poisoned: None,
        peer: Some(PeerStatus {
            address: "10.0.0.2:7400".to_owned(),
            connected: in_sync,
            encryption: Encryption::On,
            disk_failed: false,
            obstacle: false,
            disk_silent_ms: None,
        }),
        witness: None,
        times: None,
        space: None,
        resync: None,
        stray: None,
        verified: None,
        lost_found: Vec::new(),
    }
}

/// A node with this datastore.
pub fn node_with(datastore: DatastoreStatus) -> NodeStatus {
    NodeStatus {
        node: "a".to_owned(),
        version: "0.1.0".to_owned(),
        pid: 1,
        fingerprint: None,
        datastores: vec![datastore],
    }
}
