//! The model of a file system as a service, behind one lock. Tests mount it in place of a datastore, and compare
//! datastores with it.
//!
//! Besides the model, the service counts references of the kernel and gives out inode numbers. Every operation is
//! done when the call returns, and nothing survives the process.

#![allow(dead_code)] // No test uses all of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::time::SystemTime;

use lockstep_driver::client::{
    DirEntry, Done, FileService, ReadDone, Seek, WriteData, WriteOptions,
};
use lockstep_model::{Content, Model};
use lockstep_types::backing::Space;
use lockstep_types::limits::WRITE_BYTES_MAX;
use lockstep_types::{AllocateMode, Attr, Errno, FileName, Ino, MetaRequest, Timestamp};
use parking_lot::Mutex;

/// The model lives in memory: a larger `fallocate` is refused.
const ALLOCATE_MAX: u64 = 1 << 30;

/// Bytes of a part of an allocation.
const PART_BYTES: usize = 16 << 10;
/// A range that ends behind this is one part.
const PARTED_MAX: u64 = 1 << 20;

/// The service.
#[derive(Default)]
pub struct ModelFs {
    state: Mutex<State>,
}

struct State {
    model: Model,
    /// References that the kernel's cache and open handles hold on inodes.
    holds: BTreeMap<Ino, u64>,
    last_ino: Ino,
    /// Number of executed allocations.
    allocations: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            model: Model::default(),
            holds: BTreeMap::new(),
            last_ino: Ino::ROOT,
            allocations: 0,
        }
    }
}

impl State {
    fn hold(&mut self, ino: Ino, count: u64) {
        *self.holds.entry(ino).or_default() += count;
    }

    /// Drops references. The last one frees an inode without a name.
    fn release(&mut self, ino: Ino, count: u64) {
        let held = self.holds.entry(ino).or_default();
        *held = held.checked_sub(count).expect("released more than held");
        if *held == 0 {
            self.holds.remove(&ino);
            self.reap(ino);
        }
    }

    /// Frees an inode without a name that nothing holds.
    fn reap(&mut self, ino: Ino) {
        if !self.holds.contains_key(&ino) {
            // The model refuses if the inode has a name.
            let _ = self.model.apply(now(), &MetaRequest::Reap { ino });
        }
    }

    fn change(&mut self, request: &MetaRequest) -> Result<Option<Attr>, Errno> {
        if let MetaRequest::Allocate { length, mode, .. } = request
            && *mode != AllocateMode::PunchHole
            && *length > ALLOCATE_MAX
        {
            return Err(Errno::NoSpace);
        }
        let effect = self.model.apply(now(), request)?;
        self.allocations += u64::from(matches!(request, MetaRequest::Allocate { .. }));
        if let Some(ino) = effect.orphaned {
            self.reap(ino);
        }
        let subject = effect.subject;
        subject.map(|ino| self.model.attr(ino)).transpose()
    }

    fn write(&mut self, ino: Ino, offset: u64, data: &[u8], drop: bool) -> Result<(), Errno> {
        self.model.write(now(), ino, offset, data)?;
        if drop {
            self.change(&MetaRequest::DropPrivileges { ino })?;
        }
        Ok(())
    }

    /// Copies; fewer bytes only at the end of the source.
    fn copy(&mut self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64, Errno> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let source = self.model.content(from.0)?;
        let data = source.read(from.1, length.min(WRITE_BYTES_MAX));
        self.write(to.0, to.1, &data, false)?;
        Ok(data.len() as u64)
    }
}

impl ModelFs {
    /// Number of inodes, held inodes without a name included.
    pub fn inodes(&self) -> usize {
        self.state.lock().model.nodes().count()
    }

    /// Number of executed allocations.
    pub fn allocations(&self) -> u64 {
        self.state.lock().allocations
    }

    /// References that the kernel's cache and open handles hold on an inode.
    pub fn holds(&self, ino: Ino) -> u64 {
        self.state.lock().holds.get(&ino).copied().unwrap_or(0)
    }
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

impl FileService for ModelFs {
    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno> {
        let model = &self.state.lock().model;
        model.attr(model.find(parent, name)?)
    }

    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno> {
        let model = &self.state.lock().model;
        model.names(directory)?;
        model.attr(model.parent(directory).unwrap_or(directory))
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.state.lock().model.attr(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        Ok(self.state.lock().model.target(ino)?.to_vec())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let model = &self.state.lock().model;
        let value = model.node(ino)?.xattrs.get(name);
        value.cloned().ok_or(Errno::NoData)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let model = &self.state.lock().model;
        let names = model.node(ino)?.xattrs.keys();
        Ok(names.flat_map(|name| [name, &b"\0"[..]].concat()).collect())
    }

    fn readdir(
        &self,
        directory: Ino,
        after: u64,
        each: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let model = &self.state.lock().model;
        for (cookie, name, ino) in model.names(directory)?.after(after) {
            let entry = DirEntry {
                cookie,
                ino,
                kind: model.node(ino)?.kind,
                name: name.clone(),
            };
            if each(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> Result<Space, Errno> {
        Ok(Space {
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            available_bytes: 1 << 39,
            total_files: 1 << 20,
            free_files: 1 << 19,
        })
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let model = &self.state.lock().model;
        let content = model.content(ino)?;
        match what {
            Seek::Data => content.seek_data(offset),
            Seek::Hole => content.seek_hole(offset),
        }
    }

    fn parts(&self, _ino: Ino, range: Range<u64>) -> Vec<Range<u64>> {
        if range.end > PARTED_MAX {
            return vec![range];
        }
        let starts = range.clone().step_by(PART_BYTES);
        let end = |start: u64| (start + PART_BYTES as u64).min(range.end);
        starts.map(|start| start..end(start)).collect()
    }

    fn opened(&self, ino: Ino) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.model.node(ino)?;
        state.hold(ino, 1);
        Ok(())
    }

    fn closed(&self, ino: Ino) {
        self.state.lock().release(ino, 1);
    }

    fn remembered(&self, ino: Ino, count: u64) {
        self.state.lock().hold(ino, count);
    }

    fn forgotten(&self, ino: Ino, count: u64) {
        self.state.lock().release(ino, count);
    }

    fn next_ino(&self) -> Result<Ino, Errno> {
        let mut state = self.state.lock();
        state.last_ino = state.last_ino.next();
        Ok(state.last_ino)
    }

    fn read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone) {
        let read = {
            let model = &self.state.lock().model;
            model
                .content(ino)
                .map(|content| content.read(offset, length))
        };
        done(read.as_deref().map_err(|errno| *errno));
    }

    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: WriteData<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        let data = match data.load() {
            Ok(data) => data,
            Err(errno) => return done(Err(errno)),
        };
        let mut state = self.state.lock();
        let end = offset + data.len() as u64;
        let size = state.model.content(ino).map(Content::size);
        let written = if options.is_resent_append && size == Ok(end) {
            Ok(()) // It is there: the bytes are the same.
        } else {
            state.write(ino, offset, &data, options.drop_set_id)
        };
        drop(state);
        done(written);
    }

    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>) {
        let changed = self.state.lock().change(&request);
        done(changed);
    }

    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>) {
        let copied = self.state.lock().copy(from, to, length);
        done(copied);
    }

    fn sync(&self, ino: Ino, done: Done<()>) {
        let synced = self.state.lock().model.node(ino).map(|_| ());
        done(synced);
    }
}
