//! What can go wrong on the control socket, with what to do about it.

use std::io;
use std::path::PathBuf;

use super::VerifyFailure;

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

/// A control socket that cannot be made or asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another process answers on the socket.
    #[error(
        "another node is running: something answers on the control socket {}\n  \
         cure: stop it, or give this node a `control` of its own", path.display()
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something that is no socket stands in the place of the socket.
    #[error(
        "{} exists and is not a socket\n  cure: name another `control`, or move that file away",
        path.display()
    )]
    NotSocket {
        /// The place.
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
        /// What the system said.
        source: io::Error,
    },
    /// Nobody answers on the socket.
    #[error(
        "no node answers on {}: {cause}\n  \
         cure: start it with `lockstep node --config FILE`; if it runs, give its configuration \
         with --config", path.display()
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why not.
        cause: String,
    },
    /// Whoever asks may not use the socket.
    #[error("not allowed to ask the node at {}\n  cure: ask as root, or as the user who started it", path.display())]
    NotAllowed {
        /// The socket.
        path: PathBuf,
    },
    /// The node does not know the command or speaks another version.
    #[error("the node at {} refused: {cause}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// The node answered something this program does not understand.
    #[error(
        "the node at {} answers with an unknown {what} {value:?}\n  \
         cure: use the `lockstep` of the same version as the node", path.display()
    )]
    Unknown {
        /// The socket.
        path: PathBuf,
        /// What it is about.
        what: &'static str,
        /// The answer.
        value: String,
    },
    /// The nodes could not be compared.
    #[error("could not compare: {0}")]
    Verify(VerifyFailure),
}
