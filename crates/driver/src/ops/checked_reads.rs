//! Reads whose bytes are compared with the sums of their blocks before a program gets them (`check_reads`).
//!
//! A read covers whole blocks for that, so a read of a part of a block reads the rest of it, too. A block that does not fit its sum
//! is looked at again on the disk: memory may be wrong. If the disk is wrong, the block is healed from the peer. A block that cannot be
//! healed is an error of the read, never wrong bytes.
//!
//! The caller holds the lock of the read, so no operation changes the blocks on either node. A thread of a client only compares:
//! the worker pool heals, because it may wait for the peer.

use std::sync::Arc;

use lockstep_fs::OpError;
use lockstep_resync::PeerError;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::settings::CheckReads;
use lockstep_types::{Errno, Ino};
use lockstep_verify::own_sums::StoreSums;
use lockstep_verify::{DeepCopy, RepairError};
use thiserror::Error;

use crate::engine::Engine;
use crate::peer::requests::PendingRequests;
use crate::replication::Replication;
use crate::replication::remote::RemotePeer;

/// The size of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The reason why a block was not healed.
#[derive(Debug, Error)]
enum ReadHealError {
    /// There is nobody to ask.
    #[error("the disk has other bytes, and no peer is connected")]
    NoPeer,
    /// The peer has not answered.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The block could not be healed.
    #[error(transparent)]
    Repair(#[from] RepairError),
}

/// Bytes that were read, and the blocks that do not fit their sums.
pub(crate) struct BlockRead {
    /// Whole blocks, or up to the end of the file.
    bytes: Vec<u8>,
    /// Bytes before those that were asked for.
    before: usize,
    length: usize,
    misfits: Vec<u64>,
}

impl BlockRead {
    /// The bytes that were asked for, if all blocks fit.
    pub fn checked(&self) -> Option<&[u8]> {
        let rest = self.bytes.get(self.before..).unwrap_or_default();
        let asked = rest.get(..self.length).unwrap_or(rest);
        self.misfits.is_empty().then_some(asked)
    }
}

/// See the head of this file.
pub(crate) struct CheckedReads {
    engine: Arc<Engine>,
    replication: Arc<Replication>,
    requests: Arc<PendingRequests>,
}

impl CheckedReads {
    /// The reads of one session, if the configuration wants them compared.
    pub fn if_wanted(
        engine: &Arc<Engine>,
        replication: &Arc<Replication>,
        requests: &Arc<PendingRequests>,
    ) -> Option<Self> {
        let wanted = engine.config.current().policies.check_reads == CheckReads::On;
        wanted.then(|| Self {
            engine: Arc::clone(engine),
            replication: Arc::clone(replication),
            requests: Arc::clone(requests),
        })
    }

    /// Reads whole blocks, and compares them with their sums.
    pub fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<BlockRead, OpError> {
        let store = &self.engine.store;
        let first = offset - offset % BLOCK;
        let before = usize::try_from(offset - first).unwrap_or(0);
        let mut bytes = vec![0; (before + length).next_multiple_of(BLOCK_BYTES)];
        let read = store.read(ino, first, &mut bytes)?;
        bytes.truncate(read);
        let sums = &StoreSums::of(store);
        let misfits = DeepCopy { store, sums }.misfits(ino, first, &bytes);
        Ok(BlockRead {
            bytes,
            before,
            length,
            misfits,
        })
    }

    /// Heals the blocks that did not fit, and reads again. May wait for the peer.
    ///
    /// # Errors
    /// [`Errno::Io`] if a block still does not fit.
    pub fn heal_and_read(
        &self,
        ino: Ino,
        offset: u64,
        wrong: &BlockRead,
    ) -> Result<BlockRead, OpError> {
        for block in &wrong.misfits {
            let (datastore, healed) = (self.engine.name(), self.heal(ino, *block));
            match healed {
                Ok(from) => tracing::error!(
                    datastore,
                    %ino,
                    block,
                    "a read has found a block that did not fit its sum: healed from {from}"
                ),
                Err(why) => tracing::error!(
                    datastore,
                    %ino,
                    block,
                    %why,
                    "a read fails: a block does not fit its sum"
                ),
            }
        }
        let again = self.read(ino, offset, wrong.length)?;
        if again.misfits.is_empty() {
            Ok(again)
        } else {
            Err(Errno::Io.into())
        }
    }

    /// Heals a block. Returns the place that had the right one; otherwise the reason why there is none.
    fn heal(&self, ino: Ino, block: u64) -> Result<&'static str, ReadHealError> {
        let store = &self.engine.store;
        let sums = &StoreSums::of(store);
        let copy = DeepCopy { store, sums };
        if copy.refresh(ino, block)? {
            return Ok("the disk");
        }
        let connection = self.replication.peer.current();
        let connection = connection.ok_or(ReadHealError::NoPeer)?;
        let (replication, requests) = (Arc::clone(&self.replication), Arc::clone(&self.requests));
        let peer = RemotePeer::new(replication, requests, connection);
        let offset = block.saturating_mul(BLOCK);
        let right = lockstep_verify::fetch_blocks(&peer, ino, offset, 1)?;
        copy.heal(ino, offset, &right)?;
        Ok("the peer")
    }
}
