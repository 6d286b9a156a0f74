//! Errors about kept descriptors. Every message names the cause and the cure.

use std::io;
use std::path::PathBuf;

/// Why descriptors could not be kept or given back, or why a holder could not run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // each is documented by its message
pub enum HoldError {
    #[error("another holder is running on {}: one is enough for a node", socket.display())]
    InUse { socket: PathBuf },
    #[error(
        "this user may not use {}: run the command as root, or as the user of the node",
        socket.display()
    )]
    Denied { socket: PathBuf },
    #[error(
        "cannot listen on {}: {source}; the directory must exist and be writable by this user alone",
        socket.display()
    )]
    Listen { socket: PathBuf, source: io::Error },
    #[error("cannot wait for requests: {source}")]
    Wait { source: io::Error },
    #[error("no holder is running on {}: start one (lockstep hold)", socket.display())]
    NoHolder { socket: PathBuf },
    #[error("the holder on {} does not answer: {source}", socket.display())]
    Talk { socket: PathBuf, source: io::Error },
    #[error("the holder on {} refuses: {reason}", socket.display())]
    Refused { socket: PathBuf, reason: String },
    #[error("the service manager takes no descriptors: {source}")]
    Manager { source: io::Error },
}

/// Why a holder refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HoldRefusal {
    #[error("only root and the user of the holder may ask")]
    Stranger,
    #[error("this is not a request")]
    NoRequest,
    #[error("no descriptor came with the request")]
    NoDescriptor,
    #[error("this name has too many descriptors")]
    ManyDescriptors,
    #[error("there are too many names")]
    ManyNames,
}

impl HoldError {
    /// Whether the error only says that no holder is running.
    pub const fn is_no_holder(&self) -> bool {
        matches!(self, Self::NoHolder { .. })
    }
}
