//! The calls that change or save something, and their verdicts.

use std::sync::Arc;

use lockstep_types::Errno;

use super::names::InodeNumber;
use super::pages::{PAGE_BYTES, index};

/// A sector of a disk: written whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// Makes an empty file, and the directories above it; or makes a directory.
    Create,
    /// Removes the name of a file, or of an empty directory.
    Remove,
    /// Renames a file.
    Rename,
    /// Writes bytes.
    Write,
    /// Cuts or grows a file.
    SetLength,
    /// Reserves space. Opening a table reserves its space too.
    Allocate,
    /// Frees a range.
    PunchHole,
    /// Zeroes a range.
    ZeroRange,
    /// Writes to a table in memory.
    TableStore,
    /// Saves content and length of a file.
    Sync,
    /// Saves the names in a directory.
    SyncDirectory,
    /// Saves everything.
    SyncAll,
}

/// Classes of calls, for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallClass {
    /// Reading, and looking for data and holes.
    Read,
    /// Opening, listing, `stat` and `space`.
    Look,
    /// Making, removing and renaming.
    Name,
    /// Writing, and all other changes of content, length or space. Not stores into tables: they cannot fail.
    Write,
    /// The three syncs.
    Sync,
}

impl CallKind {
    /// The class of the call; `None` for calls that cannot fail.
    pub fn class(self) -> Option<CallClass> {
        match self {
            Self::Create | Self::Remove | Self::Rename => Some(CallClass::Name),
            Self::Write | Self::SetLength | Self::Allocate | Self::PunchHole | Self::ZeroRange => {
                Some(CallClass::Write)
            }
            Self::Sync | Self::SyncDirectory | Self::SyncAll => Some(CallClass::Sync),
            Self::TableStore => None,
        }
    }
}

/// A call that has not happened yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The kind of the call.
    pub kind: CallKind,
    /// The file or directory. An open file has the path by which it was opened. Empty for the top.
    pub path: &'a str,
    /// The new name, if the call renames.
    pub to: Option<&'a str>,
    /// Offset in bytes; the length for [`CallKind::SetLength`]; otherwise zero.
    pub offset: u64,
    /// Length in bytes, or zero if the call has none.
    pub length: u64,
    /// Number of the call on this disk, from 1.
    pub serial: u64,
}

/// The outcome of a call. Each `Crash` verdict kills the process at that point: this call and all later calls
/// fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call happens.
    Go,
    /// The process ends before the call.
    CrashBefore,
    /// The process ends after the call.
    CrashAfter,
    /// The process ends in the middle of the call, when so many bytes have reached the file. A write ends at
    /// a page of the file, as the kernel copies by pages; a store into a table ends at any byte. For all
    /// other calls the same as `CrashBefore`.
    CrashTorn(u64),
    /// The same, when so many thousandths of the bytes have reached the file. A write ends at a sector of the
    /// file: the kernel copies so if it has to wait for a page of the process in between.
    CrashInside {
        /// Less than a thousand.
        thousandths: u16,
    },
    /// The call fails and changes nothing. A sync fails as in Linux, see [`Disk::fail_call`]. A store into a
    /// table cannot fail: for it the same as `Go`.
    ///
    /// [`Disk::fail_call`]: super::Disk::fail_call
    Fail(Errno),
}

/// The observer of a disk, which is asked before each call. The disk is not locked meanwhile.
pub type Observer = Arc<dyn Fn(&Call<'_>) -> Verdict + Send + Sync>;

/// A change or a sync, with all it needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action<'a> {
    Create(&'a str),
    MakeDirectory(&'a str),
    Remove(&'a str),
    /// Of an empty directory.
    RemoveDirectory(&'a str),
    Rename(&'a str, &'a str),
    /// On an open file.
    File(&'a str, InodeNumber, FileAction<'a>),
    SyncDirectory(&'a str),
    SyncAll,
}

/// A change or sync of an open file.
#[derive(Clone, Copy, Debug)]
pub(super) enum FileAction<'a> {
    Write { offset: u64, data: &'a [u8] },
    Store { offset: u64, data: &'a [u8] },
    SetLength(u64),
    Allocate(Extent),
    PunchHole(Extent),
    ZeroRange(Extent),
    Sync,
}

/// A range that may grow a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub offset: u64,
    pub length: u64,
    pub keep_size: bool,
}

impl Action<'_> {
    /// The call as an observer sees it.
    pub(super) fn call(&self, serial: u64) -> Call<'_> {
        let name = |kind, path| Call {
            kind,
            path,
            to: None,
            offset: 0,
            length: 0,
            serial,
        };
        match *self {
            Self::Create(path) | Self::MakeDirectory(path) => name(CallKind::Create, path),
            Self::Remove(path) | Self::RemoveDirectory(path) => name(CallKind::Remove, path),
            Self::Rename(path, to) => Call {
                to: Some(to),
                ..name(CallKind::Rename, path)
            },
            Self::SyncDirectory(path) => name(CallKind::SyncDirectory, path),
            Self::SyncAll => name(CallKind::SyncAll, ""),
            Self::File(path, _, action) => {
                let (kind, offset, length) = action.place();
                Call {
                    offset,
                    length,
                    ..name(kind, path)
                }
            }
        }
    }

    /// The part of the action that is done if the process ends after so many bytes.
    pub(super) fn torn(self, bytes: u64) -> Option<Self> {
        self.part(bytes, PAGE_BYTES)
    }

    /// The part of the action that is done if the process ends after so many thousandths of it.
    pub(super) fn cut(self, thousandths: u16) -> Option<Self> {
        let length = self.call(0).length;
        let bytes = length.saturating_mul(thousandths.into()) / 1000;
        self.part(bytes, SECTOR_BYTES)
    }

    fn part(self, bytes: u64, grain: u64) -> Option<Self> {
        let Self::File(path, number, action) = self else {
            return None;
        };
        Some(Self::File(path, number, action.part(bytes, grain)?))
    }
}

impl<'a> FileAction<'a> {
    fn place(&self) -> (CallKind, u64, u64) {
        match *self {
            Self::Write { offset, data } => (CallKind::Write, offset, data.len() as u64),
            Self::Store { offset, data } => (CallKind::TableStore, offset, data.len() as u64),
            Self::SetLength(length) => (CallKind::SetLength, length, 0),
            Self::Allocate(extent) => (CallKind::Allocate, extent.offset, extent.length),
            Self::PunchHole(extent) => (CallKind::PunchHole, extent.offset, extent.length),
            Self::ZeroRange(extent) => (CallKind::ZeroRange, extent.offset, extent.length),
            Self::Sync => (CallKind::Sync, 0, 0),
        }
    }

    /// The first bytes of the action, up to a multiple of `grain` in the file.
    fn part(self, bytes: u64, grain: u64) -> Option<Self> {
        let prefix = |data: &'a [u8], bytes| data.get(..index(bytes)).unwrap_or(data);
        match self {
            Self::Write { offset, data } => {
                let end = offset.saturating_add(bytes);
                let pieces = (end - end % grain).saturating_sub(offset);
                let is_whole = bytes >= data.len() as u64;
                let data = prefix(data, if is_whole { bytes } else { pieces });
                Some(Self::Write { offset, data })
            }
            Self::Store { offset, data } => {
                let data = prefix(data, bytes);
                Some(Self::Store { offset, data })
            }
            _ => None,
        }
    }
}
