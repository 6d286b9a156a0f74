//! The status of a node that does not run, with one datastore, for tests of commands. A test changes the parts that it is about.

use std::path::PathBuf;

use lockstep_driver::report::{
    CopyStatus, DatastoreStatus, PeerStatus, ServiceStatus, SyncStatus, WorkStatus,
};
use lockstepfs::config::{DatastoreConfig, Encryption, Role};
use lockstepfs::control::NodeStatus;

/// The primary of `alpha`, with this service, in sync and connected or neither.
pub fn alpha(service: ServiceStatus, in_sync: bool) -> DatastoreStatus {
    let places = ["/var/lib/lockstep/alpha", "/srv/alpha"].map(PathBuf::from);
    let uuid = "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001".parse().unwrap();
    let config = DatastoreConfig::new("alpha", uuid, places, Role::Primary);
    let mut status = DatastoreStatus::of_configuration(&config);
    status.settings.mount = Some("/srv/alpha".to_owned());
    status.sync = SyncStatus {
        state: "some state".to_owned(),
        service,
        in_sync,
        copy: CopyStatus {
            marked_in_sync: in_sync,
            complete: true,
            write_verifier: Some(7),
            ..CopyStatus::default()
        },
        since_ms: 10,
        ..status.sync
    };
    status.work = WorkStatus {
        osn: "1.5".to_owned(),
        ..status.work
    };
    status.peer = Some(PeerStatus {
        address: "10.0.0.2:7400".to_owned(),
        connected: in_sync,
        encryption: Encryption::On,
        disk_failed: false,
        obstacle: false,
        disk_silent_ms: None,
    });
    status.times = None;
    status
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
