//! Notifications to the kernel about its caches of attributes and pages.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};
use lockstep_types::Ino;

use super::file_pages::FilePages;
use super::invalidation::ATTRIBUTES_ONLY;
use super::invalidator::Invalidator;

/// The kernel's caches of one mount.
#[derive(Default)]
pub(crate) struct KernelCache(OnceLock<Channels>);

/// The ways to the kernel.
struct Channels {
    notifier: Notifier,
    invalidator: Arc<Invalidator>,
}

impl KernelCache {
    /// Sets the channels for notifications. Call it before the first request is answered.
    pub fn connect(&self, notifier: Notifier, invalidator: Arc<Invalidator>) {
        let channels = Channels {
            notifier,
            invalidator,
        };
        // Each mount is started once, so the channels are set once.
        let _ = self.0.set(channels);
    }

    /// Makes the kernel ask for the attributes of `ino` again, after a change that the kernel cannot know of
    /// otherwise.
    pub fn expire(&self, ino: Ino) {
        let Some(Channels { notifier, .. }) = self.0.get() else {
            return;
        };
        let outcome = notifier.inval_inode(INodeNo(ino.get()), ATTRIBUTES_ONLY, 0);
        if let Err(error) = outcome {
            tracing::warn!(%ino, %error, "the kernel may show old attributes");
        }
    }

    /// Makes the kernel write back and drop its pages of a range. Waits for the write-backs: no thread that
    /// takes requests of the kernel may call this.
    pub fn drop_pages(&self, ino: Ino, bytes: Range<u64>) {
        let Some(Channels { invalidator, .. }) = self.0.get() else {
            return;
        };
        if let Err(error) = invalidator.drop_pages(&FilePages::of(ino, bytes)) {
            // The mount is ending, and the mapping with it.
            tracing::debug!(%ino, %error, "the kernel did not drop pages");
        }
    }
}

impl std::fmt::Debug for KernelCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelCache").finish_non_exhaustive()
    }
}
