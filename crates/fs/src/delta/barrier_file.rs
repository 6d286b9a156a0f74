//! The names of the barriers that this node has reached, on stable storage: the file `tables/barrier` (rule P27).
//!
//! The file has two slots of 4 KiB. Each change writes the other slot than the last one, and syncs. The slot with the higher number
//! counts, so a change that was interrupted has not happened, or has happened as a whole. A slot that cannot be read has no names.
//!
//! *The source of a resync has its rest beside the names* ([`super::rest_copy`]): the note says the number of the copy, and the names count
//! after a loss of power only with that copy.
//!
//! *A node that serves alone hides its names*: they count only while there is a coverage, in memory that outlives the process or by the
//! trace ([`super::trace`]). Without a trace nothing names after a loss of power what the node has done alone, so it has no names then.
//!
//! Locks: one, which is held across the change of the file and never under the lock of the barriers' machine.

use std::sync::Arc;

use lockstep_delta::{BarrierName, BarrierNames, Interval};
use lockstep_types::backing::Backing;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::form::{seal, unseal};
use super::rest_copy::RestCopy;
use crate::error::StoreError;
use crate::paths::{BARRIER_FILE, TABLES_DIR};

/// The version of this form.
const VERSION: u16 = 1;
/// Bytes of a slot. A disk writes each of them by itself.
const SLOT_BYTES: u64 = 4096;

/// A name: the interval and the random bytes.
type NoteOfName = (u64, [u8; 16]);

/// The content of a slot.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct BarrierNote {
    version: u16,
    /// Counts the changes of the file.
    number: u64,
    complete: Option<NoteOfName>,
    reached: Option<NoteOfName>,
    /// Earlier versions know the first two of these numbers only, and take others for an unreadable slot.
    standing: u64,
}

/// The worth of the names on stable storage after a loss of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NameStanding {
    /// They count.
    #[default]
    Plain,
    /// They count only with a coverage.
    Hidden,
    /// They count with the copy of the rest that has this number, from 2 on.
    WithRest(u64),
}

impl NameStanding {
    const fn number(self) -> u64 {
        match self {
            Self::Plain => 0,
            Self::Hidden => 1,
            Self::WithRest(number) => number,
        }
    }

    const fn of(number: u64) -> Self {
        match number {
            0 => Self::Plain,
            1 => Self::Hidden,
            number => Self::WithRest(number),
        }
    }
}

/// The names of a file that was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeftNames {
    /// The names, whether they count or not.
    pub names: BarrierNames,
    pub standing: NameStanding,
    /// The copy of the rest is gone, and the rest with it.
    pub is_rest_lost: bool,
}

impl LeftNames {
    /// Whether the node has served alone since, or was about to.
    pub fn are_hidden(&self) -> bool {
        self.standing == NameStanding::Hidden
    }

    /// The names that count. `is_covered`: the coverage of the last process is there.
    pub fn that_count(self, is_covered: bool) -> BarrierNames {
        if self.is_rest_lost || self.are_hidden() && !is_covered {
            return BarrierNames::default();
        }
        self.names
    }
}

/// The state of the file.
struct FileState {
    /// The number of the last change.
    number: u64,
    /// There is no file, and no attempt to make one.
    is_missing: bool,
    /// The names on stable storage, and their standing; `None` after a change that has failed.
    noted: Option<(BarrierNames, NameStanding)>,
    /// The standing of names that are not hidden.
    visible: NameStanding,
    /// The number of the last copy of a rest.
    copies: u64,
}

/// See the head of this file.
pub(super) struct BarrierFile {
    backing: Arc<dyn Backing>,
    state: Mutex<FileState>,
}

impl BarrierFile {
    /// Reads the names of a store. A store without the file has none.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn open(backing: Arc<dyn Backing>) -> Result<(Self, LeftNames), StoreError> {
        let newest = read_slots(backing.as_ref())?;
        let names = newest.map_or_else(LeftNames::default, |note| LeftNames {
            names: BarrierNames {
                complete: note.complete.map(name_of),
                reached: note.reached.map(name_of),
            },
            standing: NameStanding::of(note.standing),
            is_rest_lost: false,
        });
        let visible = match names.standing {
            NameStanding::Hidden => NameStanding::Plain,
            visible => visible,
        };
        let state = FileState {
            number: newest.map_or(0, |note| note.number),
            is_missing: newest.is_none() && !exists(backing.as_ref())?,
            noted: newest.map(|_| (names.names, names.standing)),
            visible,
            copies: visible.number().max(NameStanding::Hidden.number()),
        };
        let state = Mutex::new(state);
        Ok((Self { backing, state }, names))
    }

    /// The copy of the rest that belongs to the names; `None` if it cannot be read.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn read_rest(&self, number: u64) -> Result<Option<RestCopy>, StoreError> {
        RestCopy::read(self.backing.as_ref(), number)
    }

    /// The disk has failed: nothing is promised any more (P16).
    pub fn poison(&self, error: &StoreError) {
        if error.poisons() && !error.is_full_disk() {
            self.backing.poison(&error.to_string());
        }
    }

    /// Keeps every other change of the file away.
    pub fn lock(&self) -> BarrierChange<'_> {
        BarrierChange {
            backing: self.backing.as_ref(),
            state: self.state.lock(),
        }
    }
}

/// The right to change the file.
pub(super) struct BarrierChange<'a> {
    backing: &'a dyn Backing,
    state: MutexGuard<'a, FileState>,
}

impl BarrierChange<'_> {
    /// Puts the names on stable storage.
    ///
    /// # Errors
    /// If the disk fails or is full. Then the file may have the names or those of before.
    pub fn write(mut self, names: BarrierNames) -> Result<(), StoreError> {
        let standing = self.state.visible;
        self.put(names, standing)
    }

    /// Puts names on stable storage that a sync has reached, and the copy of the rest before. Without a copy they need none.
    ///
    /// # Errors
    /// As [`Self::write`]. Then the names that are there have their copy.
    pub fn write_reached(
        mut self,
        names: BarrierNames,
        rest: Option<RestCopy>,
    ) -> Result<NameStanding, StoreError> {
        self.state.visible = match rest {
            None => NameStanding::Plain,
            Some(rest) => NameStanding::WithRest(self.put_rest(rest)?),
        };
        let standing = self.state.visible;
        self.put(names, standing)?;
        Ok(standing)
    }

    /// Puts a copy of the rest beside the one that belongs to the names.
    fn put_rest(&mut self, rest: RestCopy) -> Result<u64, StoreError> {
        let number = match self.state.noted {
            Some((_, NameStanding::WithRest(noted))) => noted + 1,
            _ => self.state.copies + 1,
        };
        self.state.copies = number;
        rest.write(self.backing, number)?;
        Ok(number)
    }

    /// Puts the names there of a node that is about to serve alone.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn hide(mut self, names: BarrierNames) -> Result<(), StoreError> {
        self.state.visible = NameStanding::Plain;
        self.put(names, NameStanding::Hidden)
    }

    /// Puts no names there.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn forget(mut self) -> Result<(), StoreError> {
        self.state.visible = NameStanding::Plain;
        self.put(BarrierNames::default(), NameStanding::Plain)
    }

    fn put(&mut self, names: BarrierNames, standing: NameStanding) -> Result<(), StoreError> {
        if self.state.is_missing && names == BarrierNames::default() {
            return Ok(());
        }
        if self.state.noted == Some((names, standing)) {
            return Ok(());
        }
        (self.state.is_missing, self.state.noted) = (false, None);
        let number = self.state.number + 1;
        let note = BarrierNote {
            version: VERSION,
            number,
            complete: names.complete.map(note_of),
            reached: names.reached.map(note_of),
            standing: standing.number(),
        };
        let bytes = seal(&postcard::to_allocvec(&note).unwrap_or_default());
        let written = self.backing.open_or_create(BARRIER_FILE).and_then(|file| {
            // Both slots at once: names can be forgotten on a full disk.
            if file.stat()?.length < 2 * SLOT_BYTES {
                file.allocate(0, 2 * SLOT_BYTES, false)?;
            }
            file.write_at(number % 2 * SLOT_BYTES, &bytes)?;
            file.sync()
        });
        written.map_err(StoreError::disk("write", BARRIER_FILE))?;
        let synced = self.backing.sync_dir(TABLES_DIR);
        synced.map_err(StoreError::disk("sync the names in", TABLES_DIR))?;
        (self.state.number, self.state.noted) = (number, Some((names, standing)));
        Ok(())
    }
}

fn exists(backing: &dyn Backing) -> Result<bool, StoreError> {
    let found = backing.exists(BARRIER_FILE);
    found.map_err(StoreError::disk("look for", BARRIER_FILE))
}

fn read_slots(backing: &dyn Backing) -> Result<Option<BarrierNote>, StoreError> {
    let file = match backing.open(BARRIER_FILE) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(StoreError::disk("open", BARRIER_FILE))?,
    };
    let mut newest: Option<BarrierNote> = None;
    for slot in 0..2 {
        let mut bytes = [0; 256];
        let read = file.read_at(slot * SLOT_BYTES, &mut bytes);
        read.map_err(StoreError::disk("read", BARRIER_FILE))?;
        let note = unseal(&bytes).and_then(|body| postcard::from_bytes(body).ok());
        let is_newer = |note: &BarrierNote| {
            note.version == VERSION && newest.is_none_or(|it| note.number > it.number)
        };
        newest = note.filter(is_newer).or(newest);
    }
    Ok(newest)
}

const fn name_of((through, nonce): NoteOfName) -> BarrierName {
    let through = Interval::new(through);
    BarrierName { through, nonce }
}

const fn note_of(name: BarrierName) -> NoteOfName {
    (name.through.get(), name.nonce)
}
