//! The work of the threads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_fs::store::{Applied, SeekFor};
use lockstep_fs::{OpError, Store};
use lockstep_sim::random::Random;
use lockstep_types::backing::Backing;
use lockstep_types::{
    AllocateMode, Errno, Ino, MetaOp, MetaRequest, NodeKind, Osn, RenameMode, StateVersion,
    Timestamp,
};
use parking_lot::Mutex;

use super::expected::{Content, Expected, Names, Saves};
use super::{Layout, REGION_BYTES, creation, file_name, osn, skip_numbers};

/// Most files of a thread.
const FILES_MAX: usize = 4;
/// The largest size of a thread's file.
const FILE_BYTES: u64 = 14_000;

/// An open store, and the state that its threads share.
pub struct Session<'a> {
    pub store: Store,
    pub backing: Arc<dyn Backing>,
    pub layout: &'a Layout,
    pub expected: &'a Mutex<Expected>,
    /// Operations wait for another node: they are pending first, and applied later.
    pub is_mirrored: bool,
    pub sequence: AtomicU64,
    /// Held while an operation gets its number and is logged, and while operations are applied.
    pub sequencer: Mutex<Sequencer>,
    pub is_over: AtomicBool,
    /// A disk call has failed, or was the last call of the process, or such a call is about to
    /// return.
    pub has_ended: Arc<AtomicBool>,
}

/// The pending operations, and the results of the operations that other threads have applied.
#[derive(Default)]
pub struct Sequencer {
    pending: VecDeque<Osn>,
    applied: BTreeMap<Osn, Option<Applied>>,
    /// An operation could not be applied, so no later operation may be applied.
    is_stuck: bool,
}

impl Session<'_> {
    fn next_osn(&self) -> (Osn, Timestamp) {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let osn = osn(sequence);
        let secs = i64::try_from(sequence).unwrap();
        (osn, Timestamp { secs, nanos: 3 })
    }

    /// Does something that saves, and records the saved data.
    fn save(
        &self,
        saves: Saves,
        sync: impl FnOnce() -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let covered = self.expected.lock().covered(saves);
        sync()?;
        self.expected.lock().save(&covered);
        Ok(())
    }

    /// Syncs a file as for a client: does nothing if the file has not changed since its last sync.
    fn sync(&self, ino: Ino) -> Result<(), OpError> {
        let unless = self.expected.lock().covered(Saves::File(ino, false));
        if self.store.is_synced(ino, StateVersion(0)) {
            self.expected.lock().save(&unless);
            return Ok(());
        }
        let point = self.store.sync_point(ino, StateVersion(0));
        self.save(Saves::File(ino, true), || self.store.sync_file(ino, true))?;
        if let Some(point) = point {
            self.store.note_synced(ino, point);
        }
        Ok(())
    }

    /// Does the maintenance beside the threads, until they are done.
    pub fn maintain(&self, mut random: Random) {
        while !self.is_over.load(Ordering::Relaxed) {
            if let Err(error) = self.maintain_once(&mut random) {
                return self.must_have_ended(&error);
            }
            std::thread::sleep(std::time::Duration::from_micros(random.below(300)));
        }
    }

    fn maintain_once(&self, random: &mut Random) -> Result<(), OpError> {
        let store = &self.store;
        match random.below(5) {
            0 => {
                store.collect_garbage()?;
                Ok(store.remove_empty_directories().map(drop)?)
            }
            1 => self.save(Saves::Names, || Ok(store.sync_all_applied()?)),
            2 => self.save(Saves::Everything, || self.sync_everything()),
            _ => self.save(Saves::Times, || Ok(store.checkpoint()?)),
        }
    }

    /// Syncs everything. The result is not trusted beside a failing call, and the sync itself is
    /// never made to fail. Linux reports a failure once to each caller that syncs the file, and
    /// once to each caller that syncs everything. The simulated disk reports it only to the first
    /// of both. The other callers see success until the first caller has passed the error on.
    fn sync_everything(&self) -> Result<(), OpError> {
        self.store.sync_everything()?;
        if self.has_ended.load(Ordering::SeqCst) {
            return Err(Errno::Io.into());
        }
        Ok(())
    }

    /// Without a failed call, every operation must succeed.
    fn must_have_ended(&self, error: &OpError) {
        assert!(self.has_ended.load(Ordering::SeqCst), "{error}");
    }

    /// Closes the store, as a node does.
    pub fn close(&self) -> Result<(), OpError> {
        self.save(Saves::Everything, || {
            // The previous process may have been killed, and have left unsynced data.
            self.store.sync_everything()?;
            Ok(self.store.close()?)
        })
    }
}

/// A thread that changes files of its own, and its region of the shared file.
pub struct Worker<'a> {
    pub session: &'a Session<'a>,
    pub number: usize,
    pub random: Random,
}

impl Worker<'_> {
    /// Does up to `operations` operations, until one fails.
    pub fn work(&mut self, operations: u64) {
        for _ in 0..operations {
            if let Err(error) = self.work_once() {
                return self.session.must_have_ended(&error);
            }
        }
    }

    fn work_once(&mut self) -> Result<(), OpError> {
        match self.random.below(20) {
            0..2 => self.create(),
            2 => self.rename(),
            3 => self.unlink(),
            4..6 => self.truncate(),
            6 => self.punch(),
            7 => self.change_mode(),
            8..14 => self.write_own(),
            14..17 => self.write_shared(),
            17 => self.sync_own(),
            18 => self.sync_any(),
            _ => self.look_at_any(),
        }
    }

    fn directory(&self) -> Ino {
        self.session.layout.directories[self.number]
    }

    fn names(&self) -> Names {
        self.session.expected.lock().names[self.number]
            .now()
            .clone()
    }

    fn any_name(&mut self) -> Option<(String, Ino)> {
        let entries: Vec<_> = self.names().entries.into_iter().collect();
        (!entries.is_empty()).then(|| self.random.pick(&entries).clone())
    }

    /// Carries out a metadata operation that changes the names of this thread to `names`. Just
    /// before the operation, `tried` records the other changes.
    fn change(
        &self,
        request: MetaRequest,
        names: impl FnOnce(&mut Names),
        tried: impl FnOnce(&mut Expected, Timestamp),
    ) -> Result<Applied, OpError> {
        let mut sequencer = self.session.sequencer.lock();
        let (osn, time) = self.session.next_osn();
        let op = MetaOp { osn, time, request };
        self.try_next(osn, time, names, tried);
        let applied = if self.session.is_mirrored {
            self.session.store.validate(&op)?;
            self.session.store.intents().log(&op)?;
            sequencer.pending.push_back(osn);
            drop(sequencer);
            std::thread::yield_now();
            self.apply(osn)?
        } else {
            self.session.store.commit(&op)?
        };
        self.session.expected.lock().names[self.number].acknowledge();
        Ok(applied)
    }

    fn try_next(
        &self,
        osn: Osn,
        time: Timestamp,
        names: impl FnOnce(&mut Names),
        tried: impl FnOnce(&mut Expected, Timestamp),
    ) {
        let mut expected = self.session.expected.lock();
        let mut next = expected.names[self.number].now().clone();
        next.sequence = osn.sequence;
        names(&mut next);
        expected.names[self.number].begin(next);
        tried(&mut expected, time);
    }

    /// Applies the pending operations up to an operation, unless another thread has applied it.
    fn apply(&self, osn: Osn) -> Result<Applied, OpError> {
        let mut sequencer = self.session.sequencer.lock();
        while !sequencer.is_stuck && sequencer.pending.front().is_some_and(|next| *next <= osn) {
            let next = sequencer.pending.pop_front().unwrap();
            match self.session.store.intents().commit(next) {
                Ok(applied) => drop(sequencer.applied.insert(next, applied)),
                Err(_) => sequencer.is_stuck = true,
            }
        }
        let applied = sequencer.applied.remove(&osn).flatten();
        applied.ok_or_else(|| Errno::Io.into())
    }

    fn create(&mut self) -> Result<(), OpError> {
        let names = self.names();
        if names.entries.len() >= FILES_MAX {
            return self.unlink();
        }
        if self.random.percent(25) {
            skip_numbers(&self.session.store)?;
        }
        let ino = self.session.store.next_ino()?;
        let name = format!("n{}", ino.get());
        let request = creation(self.directory(), file_name(&name), ino, NodeKind::File);
        let made = |names: &mut Names| {
            names.entries.insert(name, ino);
        };
        let tried =
            |expected: &mut Expected, time| drop(expected.contents.insert(ino, Content::new(time)));
        self.change(request, made, tried).map(drop)
    }

    /// Renames a file to a free name, or over another file.
    fn rename(&mut self) -> Result<(), OpError> {
        let (Some((from, ino)), Some((to, _))) = (self.any_name(), self.any_name()) else {
            return Ok(());
        };
        let to = if to == from { format!("{from}r") } else { to };
        let request = MetaRequest::Rename {
            parent: self.directory(),
            name: file_name(&from),
            new_parent: self.directory(),
            new_name: file_name(&to),
            mode: RenameMode::Replace,
        };
        let renamed = |names: &mut Names| {
            names.entries.remove(&from);
            names.entries.insert(to, ino);
        };
        let applied = self.change(request, renamed, |_, _| ())?;
        self.reap(&applied)
    }

    fn unlink(&mut self) -> Result<(), OpError> {
        let Some((name, _)) = self.any_name() else {
            return Ok(());
        };
        let request = MetaRequest::Unlink {
            parent: self.directory(),
            name: file_name(&name),
        };
        let gone = |names: &mut Names| {
            names.entries.remove(&name);
        };
        let applied = self.change(request, gone, |_, _| ())?;
        self.reap(&applied)
    }

    /// Frees an inode that has lost its last name.
    fn reap(&self, applied: &Applied) -> Result<(), OpError> {
        let Some(ino) = applied.orphaned else {
            return Ok(());
        };
        let request = MetaRequest::Reap { ino };
        self.change(request, |_| (), |_, _| ()).map(drop)
    }

    fn change_mode(&mut self) -> Result<(), OpError> {
        let Some((_, ino)) = self.any_name() else {
            return Ok(());
        };
        let request = MetaRequest::SetAttr {
            ino,
            mode: Some(0o640),
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
        };
        self.change(request, |_| (), |_, _| ()).map(drop)
    }

    fn truncate(&mut self) -> Result<(), OpError> {
        let size = self.random.below(FILE_BYTES);
        let length = usize::try_from(size).unwrap();
        let request = |ino| MetaRequest::Truncate {
            ino,
            size,
            drop_set_id: false,
        };
        self.change_content(request, |bytes| bytes.resize(length, 0))
    }

    fn punch(&mut self) -> Result<(), OpError> {
        let (offset, length) = (self.random.below(FILE_BYTES), 1 + self.random.below(9000));
        let request = |ino| MetaRequest::Allocate {
            ino,
            mode: AllocateMode::PunchHole,
            offset,
            length,
        };
        let (from, to) = (offset, offset + length);
        self.change_content(request, |bytes| {
            let end = bytes.len();
            let place = |at: u64| usize::try_from(at).unwrap().min(end);
            bytes[place(from)..place(to)].fill(0);
        })
    }

    /// Carries out a metadata operation on the content of a file of this thread. Makes some of
    /// these operations durable, as with `durability = "always"`.
    fn change_content(
        &mut self,
        request: impl FnOnce(Ino) -> MetaRequest,
        effect: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), OpError> {
        let Some((_, ino)) = self.any_name() else {
            return Ok(());
        };
        let tried = |expected: &mut Expected, time| {
            let content = expected.contents.get_mut(&ino).unwrap();
            let mut bytes = content.regions[0].now().clone();
            effect(&mut bytes);
            content.regions[0].begin(bytes);
            content.times.as_mut().unwrap().begin(time);
        };
        let applied = self.change(request(ino), |_| (), tried)?;
        self.acknowledge_content(ino);
        self.check_read(ino)?;
        if self.random.percent(30) {
            let sync = || Ok(self.session.store.sync_applied(&applied)?);
            self.session
                .save(Saves::Operation(self.number, ino), sync)?;
        }
        Ok(())
    }

    fn acknowledge_content(&self, ino: Ino) {
        let mut expected = self.session.expected.lock();
        let content = expected.contents.get_mut(&ino).unwrap();
        content.region_of(self.number).acknowledge();
        if let Some(times) = &mut content.times {
            times.acknowledge();
        }
    }

    fn write_own(&mut self) -> Result<(), OpError> {
        let Some((_, ino)) = self.any_name() else {
            return self.create();
        };
        let offset = usize::try_from(self.random.below(FILE_BYTES)).unwrap();
        let length = 1 + usize::try_from(self.random.below(9000)).unwrap();
        self.write(ino, 0, offset, length)
    }

    fn write_shared(&mut self) -> Result<(), OpError> {
        let place = |random: &mut Random, bound: usize| {
            usize::try_from(random.below(bound as u64)).unwrap()
        };
        let offset = place(&mut self.random, REGION_BYTES);
        let length = 1 + place(&mut self.random, REGION_BYTES - offset);
        let region = self.number * REGION_BYTES;
        self.write(self.session.layout.shared, region, offset, length)
    }

    /// Writes to the region of a file that begins at `region`, as a node does.
    fn write(
        &mut self,
        ino: Ino,
        region: usize,
        offset: usize,
        length: usize,
    ) -> Result<(), OpError> {
        let data = vec![u8::try_from(1 + self.random.below(250)).unwrap(); length];
        let durable = self.random.percent(30);
        let (osn, time) = self.session.next_osn();
        self.try_write(ino, offset, &data, time);
        let store = &self.session.store;
        let (at, count) = ((region + offset) as u64, length as u64);
        let ticket = store.begin_write(ino, at, count, durable)?;
        if let Err(error) = store.write_begun(&ticket, at, &data) {
            ticket.abandon();
            return Err(error.into());
        }
        if durable && let Err(error) = store.sync_file(ino, false) {
            ticket.abandon();
            return Err(error);
        }
        store.complete_write(&ticket, at + count, osn, time);
        drop(ticket);
        // A killed process has acknowledged nothing.
        self.session.backing.space().map_err(|_| Errno::Io)?;
        self.acknowledge_content(ino);
        if durable {
            self.note_written_durably(ino);
        }
        self.check_read(ino)
    }

    fn try_write(&self, ino: Ino, offset: usize, data: &[u8], time: Timestamp) {
        let mut expected = self.session.expected.lock();
        let content = expected.contents.get_mut(&ino).unwrap();
        let region = content.region_of(self.number);
        let mut bytes = region.now().clone();
        let end = offset + data.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset..end].copy_from_slice(data);
        region.begin(bytes);
        if let Some(times) = &mut content.times {
            times.begin(time);
        }
    }

    /// Records that a file's content of this thread is durable: its last write was durable, and so
    /// are all earlier writes.
    fn note_written_durably(&self, ino: Ino) {
        let mut expected = self.session.expected.lock();
        expected
            .contents
            .get_mut(&ino)
            .unwrap()
            .region_of(self.number)
            .save_now();
    }

    /// Checks that a read returns the last acknowledged content.
    fn check_read(&self, ino: Ino) -> Result<(), OpError> {
        let is_shared = ino == self.session.layout.shared;
        let offset = if is_shared {
            self.number * REGION_BYTES
        } else {
            0
        };
        let expected = {
            let mut expected = self.session.expected.lock();
            let content = expected.contents.get_mut(&ino).unwrap();
            content.region_of(self.number).now().clone()
        };
        // One byte more, to find the end of a file of this thread.
        let mut bytes = vec![0; expected.len() + usize::from(!is_shared)];
        let count = self.session.store.read(ino, offset as u64, &mut bytes)?;
        bytes.truncate(count);
        assert!(
            bytes == expected,
            "thread {} reads {} bytes of {ino}, not {}, and other bytes from {:?} on",
            self.number,
            bytes.len(),
            expected.len(),
            bytes
                .iter()
                .zip(&expected)
                .position(|(is, should)| is != should),
        );
        Ok(())
    }

    fn sync_own(&mut self) -> Result<(), OpError> {
        match self.any_name() {
            Some((_, ino)) => self.session.sync(ino),
            None => self.session.sync(self.session.layout.shared),
        }
    }

    fn sync_any(&mut self) -> Result<(), OpError> {
        let ino = self.any_file();
        unless_refused(self.session.sync(ino))
    }

    fn look_at_any(&mut self) -> Result<(), OpError> {
        let ino = self.any_file();
        let found = self.session.store.seek(ino, 0, SeekFor::Hole);
        unless_refused(found.map(drop))
    }

    /// Returns any file, also a file that another thread changes or has removed.
    fn any_file(&mut self) -> Ino {
        let files: Vec<Ino> = self
            .session
            .expected
            .lock()
            .contents
            .keys()
            .copied()
            .collect();
        *self.random.pick(&files)
    }
}

/// Ignores the refusal of an operation on a removed file.
fn unless_refused(result: Result<(), OpError>) -> Result<(), OpError> {
    match result {
        Err(OpError::Refused(_)) => Ok(()),
        result => result,
    }
}
