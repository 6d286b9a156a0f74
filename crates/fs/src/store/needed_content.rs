//! Tests: each of several observers gets the content of a freed inode that it needs, also after a stop of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_intentlog::LogOptions;
use lockstep_lossy::disk::{Disk, Survivors};
use lockstep_types::backing::BackingFile;
use lockstep_types::{
    DatastoreUuid, FileName, Generation, Ino, MetaOp, MetaRequest, NodeKind, Osn, Timestamp,
};

use super::{OpenOptions, Store};
use crate::content::before_change::{ByteChange, ByteObserver, ChangeOrigin};
use crate::content::freed::{MarkOwner, Removal};
use crate::error::StoreError;
use crate::paths::content_path;

const UUID: DatastoreUuid = DatastoreUuid::from_bytes([7; 16]);
/// The content: a hole, and bytes that end in the middle of a block.
const OFFSET: usize = 9000;
const BYTES: &[u8] = &[5; 5000];

/// Keeps the content of every freed inode, beside the lost+found.
#[derive(Default)]
struct Archive {
    /// Fails the next call.
    fails: AtomicBool,
}

impl ByteObserver for Archive {
    fn before_change(&self, _: &ByteChange<'_>, _: &dyn BackingFile) -> Result<(), StoreError> {
        Ok(())
    }

    fn mark_owner(&self) -> Option<MarkOwner> {
        Some(MarkOwner::TEST)
    }

    fn freed(&self, ino: Ino, _: ChangeOrigin) -> Option<Vec<u8>> {
        Some(ino.get().to_be_bytes().to_vec())
    }

    fn before_removal(&self, removal: &Removal<'_>) -> Result<Option<String>, StoreError> {
        let Some(mark) = removal.mark else {
            return Ok(None);
        };
        assert_eq!(mark, removal.ino.get().to_be_bytes());
        if self.fails.swap(false, Ordering::Relaxed) {
            return Err(StoreError::ReadOnly);
        }
        let place = archived(removal.ino);
        if !removal
            .disk
            .backing()
            .exists(&content_path(removal.ino))
            .unwrap()
        {
            return Ok(None);
        }
        removal.disk.backing().open_or_create(&place).unwrap();
        removal.take(&place).unwrap();
        Ok(Some("archive".to_owned()))
    }
}

fn archived(ino: Ino) -> String {
    format!("archive/{ino}")
}

/// A store on a disk in memory, with an archive before or after the other observers.
struct Site {
    disk: Disk,
    store: Store,
    archive: Arc<Archive>,
    is_first: bool,
}

impl Site {
    /// A store that preserves what it had alone, with a file that is freed.
    fn with_freed_file(is_first: bool) -> (Self, Ino) {
        let disk = Disk::default();
        Store::create(&disk.mount(), UUID, &LogOptions::default()).unwrap();
        let site = Self::open(disk, is_first);
        let ino = site.store.next_ino().unwrap();
        let name = || FileName::new(b"f").unwrap();
        site.commit(
            1,
            MetaRequest::creation(Ino::ROOT, name(), ino, NodeKind::File).request(),
        );
        let (osn, time) = (osn(2), Timestamp::default());
        let written = site.store.write(ino, OFFSET as u64, BYTES, osn, time);
        written.unwrap();
        site.store.sync_everything().unwrap();
        site.store.lost_found().begin(Generation::FIRST, None);
        let parent = Ino::ROOT;
        site.commit(
            3,
            MetaRequest::Unlink {
                parent,
                name: name(),
            },
        );
        site.commit(4, MetaRequest::Reap { ino });
        (site, ino)
    }

    fn open(disk: Disk, is_first: bool) -> Self {
        let options = OpenOptions::for_test(UUID);
        let mut store = Store::open(disk.mount(), &options).unwrap().store;
        let archive = Arc::new(Archive::default());
        let observer = Arc::clone(&archive) as Arc<dyn ByteObserver>;
        if is_first {
            store.content.observers_mut().add_first(observer);
        } else {
            store.content.observers_mut().add_last(observer);
        }
        Self {
            disk,
            store,
            archive,
            is_first,
        }
    }

    /// Kills the process after a checkpoint, and opens the store again.
    fn restarted(self) -> Self {
        self.store.checkpoint().unwrap();
        Self::open(self.disk.fork(), self.is_first)
    }

    fn commit(&self, sequence: u64, request: MetaRequest) {
        let op = MetaOp {
            osn: osn(sequence),
            time: Timestamp::default(),
            request,
        };
        self.store.commit(&op).unwrap();
    }

    /// Checks that both observers have the content, and that nothing is left in its place.
    fn check(&self, ino: Ino) {
        let content = [&[0; OFFSET], BYTES].concat();
        let preserved = format!(".lockstep/lost+found/1/content/0/{ino}");
        for path in [archived(ino), preserved] {
            assert_eq!(self.disk.read_all(&path).as_ref(), Some(&content), "{path}");
        }
        assert_eq!(self.disk.read_all(&content_path(ino)), None);
    }
}

fn osn(sequence: u64) -> Osn {
    Osn {
        generation: Generation::FIRST,
        sequence,
    }
}

#[test]
fn each_observer_gets_the_content_that_it_needs() {
    for is_first in [false, true] {
        let (site, ino) = Site::with_freed_file(is_first);
        assert_eq!(site.store.collect_garbage().unwrap(), 1);
        site.check(ino);
        assert_eq!(site.store.collect_garbage().unwrap(), 0);
    }
}

#[test]
fn the_marks_of_all_observers_outlive_the_process() {
    for is_first in [false, true] {
        let (site, ino) = Site::with_freed_file(is_first);
        let site = site.restarted();
        assert_eq!(site.store.collect_garbage().unwrap(), 1);
        site.check(ino);
    }
}

/// An observer that fails keeps the content in its place, also where an earlier observer has a copy.
#[test]
fn an_observer_that_fails_is_asked_again() {
    for is_first in [false, true] {
        let (site, ino) = Site::with_freed_file(is_first);
        site.archive.fails.store(true, Ordering::Relaxed);
        site.store.collect_garbage().unwrap_err();
        assert!(site.disk.read_all(&content_path(ino)).is_some());
        assert_eq!(site.store.collect_garbage().unwrap(), 1);
        site.check(ino);
    }
}

/// A copy and its name are durable before the content leaves its place.
#[test]
fn a_power_loss_after_the_removal_takes_neither_copy() {
    for is_first in [false, true] {
        let (site, ino) = Site::with_freed_file(is_first);
        assert_eq!(site.store.collect_garbage().unwrap(), 1);
        site.store.sync_everything().unwrap();
        let disk = site.disk.after_power_loss(Survivors::Nothing, 1);
        Site { disk, ..site }.check(ino);
    }
}
