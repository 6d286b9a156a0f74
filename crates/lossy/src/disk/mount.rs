//! The disk as one process has it: the calls of [`Backing`].
//!
//! The disk is not locked while an observer is asked. If the process ends meanwhile, the call fails and
//! changes nothing.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use lockstep_types::Errno;
use lockstep_types::backing::{
    Backing, BackingFile, BackingStat, BackingTable, ReservedRuns, Space,
};

use super::Disk;
use super::call::{Action, CallClass, Extent, FileAction, Verdict};
use super::names::{Entry, InodeNumber};
use super::state::{State, refused};

/// The hold of one process on a disk. The hold ends when the disk gets another incarnation.
#[derive(Clone)]
pub(crate) struct Mount {
    pub(super) disk: Disk,
    pub(super) incarnation: u64,
}

impl Disk {
    /// Returns the disk as the present process has it. The next [`Self::kill`] or power loss ends all mounts.
    pub fn mount(&self) -> Arc<dyn Backing> {
        Arc::new(self.mount_for_kernel())
    }

    /// The same mount, with the calls that only the kernel makes.
    pub(crate) fn mount_for_kernel(&self) -> Mount {
        Mount {
            disk: self.clone(),
            incarnation: self.state.lock().incarnation(),
        }
    }
}

/// Kind of a named object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
}

/// Removes empty and `.` components from a path. Refuses a path that leaves the disk.
fn clean(path: &str) -> io::Result<String> {
    let parts = || {
        path.split('/')
            .filter(|part| !part.is_empty() && *part != ".")
    };
    if path.starts_with('/') || parts().any(|part| part == "..") {
        return Err(refused(Errno::Invalid));
    }
    Ok(parts().collect::<Vec<_>>().join("/"))
}

/// Cleans a path that must name something below the top.
fn clean_name(path: &str) -> io::Result<String> {
    let path = clean(path)?;
    if path.is_empty() {
        return Err(refused(Errno::Invalid));
    }
    Ok(path)
}

/// The calls of a kernel besides the calls of [`Backing`].
impl Mount {
    /// The kind of a path. The empty path is the top.
    pub(crate) fn kind(&self, path: &str) -> io::Result<Kind> {
        let path = clean(path)?;
        self.look(CallClass::Look, |state| {
            let entry = state.names.find(&path).map_err(refused)?;
            Ok(match entry {
                Entry::File(_) => Kind::File,
                Entry::Directory => Kind::Directory,
            })
        })
    }

    /// Makes an empty file; `AlreadyExists` if the path exists.
    pub(crate) fn create(&self, path: &str) -> io::Result<()> {
        self.act(Action::Create(&clean_name(path)?))
    }

    /// Makes an empty directory; `AlreadyExists` if the path exists.
    pub(crate) fn make_directory(&self, path: &str) -> io::Result<()> {
        self.act(Action::MakeDirectory(&clean_name(path)?))
    }

    /// Removes a directory; `DirectoryNotEmpty` if it is not empty.
    pub(crate) fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.act(Action::RemoveDirectory(&clean_name(path)?))
    }
}

impl Mount {
    /// Makes a call that changes nothing.
    fn look<T>(
        &self,
        class: CallClass,
        body: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.disk.state.lock();
        state.check(self.incarnation)?;
        if let Some(errno) = state.faults.meet(class, None) {
            return Err(refused(errno));
        }
        body(&mut state)
    }

    /// Makes a call that changes or saves something.
    fn act(&self, action: Action<'_>) -> io::Result<()> {
        let verdict = self.ask(action)?;
        let mut state = self.disk.state.lock();
        state.check(self.incarnation)?;
        match verdict {
            Verdict::Go => state.act(action),
            Verdict::Fail(errno) => {
                state.fail(action);
                Err(refused(errno))
            }
            Verdict::CrashBefore => state.crash(),
            Verdict::CrashAfter => {
                // The process ends: no caller learns whether the call succeeded.
                let _ = state.act(action);
                state.crash()
            }
            Verdict::CrashTorn(bytes) => {
                let _ = action.torn(bytes).map(|part| state.act(part));
                state.crash()
            }
            Verdict::CrashInside { thousandths } => {
                let _ = action.cut(thousandths).map(|part| state.act(part));
                state.crash()
            }
        }
    }

    /// Returns the verdict on a call.
    fn ask(&self, action: Action<'_>) -> io::Result<Verdict> {
        let (call, observer, met) = {
            let mut state = self.disk.state.lock();
            state.check(self.incarnation)?;
            let call = action.call(state.next_serial());
            let class = call.kind.class();
            let met = class.and_then(|class| state.faults.meet(class, Some(call.path)));
            (call, state.observer.clone(), met)
        };
        let verdict = observer.map_or(Verdict::Go, |observer| observer(&call));
        Ok(match (verdict, met) {
            (Verdict::Go, Some(errno)) => Verdict::Fail(errno),
            (Verdict::Fail(_), _) if call.kind.class().is_none() => Verdict::Go,
            (verdict, _) => verdict,
        })
    }

    fn open_file(&self, path: String) -> io::Result<MountedFile> {
        let number = self.look(CallClass::Look, |state| state.open(&path))?;
        Ok(MountedFile {
            mount: self.clone(),
            path,
            number,
        })
    }

    fn open_or_create_file(&self, path: &str) -> io::Result<MountedFile> {
        let path = clean_name(path)?;
        match self.open_file(path.clone()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match self.act(Action::Create(&path)) {
                    // Another thread has made the file meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    created => created?,
                }
                self.open_file(path)
            }
            opened => opened,
        }
    }
}

impl Backing for Mount {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(Arc::new(self.open_file(clean_name(path)?)?))
    }

    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        Ok(Arc::new(self.open_or_create_file(path)?))
    }

    /// Reserves space for the whole table, because a table cannot report a full disk.
    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>> {
        if length == 0 {
            return Err(refused(Errno::Invalid));
        }
        let file = self.open_or_create_file(path)?;
        let bytes = length as u64;
        if !file.has_all(bytes)? {
            file.allocate(0, bytes, false)?;
        }
        Ok(Arc::new(MountedTable { file, length }))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.act(Action::Remove(&clean_name(path)?))
    }

    fn remove_empty_dir(&self, path: &str) -> io::Result<bool> {
        match self.remove_directory(path) {
            Ok(()) => Ok(true),
            Err(error) => match error.kind() {
                io::ErrorKind::DirectoryNotEmpty
                | io::ErrorKind::NotFound
                | io::ErrorKind::NotADirectory => Ok(false),
                _ => Err(error),
            },
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.act(Action::Rename(&clean_name(from)?, &clean_name(to)?))
    }

    fn exists(&self, path: &str) -> io::Result<bool> {
        let path = clean(path)?;
        self.look(CallClass::Look, |state| Ok(state.names.find(&path).is_ok()))
    }

    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        let path = clean(path)?;
        self.look(CallClass::Look, |state| {
            match state.names.find(&path).map_err(refused)? {
                Entry::File(number) => state.stat(number),
                Entry::Directory => Ok(BackingStat::default()),
            }
        })
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let path = clean(path)?;
        self.look(CallClass::Look, |state| {
            state.names.list(&path).map_err(refused)
        })
    }

    fn sync_dir(&self, path: &str) -> io::Result<()> {
        self.act(Action::SyncDirectory(&clean(path)?))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.act(Action::SyncAll)
    }

    fn space(&self) -> io::Result<Space> {
        self.look(CallClass::Look, |state| Ok(state.space()))
    }

    /// As if the file system were unmounted and mounted again.
    fn forget_cached(&self) -> io::Result<()> {
        self.sync_all()?;
        self.look(CallClass::Look, |state| {
            state.forget_cached();
            Ok(())
        })
    }
}

/// An open file; closed when dropped.
struct MountedFile {
    mount: Mount,
    path: String,
    number: InodeNumber,
}

impl Drop for MountedFile {
    fn drop(&mut self) {
        let mut state = self.mount.disk.state.lock();
        state.close(self.number, self.mount.incarnation);
    }
}

impl MountedFile {
    fn act(&self, action: FileAction<'_>) -> io::Result<()> {
        self.mount
            .act(Action::File(&self.path, self.number, action))
    }

    /// Whether the file has `bytes` bytes, with space for all of them.
    fn has_all(&self, bytes: u64) -> io::Result<bool> {
        self.mount.look(CallClass::Look, |state| {
            let length = state.content(self.number)?.length();
            let inode = state.inode(self.number);
            let missing = inode.map_or(0, |inode| inode.missing_pages(&(0..bytes)));
            Ok(length >= bytes && missing == 0)
        })
    }
}

impl BackingFile for MountedFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.mount.look(CallClass::Read, |state| {
            Ok(state.content(self.number)?.read(offset, into))
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.act(FileAction::Write { offset, data })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.act(FileAction::SetLength(length))
    }

    fn stat(&self) -> io::Result<BackingStat> {
        self.mount
            .look(CallClass::Look, |state| state.stat(self.number))
    }

    fn allocate(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        self.act(FileAction::Allocate(Extent {
            offset,
            length,
            keep_size,
        }))
    }

    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        self.act(FileAction::PunchHole(Extent {
            offset,
            length,
            keep_size: true,
        }))
    }

    fn zero_range(&self, offset: u64, length: u64, keep_size: bool) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        self.act(FileAction::ZeroRange(Extent {
            offset,
            length,
            keep_size,
        }))
    }

    fn reserved(&self, range: Range<u64>) -> io::Result<ReservedRuns> {
        self.mount.look(CallClass::Look, |state| {
            Ok(state.content(self.number)?.reserved(&range))
        })
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.mount.look(CallClass::Read, |state| {
            Ok(state.content(self.number)?.seek_data(offset))
        })
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.mount.look(CallClass::Read, |state| {
            Ok(state.content(self.number)?.seek_hole(offset))
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.act(FileAction::Sync)
    }
}

/// A file as memory.
struct MountedTable {
    file: MountedFile,
    length: usize,
}

impl MountedTable {
    fn check(&self, offset: usize, count: usize) {
        let end = offset.checked_add(count);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "{count} bytes at {offset} are outside a table of {} bytes",
            self.length
        );
    }
}

impl BackingTable for MountedTable {
    fn len(&self) -> usize {
        self.length
    }

    /// Zeros after the end of the process, which cannot use them.
    fn load(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        into.fill(0);
        let state = self.file.mount.disk.state.lock();
        if state.check(self.file.mount.incarnation).is_ok()
            && let Ok(content) = state.content(self.file.number)
        {
            content.read(offset as u64, into);
        }
    }

    fn store(&self, offset: usize, data: &[u8]) {
        self.check(offset, data.len());
        let offset = offset as u64;
        // The call can fail only after the end of the process, and memory reports no error.
        let _ = self.file.act(FileAction::Store { offset, data });
    }
}
