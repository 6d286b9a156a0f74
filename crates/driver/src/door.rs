//! The door that the writes of a mount come through while memory has as many bytes of writes that wait as it may
//! (rule P19): a write that cannot begin now is kept on the disk there, or its thread waits for room.
//!
//! Invariants:
//! - A thread at the door holds nothing that a write which is past the door waits for: no lock, no place in an
//!   order, no entry of the page cache. Past the door nobody waits for room.
//! - A thread is inside a call of the disk at the door only with a berth.

use std::sync::Arc;

use lockstep_repl::core::LockSet;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Ino};

use super::kept::Kept;
use super::service::write_message_bytes;
use super::{Datastore, lockset};
use crate::client::Waiting;

/// The locks of a write.
pub(super) fn write_locks(ino: Ino, offset: u64, length: usize) -> LockSet {
    if is_active(Mutant::NoRangeLock) {
        return LockSet::new();
    }
    lockset::write(ino, offset, length as u64)
}

impl Datastore {
    /// Keeps the bytes of a write on the disk unless `starts`, or waits; `None` as soon as it does, or memory has
    /// room. `waiting`: the requests of the mount.
    ///
    /// # Errors
    /// `Io` when the disk fails or the mount is gone.
    pub(super) fn keep_at_door(
        &self,
        data: &[u8],
        waiting: Option<&dyn Waiting>,
        starts: impl Fn() -> bool,
    ) -> Result<Option<Arc<Kept>>, Errno> {
        loop {
            let looked = self.keeper.round();
            if !self.keeper.is_full() || starts() {
                return Ok(None);
            }
            // A write that was left for this one goes without it.
            self.send_left();
            if let Some(kept) = self.keep_with_berth(data)? {
                return Ok(Some(kept));
            }
            // Each tick lets who waits look again.
            if waiting.is_some_and(Waiting::is_gone) {
                return Err(Errno::Io);
            }
            self.keeper.wait_for_room(looked)?;
        }
    }

    /// Keeps bytes on the disk, if there is a berth for the thread and room for them.
    fn keep_with_berth(&self, data: &[u8]) -> Result<Option<Arc<Kept>>, Errno> {
        let Some(berth) = self.berths.take() else {
            return Ok(None);
        };
        let kept = self.keeper.keep_in_file(data)?;
        drop(berth);
        if kept.is_some() {
            // Another thread may have found no berth. If there was no room on the disk, it has none, either.
            self.keeper.look_again();
        }
        Ok(kept)
    }

    /// Whether a write would begin on this thread, or be refused, if it were submitted now. Changes nothing.
    pub(super) fn would_start(
        &self,
        ino: Ino,
        offset: u64,
        length: usize,
        drop_set_id: bool,
    ) -> bool {
        let locks = write_locks(ino, offset, length);
        let bytes = write_message_bytes(length);
        let begins = self.core.lock().would_start_write(&locks, bytes);
        // The pool does what finds no berth, with a copy of its bytes. What takes privileges away is done after that.
        begins
            && self.berths.is_free()
            && self.has_room_for_write(ino, offset, length as u64)
            && !(drop_set_id && self.has_privileges(ino).unwrap_or(false))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use lockstep_repl::lock::{LockKey, LockMode};
    use lockstep_types::limits::KEPT_BYTES_MAX;
    use smallvec::smallvec;

    use super::super::Service;
    use super::super::start::tests::Place;
    use super::*;
    use crate::client::{FileService, KeptBytes, WriteOptions};

    const FILE: Ino = Ino::ROOT;
    const DATA: [u8; 10] = [1; 10];
    /// After so long a thread that still waits waits for ever.
    const LONG_ENOUGH: Duration = Duration::from_secs(60);

    #[derive(Debug)]
    struct Gone;

    impl Waiting for Gone {
        fn any(&self) -> bool {
            false
        }

        fn is_gone(&self) -> bool {
            true
        }
    }

    /// A datastore that serves alone, and the bytes that fill its memory.
    fn full() -> (Place, Arc<Datastore>, Arc<Kept>) {
        let place = Place::in_sync();
        let datastore = place.start_out_of_sync();
        let bytes = vec![0; usize::try_from(KEPT_BYTES_MAX).unwrap()];
        let full = datastore.keeper.keep_here(&bytes);
        (place, datastore, full)
    }

    fn at_door(
        datastore: &Arc<Datastore>,
        waiting: Option<&dyn Waiting>,
    ) -> Result<Option<Arc<dyn KeptBytes>>, Errno> {
        let options = WriteOptions {
            waiting,
            ..WriteOptions::default()
        };
        Service(Arc::clone(datastore)).keep_at_door(FILE, 0, &DATA, options)
    }

    fn end(datastore: &Arc<Datastore>) {
        datastore.stop();
        datastore.close();
    }

    #[test]
    fn only_what_would_wait_is_kept_and_only_while_memory_is_full() {
        let (_place, datastore, full) = full();
        let door = || at_door(&datastore, None).unwrap();
        assert!(door().is_none(), "it would begin");
        let mut held = datastore.ask_for(smallvec![(LockKey::File(FILE), LockMode::Exclusive)]);
        assert!(held.wait());
        let kept = door().unwrap();
        assert_eq!((datastore.keeper.load().in_file, kept.length()), (1, 10));
        assert_eq!(kept.load().unwrap()[..], DATA);
        drop(full);
        assert!(door().is_none(), "memory has room");
        drop(held);
        end(&datastore);
    }

    #[test]
    fn without_a_berth_a_write_waits_until_there_is_one_and_is_not_kept() {
        let (_place, datastore, _full) = full();
        let berths: Vec<_> = std::iter::from_fn(|| datastore.berths.take()).collect();
        assert!(!berths.is_empty());
        thread::scope(|scope| {
            let comer = scope.spawn(|| at_door(&datastore, None).unwrap().is_none());
            let await_waiting = || {
                while !datastore.keeper.has_waiters() {
                    assert!(!comer.is_finished(), "it does not wait");
                    thread::yield_now();
                }
            };
            await_waiting();
            datastore.keeper.look_again();
            await_waiting();
            drop(berths);
            datastore.keeper.look_again();
            assert!(comer.join().unwrap());
        });
        assert_eq!(datastore.keeper.load().in_file, 0);
        end(&datastore);
    }

    #[test]
    fn nobody_waits_at_the_door_of_a_mount_that_is_gone() {
        let (_place, datastore, _full) = full();
        let _berths: Vec<_> = std::iter::from_fn(|| datastore.berths.take()).collect();
        assert_eq!(at_door(&datastore, Some(&Gone)).err(), Some(Errno::Io));
        let service = Service(Arc::clone(&datastore));
        assert_eq!(service.keep(&DATA, Some(&Gone)).err(), Some(Errno::Io));
        end(&datastore);
    }

    /// It may hold what other writes wait for.
    #[test]
    fn past_the_door_nobody_waits_for_room() {
        let (_place, datastore, _full) = full();
        let _berths: Vec<_> = std::iter::from_fn(|| datastore.berths.take()).collect();
        let (ended, hears) = channel();
        let service = Service(Arc::clone(&datastore));
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
                service.write(FILE, 0, &DATA, options, done);
                assert_eq!(service.keep_past_door(&DATA).length(), DATA.len());
            }
        });
        for _ in 0..2 {
            assert_eq!(hears.recv_timeout(LONG_ENOUGH), Ok(true));
        }
        writer.join().unwrap();
        end(&datastore);
    }
}
