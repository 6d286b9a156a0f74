//! Descriptors that outlive the node process: where a node keeps them, and how the next process gets them back.
//!
//! A descriptor is kept under a name, in one of two places. Either the service manager keeps it (systemd's descriptor
//! store), or a process of its own does: `lockstep hold`. The place knows nothing about the descriptors. Everything that
//! the next process has to know about them is in a memory file, whose descriptor is kept beside them.
//!
//! Invariants:
//! - A failure to keep a descriptor never stops the node. The mount then ends with the process, as without a place.
//! - All descriptors of a name are given back, or none.

mod error;
mod holder;
mod message;
mod notify_socket;
pub(crate) mod packet;
mod unit_store;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

pub use error::HoldError;
pub use holder::{DescriptorHolder, HoldUntil};
use message::HoldRequest;
pub use notify_socket::NotifySocket;
use unit_store::UnitStore;

/// The socket of the holder that belongs to a node with the control socket `control`.
pub fn socket_path(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".hold");
    PathBuf::from(path)
}

/// The place that keeps the descriptors of this process.
#[derive(Debug, Default)]
pub enum DescriptorStore {
    /// There is no such place: every descriptor ends with the process.
    #[default]
    Nowhere,
    /// A holder listens on this socket.
    Holder(PathBuf),
    /// The service manager keeps descriptors for the unit of this process.
    Unit(UnitStore),
}

impl DescriptorStore {
    /// Finds the place. The descriptor store of the service manager comes first: when the service manager stops the
    /// node, it would stop a holder in the same unit, too. Without a descriptor store, a running holder is used.
    pub fn find(control: &Path) -> Self {
        if let Some(manager) = UnitStore::from_environment() {
            return Self::Unit(manager);
        }
        let socket = socket_path(control);
        match message::ask(&socket, &HoldRequest::Ping, &[]) {
            Ok(_) => Self::Holder(socket),
            Err(error) => {
                if !error.is_no_holder() {
                    tracing::warn!(%error, "the holder is not used");
                }
                Self::Nowhere
            }
        }
    }

    /// Whether descriptors can be kept at all.
    pub const fn exists(&self) -> bool {
        !matches!(self, Self::Nowhere)
    }

    /// Keeps duplicates of descriptors under a name that has none yet.
    ///
    /// # Errors
    /// If the place does not take them. It then keeps none of them.
    pub fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> Result<(), HoldError> {
        match self {
            Self::Nowhere => Ok(()),
            Self::Holder(socket) => {
                message::ask(socket, &HoldRequest::Keep(name.to_owned()), descriptors).map(drop)
            }
            Self::Unit(manager) => manager.keep(name, descriptors),
        }
    }

    /// Returns duplicates of the descriptors that are kept under a name; none if there is no such name.
    ///
    /// # Errors
    /// If the place does not answer.
    pub fn give(&self, name: &str) -> Result<Vec<OwnedFd>, HoldError> {
        match self {
            Self::Nowhere => Ok(Vec::new()),
            Self::Holder(socket) => message::ask(socket, &HoldRequest::Give(name.to_owned()), &[]),
            Self::Unit(manager) => manager.give(name),
        }
    }

    /// Closes all descriptors that are kept under a name. An error is logged: the place closes the descriptors of an
    /// ended mount by itself, or at its own end.
    pub fn discard(&self, name: &str) {
        let outcome = match self {
            Self::Nowhere => Ok(()),
            Self::Holder(socket) => {
                message::ask(socket, &HoldRequest::Drop(name.to_owned()), &[]).map(drop)
            }
            Self::Unit(manager) => manager.discard(name),
        };
        if let Err(error) = outcome
            && !error.is_no_holder()
        {
            tracing::warn!(name, %error, "kept descriptors are not closed");
        }
    }
}
