//! Errors at the start of a node, and errors that stop a node.

use std::io;
use std::path::PathBuf;

use lockstep_driver::DatastoreError;
use lockstep_link::LinkError;
use lockstep_mount::MountError;
use lockstep_witness::WitnessSetupError;

use crate::control::ControlError;

/// Why a node could not start, or had to stop, with the cure.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The system refused an operation that every node needs.
    #[error("cannot {operation}: {source}")]
    System {
        /// The refused operation.
        operation: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The node cannot listen on the address for peers.
    #[error("cannot listen on {listen}: {source}\n  cure: {}", listen_cure(source))]
    Listen {
        /// Address in the configuration.
        listen: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The keys of this node cannot be used.
    #[error(transparent)]
    Identity(#[from] LinkError),
    /// The witness of a datastore cannot be asked.
    #[error(transparent)]
    Witness(#[from] WitnessSetupError),
    /// A witness has the identity of this node.
    #[error(
        "the witness at {address} is this node itself: it has the fingerprint of this node\n  \
         cure: run the witness on a third server, and write its fingerprint into [datastore.witness]; \
         `lockstep init --witness` prints it there"
    )]
    OwnWitness {
        /// Address of the witness in the configuration.
        address: String,
    },
    /// The peer of a datastore has the identity of this node.
    #[error(
        "the fingerprint in [datastore.peer] of {datastore} is that of this node itself\n  \
         cure: write the fingerprint of the other node there; `lockstep init` prints it on that node"
    )]
    OwnPeer {
        /// Name of the datastore.
        datastore: String,
    },
    /// A datastore cannot be mounted, or its mount failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A datastore cannot be opened.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// The control socket cannot be made.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// None of several datastores could be started.
    #[error("none of the datastores could be started:{failures}")]
    NoneStarted {
        /// A line for each datastore.
        failures: String,
        /// Whether another process uses one of the stores.
        is_one_in_use: bool,
    },
    /// A program other than this node has unmounted a datastore.
    #[error(
        "another program has unmounted {}, so this node stopped\n  cure: start the node again", mount_point.display()
    )]
    Unmounted {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// The shutdown was not clean.
    #[error(
        "the shutdown of this node was not clean: its log names the failure; acknowledged changes are as safe \
         as after a kill, and the next start recovers them"
    )]
    UncleanShutdown,
}

fn listen_cure(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            "stop what uses the port (`ss -ltnp` names it), or choose another port in `listen`"
        }
        io::ErrorKind::AddrNotAvailable => {
            "set `listen` to an address of this server (`ip address` shows them)"
        }
        io::ErrorKind::PermissionDenied => "run as root, or choose a port from 1024 on in `listen`",
        _ => "correct `listen`",
    }
}

/// Makes an error of the system into a [`NodeError`].
pub(super) fn system(operation: &'static str) -> impl FnOnce(io::Error) -> NodeError {
    move |source| NodeError::System { operation, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(source: io::Error) -> String {
        let listen = "10.0.0.1:80".to_owned();
        NodeError::Listen { listen, source }.to_string()
    }

    #[test]
    fn the_cure_for_an_address_fits_the_error() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let again = std::net::TcpListener::bind(taken.local_addr().unwrap()).unwrap_err();
        assert!(refused(again).contains("stop what uses the port"));
        let elsewhere = std::net::TcpListener::bind("192.0.2.1:0").unwrap_err();
        assert!(refused(elsewhere).contains("an address of this server"));
        let denied = refused(io::ErrorKind::PermissionDenied.into());
        assert!(denied.contains("run as root") && !denied.contains("uses the port"));
    }
}
