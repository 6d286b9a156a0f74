//! Admission of the writes of a mount while memory holds as many bytes of waiting writes as it may (rule P19). A
//! write that cannot begin now is kept on the disk, or its thread waits for room.
//!
//! Invariants:
//! - A thread that waits for admission holds nothing that an admitted write waits for: no lock, no place in an order,
//!   no entry of the page cache. An admitted write never waits for room.
//! - A thread that waits for admission is inside a call of the disk only with a berth.

use std::sync::Arc;

use lockstep_fs::plan::View;
use lockstep_fs::{OpError, StoreView};
use lockstep_repl::core::LockSet;
use lockstep_types::mode::SET_ID;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::xattr::CAPABILITIES;
use lockstep_types::{Errno, Ino};

use super::berths::Berths;
use super::lock_plan;
use super::meta_pipeline::MESSAGE_BYTES;
use super::space::SpaceCheck;
use super::spill::{SpillBuffer, Spilled};
use crate::client::WaitingRequests;
use crate::engine::Engine;
use crate::replication::Replication;

/// The locks of a write.
pub(crate) fn write_locks(ino: Ino, offset: u64, length: usize) -> LockSet {
    if is_active(Mutant::NoRangeLock) {
        return LockSet::new();
    }
    lock_plan::write(ino, offset, length as u64)
}

/// Estimated bytes of a write on the wire.
pub(crate) const fn write_message_bytes(length: usize) -> u64 {
    MESSAGE_BYTES + length as u64
}

/// See the head of this file.
pub(crate) struct WriteBackpressure {
    engine: Arc<Engine>,
    replication: Arc<Replication>,
    berths: Arc<Berths>,
    spill: Arc<SpillBuffer>,
    space: Arc<SpaceCheck>,
}

impl WriteBackpressure {
    /// The admission of one session.
    pub const fn new(
        engine: Arc<Engine>,
        replication: Arc<Replication>,
        berths: Arc<Berths>,
        spill: Arc<SpillBuffer>,
        space: Arc<SpaceCheck>,
    ) -> Self {
        Self {
            engine,
            replication,
            berths,
            spill,
            space,
        }
    }

    /// Keeps the bytes of a write on the disk unless `starts`, or waits. Returns `None` as soon as the write starts or
    /// memory has room. `waiting`: the requests of the mount.
    ///
    /// # Errors
    /// `Io` when the disk fails or the mount is gone.
    pub fn admit(
        &self,
        data: &[u8],
        waiting: Option<&dyn WaitingRequests>,
        starts: impl Fn() -> bool,
    ) -> Result<Option<Arc<Spilled>>, Errno> {
        loop {
            let looked = self.spill.room.round();
            if !self.spill.is_full() || starts() {
                return Ok(None);
            }
            // A write that was deferred for this one leaves without it.
            self.replication.peer.flush_deferred();
            if let Some(kept) = self.keep_with_berth(data)? {
                return Ok(Some(kept));
            }
            // Each tick wakes the waiting threads.
            if waiting.is_some_and(WaitingRequests::is_gone) {
                return Err(Errno::Io);
            }
            self.spill.room.wait(looked)?;
        }
    }

    /// Keeps bytes on the disk, if there is a berth for the thread and room for the bytes.
    fn keep_with_berth(&self, data: &[u8]) -> Result<Option<Arc<Spilled>>, Errno> {
        let Some(berth) = self.berths.take() else {
            return Ok(None);
        };
        let kept = self.spill.put_in_file(data)?;
        drop(berth);
        if kept.is_some() {
            // Another thread may have found no berth. Without room on the disk, it would find none either.
            self.spill.room.look_again();
        }
        Ok(kept)
    }

    /// Whether a write would begin on this thread, or be refused, if it were submitted now. Changes nothing.
    pub fn would_start(&self, ino: Ino, offset: u64, length: usize, drop_set_id: bool) -> bool {
        let locks = write_locks(ino, offset, length);
        let bytes = write_message_bytes(length);
        let begins = self
            .replication
            .core
            .lock()
            .would_start_write(&locks, bytes);
        // Without a berth, the worker pool executes the write with a copy of its bytes. A write that takes privileges
        // away waits for that change.
        begins
            && self.berths.is_free()
            && self.space.decides_write_at_once(ino, offset, length as u64)
            && !(drop_set_id && self.has_privileges(ino).unwrap_or(false))
    }

    /// Whether a write by an unprivileged program must take set-id bits or capabilities away first.
    pub fn has_privileges(&self, ino: Ino) -> Result<bool, OpError> {
        let Some(inode) = self.engine.store.tree().inode(ino)? else {
            return Err(Errno::Stale.into());
        };
        let capabilities = match self.engine.store.tree().getxattr(ino, CAPABILITIES) {
            Ok(_) => true,
            Err(OpError::Refused(_)) => false,
            Err(error) => return Err(error),
        };
        Ok(inode.bits.mode & SET_ID != 0 || capabilities)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use lockstep_repl::lock::{LockKey, LockMode};
    use lockstep_types::limits::SPILL_MEMORY_BYTES_MAX;
    use smallvec::smallvec;

    use super::*;
    use crate::client::{FileService, SpilledBytes, WriteData, WriteOptions};
    use crate::open::tests::Place;
    use crate::session::primary::PrimarySession;
    use crate::{Datastore, DatastoreHandle};

    const FILE: Ino = Ino::ROOT;
    const DATA: [u8; 10] = [1; 10];
    /// A thread that waits for longer waits forever.
    const LONG_ENOUGH: Duration = Duration::from_secs(60);

    #[derive(Debug)]
    struct Gone;

    impl WaitingRequests for Gone {
        fn any(&self) -> bool {
            false
        }

        fn is_gone(&self) -> bool {
            true
        }
    }

    /// A datastore that serves alone, and the bytes that fill its memory.
    fn full() -> (Place, Arc<Datastore>, Arc<Spilled>) {
        let place = Place::in_sync();
        let datastore = place.start_out_of_sync();
        let bytes = vec![0; usize::try_from(SPILL_MEMORY_BYTES_MAX).unwrap()];
        let full = session(&datastore).spill.put_in_memory(&bytes);
        (place, datastore, full)
    }

    fn admit(
        datastore: &Arc<Datastore>,
        waiting: Option<&dyn WaitingRequests>,
    ) -> Result<Option<Arc<dyn SpilledBytes>>, Errno> {
        let options = WriteOptions {
            waiting,
            ..WriteOptions::default()
        };
        let service = DatastoreHandle::new(Arc::clone(datastore));
        Ok(match service.admit(FILE, 0, &DATA, options)? {
            WriteData::Borrowed(_) => None,
            WriteData::Spilled(spilled) => Some(spilled),
        })
    }

    fn session(datastore: &Datastore) -> Arc<PrimarySession> {
        datastore.primary().unwrap()
    }

    fn end(datastore: &Arc<Datastore>) {
        datastore.stop();
        datastore.close();
    }

    #[test]
    fn only_a_write_that_would_wait_is_kept_and_only_while_memory_is_full() {
        let (_place, datastore, full) = full();
        let admit_data = || admit(&datastore, None).unwrap();
        assert!(admit_data().is_none(), "it would begin");
        let primary = session(&datastore);
        let mut held = primary
            .jobs
            .locks
            .acquire(smallvec![(LockKey::File(FILE), LockMode::Exclusive)]);
        assert!(held.wait());
        let kept = admit_data().unwrap();
        assert_eq!(
            (session(&datastore).spill.load().in_file, kept.length()),
            (1, 10)
        );
        assert_eq!(kept.load().unwrap()[..], DATA);
        drop(full);
        assert!(admit_data().is_none(), "memory has room");
        drop(held);
        end(&datastore);
    }

    #[test]
    fn without_a_berth_a_write_waits_until_there_is_one_and_is_not_kept() {
        let (_place, datastore, _full) = full();
        let primary = session(&datastore);
        let berths: Vec<_> = std::iter::from_fn(|| primary.backpressure.berths.take()).collect();
        assert!(!berths.is_empty());
        thread::scope(|scope| {
            let comer = scope.spawn(|| admit(&datastore, None).unwrap().is_none());
            let await_waiting = || {
                while !session(&datastore).spill.room.has_waiters() {
                    assert!(!comer.is_finished(), "it does not wait");
                    thread::yield_now();
                }
            };
            await_waiting();
            session(&datastore).spill.room.look_again();
            await_waiting();
            drop(berths);
            session(&datastore).spill.room.look_again();
            assert!(comer.join().unwrap());
        });
        assert_eq!(session(&datastore).spill.load().in_file, 0);
        end(&datastore);
    }

    #[test]
    fn no_write_waits_for_admission_once_the_mount_is_gone() {
        let (_place, datastore, _full) = full();
        let primary = session(&datastore);
        let _berths: Vec<_> = std::iter::from_fn(|| primary.backpressure.berths.take()).collect();
        assert_eq!(admit(&datastore, Some(&Gone)).err(), Some(Errno::Io));
        let service = DatastoreHandle::new(Arc::clone(&datastore));
        let refused = service.keep(WriteData::Borrowed(&DATA), Some(&Gone));
        assert_eq!(refused.err(), Some(Errno::Io));
        end(&datastore);
    }

    /// Other writes may wait for locks that the admitted write holds.
    #[test]
    fn an_admitted_write_never_waits_for_room() {
        let (_place, datastore, _full) = full();
        let primary = session(&datastore);
        let _berths: Vec<_> = std::iter::from_fn(|| primary.backpressure.berths.take()).collect();
        let (ended, hears) = channel();
        let service = DatastoreHandle::new(Arc::clone(&datastore));
        let writer = thread::spawn(move || {
            for drop_set_id in [false, true] {
                let options = WriteOptions {
                    drop_set_id,
                    ..WriteOptions::default()
                };
                let ended = ended.clone();
                // A directory takes no bytes.
                let done = Box::new(move |outcome: Result<(), Errno>| {
                    ended.send(outcome.is_err()).unwrap();
                });
                service.write(FILE, 0, WriteData::Borrowed(&DATA), options, done);
                let kept = service.keep_admitted(WriteData::Borrowed(&DATA));
                assert_eq!(kept.length(), DATA.len());
            }
        });
        for _ in 0..2 {
            assert_eq!(hears.recv_timeout(LONG_ENOUGH), Ok(true));
        }
        writer.join().unwrap();
        end(&datastore);
    }
}
