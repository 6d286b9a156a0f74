//! Errors of the control socket, with cause and cure.

use std::io;
use std::path::PathBuf;

use lockstep_driver::report::CommandFailure;

fn socket_cure(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "run as root, or set `control` to a path in a directory of the user who runs the node"
        }
        io::ErrorKind::StorageFull => "make room there, or set `control` to a path elsewhere",
        _ => {
            "set `control` to a path in a directory that exists or can be made, such as /run/lockstep"
        }
    }
}

/// Why the control socket could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another process answers on the socket.
    #[error(
        "another node is running: a process answers on the control socket {}\n  \
         cure: stop that node, or give this node a `control` of its own", path.display()
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The path of the socket holds a file of another type.
    #[error(
        "{} exists and is not a socket\n  cure: name another `control`, or move that file away",
        path.display()
    )]
    NotSocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused a step of making the socket.
    #[error(
        "cannot {operation} for the control socket {}: {source}\n  cure: {}",
        path.display(), socket_cure(source)
    )]
    Socket {
        /// The step.
        operation: &'static str,
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// No process answers on the socket.
    #[error(
        "no node answers on {}: {cause}\n  \
         cure: start the node with `lockstep node --config FILE`; if the node runs, name its configuration \
         with --config", path.display()
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// The user of the command may not open the socket.
    #[error("not allowed to ask the node at {}\n  cure: run the command as root, or as the user who started the node", path.display())]
    NotAllowed {
        /// The socket.
        path: PathBuf,
    },
    /// The node does not know the command or speaks another version.
    #[error("the node at {} refused: {cause}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// The answer of the node holds a word that this program does not know.
    #[error(
        "the answer of the node at {} is not understood: {source}\n  \
         cure: use the `lockstep` of the same version as the node", path.display()
    )]
    Unknown {
        /// The socket.
        path: PathBuf,
        /// The word, and the known words.
        source: serde_json::Error,
    },
    /// The nodes could not be compared.
    #[error("could not compare: {0}")]
    Verify(CommandFailure),
    /// A change reader got no answer.
    #[error("no answer to the change reader: {0}")]
    Changes(CommandFailure),
    /// A command about snapshots was not done.
    #[error("snapshots: {0}")]
    Snapshots(CommandFailure),
    /// A command about the trash was not done, or not to its end.
    #[error("trash: {0}")]
    Trash(CommandFailure),
    /// A snapshot was not written out.
    #[error("could not export: {0}")]
    Export(CommandFailure),
    /// The role of the node was not changed.
    #[error("could not change the role: {0}")]
    ChangeRole(CommandFailure),
}
