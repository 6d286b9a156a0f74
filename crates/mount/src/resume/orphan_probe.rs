//! Inodes without a name in a mount that an earlier process has served: they are freed when the kernel forgets them.
//!
//! This process does not know how often the earlier one has opened and looked up an inode. So it asks the kernel,
//! whenever the kernel may have forgotten an inode. A thread of its own asks: the answer may come only after the kernel
//! has evicted the inode, and that may need the other threads.

use std::io;
use std::sync::Arc;

use lockstep_driver::client::{AskKernel, FileService};
use lockstep_types::Ino;

use crate::kernel_cache::invalidator::Invalidator;
use crate::worker::Worker;

/// Starts the thread. The returned function has it ask about an inode, and tell the service if the kernel does not know
/// the inode.
pub(crate) fn start(
    service: &Arc<dyn FileService>,
    invalidator: &Arc<Invalidator>,
) -> io::Result<AskKernel> {
    let worker = Worker::start("fuse-orphans")?;
    let invalidator = Arc::clone(invalidator);
    // The service keeps the function.
    let service = Arc::downgrade(service);
    Ok(Box::new(move |ino: Ino| {
        let (invalidator, service) = (Arc::clone(&invalidator), service.clone());
        worker.submit(Box::new(move || {
            let Some(service) = service.upgrade() else {
                return;
            };
            match invalidator.knows(ino) {
                Ok(true) => {}
                Ok(false) => service.unreferenced(ino),
                Err(error) => tracing::debug!(%ino, %error, "the mount is gone"),
            }
        }));
    }))
}
