//! Making a store of a seed, without a node.
//!
//! The steps, each durable before the next one begins: (1) the draft has all records, checked, and of a seed whose files are moved each
//! content was read and checked; (2) `format.json` of an empty store is gone, and the note in `import.json` is there; (3) the content is in the
//! store, checked; (4) the draft is the namespace; (5) the caller has written the lineage of the copy; (6) the log and `format.json` are there;
//! (7) the names of moved files are gone from the seed; (8) the note is gone. A stop before (2) leaves the store as it was. A stop after (2)
//! leaves a directory that no node takes for a store; the same call goes on.
//!
//! Invariant: the seed is only read, but for a move, which gives its files owner and mode of the store in (3), and takes them away in (7).

use std::io;
use std::ops::ControlFlow;

use lockstep_intentlog::LogOptions;
use lockstep_types::backing::Room;
use lockstep_types::limits::{RESERVE_BYTES, SPARE_BYTES, SPARE_FILES};
use lockstep_types::{DatastoreUuid, Ino};

use super::contents::{CONTENTS_FILE, ContentList};
use super::error::SeedError;
use super::intake::ImportPlaces;
use super::manifest::{MANIFEST_FILE, SeedManifest};
use super::names::{self, RECORDS_FILE};
use crate::adopt::SyncAfter;
use crate::paths::{ADOPTED_NAMES_FILE, CONTENT_DIR, FORMAT_FILE, IMPORT_FILE, NAMESPACE_FILE};
use crate::store::import_note::ImportNote;
use crate::store::{AdoptWay, SeedTotals, Store, create};

/// Files for each directory of content.
const FILES_PER_DIRECTORY: u64 = 256;

/// The seed that is imported, and the way.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The directory of the seed, escaped, for people.
    pub seed: String,
    /// How its files are taken; `None`: by shared blocks if the file systems can do that, otherwise by copies.
    pub way: Option<AdoptWay>,
    /// The datastore of the store.
    pub datastore: DatastoreUuid,
    /// Options of the log of the new store.
    pub log: LogOptions,
    /// When copies go to stable storage.
    pub sync_after: SyncAfter,
}

/// The part of an import that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportPhase {
    /// The records are read and checked.
    Names,
    /// The contents are read and checked, before files are moved.
    Checking,
    /// The contents are taken, and checked.
    Taking,
    /// Everything goes to stable storage.
    Finishing,
    /// The names of moved files are removed from the seed.
    Emptying,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportProgress {
    /// The part that is under way.
    pub phase: ImportPhase,
    /// Inodes in the first part; later the contents so far.
    pub files: u64,
    /// Bytes of data so far.
    pub bytes: u64,
    /// The counts of the seed.
    pub totals: SeedTotals,
}

/// Counts of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportSummary {
    /// How the files were taken.
    pub way: AdoptWay,
    /// The counts of the seed.
    pub totals: SeedTotals,
    /// An earlier call had begun the import.
    pub went_on: bool,
}

/// Hears of the progress. A break stops the import, as a kill of the process would; the same call goes on later.
pub type WatchImport<'a> = dyn FnMut(&ImportProgress) -> ControlFlow<()> + 'a;

/// Writes the lineage of the copy into the directory of the store, on stable storage. May be called again after a stop.
pub type SettleLineage<'a> = dyn FnMut(&SeedManifest) -> io::Result<()> + 'a;

/// Makes a store of a seed. The directory of the store is empty, or has a store that was just made. An import that has not ended goes on. The
/// caller has locked the store.
///
/// # Errors
/// The seed is damaged, incomplete or one of another datastore; the store is in use, or was used; the disk is full or fails; or the watcher has
/// stopped the import.
pub fn import(
    places: &mut ImportPlaces,
    options: &ImportOptions,
    watch: &mut WatchImport<'_>,
    settle: &mut SettleLineage<'_>,
) -> Result<ImportSummary, SeedError> {
    let found = ImportNote::read(places.store.as_ref())?;
    let went_on = found.is_some();
    let is_store = Store::exists(places.store.as_ref())?;
    let mut import = Import {
        places,
        options,
        watch,
        done: (0, 0),
    };
    let note = match found {
        Some(note) if is_store => {
            check_way(&note, options)?;
            note
        }
        found => import.make_store(found, settle)?,
    };
    import.end(&note)?;
    Ok(ImportSummary {
        way: note.way,
        totals: note.totals,
        went_on,
    })
}

/// Whether an import that is under way is the one that is asked for.
fn check_way(note: &ImportNote, options: &ImportOptions) -> Result<(), SeedError> {
    let is_same = options.way.is_none_or(|way| way == note.way);
    if is_same && options.datastore == note.datastore {
        Ok(())
    } else {
        Err(other(note))
    }
}

fn other(note: &ImportNote) -> SeedError {
    let began = format!("{} with --{}", note.seed, note.way.word());
    SeedError::Other { began }
}

struct Import<'a, 'w> {
    places: &'a mut ImportPlaces,
    options: &'a ImportOptions,
    watch: &'a mut WatchImport<'w>,
    /// Contents and bytes so far.
    done: (u64, u64),
}

impl Import<'_, '_> {
    fn make_store(
        &mut self,
        found: Option<ImportNote>,
        settle: &mut SettleLineage<'_>,
    ) -> Result<ImportNote, SeedError> {
        let manifest = SeedManifest::read(self.places.seed.as_ref())?;
        let origin = &manifest.origin;
        if origin.datastore != self.options.datastore {
            return Err(SeedError::OtherDatastore {
                name: origin.name.clone(),
                found: origin.datastore.to_string(),
                expected: self.options.datastore.to_string(),
            });
        }
        let mut note = match found {
            Some(note) if note.sum != manifest.sum => return Err(other(&note)),
            Some(note) => check_way(&note, self.options).map(|()| note)?,
            None => self.begin(&manifest)?,
        };
        self.take_contents(&manifest, &mut note)?;
        self.show(ImportPhase::Finishing, note.totals)?;
        let store = &self.places.store;
        match store.rename(ADOPTED_NAMES_FILE, NAMESPACE_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed.map_err(SeedError::disk("rename", ADOPTED_NAMES_FILE))?,
        }
        self.sync_names()?;
        self.show(ImportPhase::Finishing, note.totals)?;
        settle(&manifest).map_err(SeedError::disk("write the lineage of", "."))?;
        self.show(ImportPhase::Finishing, note.totals)?;
        create::create_around_names(
            &self.places.store,
            self.options.datastore,
            &self.options.log,
        )?;
        Ok(note)
    }

    /// Checks the names of the seed, and notes that the import is under way. If that fails, the store is what it was before.
    fn begin(&mut self, manifest: &SeedManifest) -> Result<ImportNote, SeedError> {
        let has_store = Store::exists(self.places.store.as_ref())?;
        if !has_store {
            Store::check_vacant(&self.places.store)?;
        } else if !create::is_never_used(&self.places.store, self.options.datastore)? {
            return Err(SeedError::Used);
        }
        let way = self.places.choose(self.options.way)?;
        self.check_room(manifest, way)?;
        let checked = self.check_seed(manifest, way);
        checked.inspect_err(|_| {
            let _removed = names::discard(&self.places.store);
        })?;
        if has_store {
            let removed = self.places.store.remove(FORMAT_FILE);
            removed.map_err(SeedError::disk("remove", FORMAT_FILE))?;
        }
        self.sync_names()?;
        let note = ImportNote {
            datastore: self.options.datastore,
            seed: self.options.seed.clone(),
            sum: manifest.sum.clone(),
            way,
            taken_below: Ino::ROOT,
            totals: manifest.totals,
        };
        note.write(self.places.store.as_ref())?;
        Ok(note)
    }

    fn check_seed(&mut self, manifest: &SeedManifest, way: AdoptWay) -> Result<(), SeedError> {
        let totals = manifest.totals;
        let watch = &mut *self.watch;
        let seed = self.places.seed.as_ref();
        names::load(seed, manifest, &self.places.store, &mut |inodes| {
            tell(watch, ImportPhase::Names, (inodes, 0), totals)
        })?;
        if way == AdoptWay::Move {
            self.each_content(manifest, (ImportPhase::Checking, None), Ino::ROOT, None)?;
        }
        Ok(())
    }

    /// Whether the disk has room for all copies, and for the files that a node makes at its first start.
    fn check_room(&self, manifest: &SeedManifest, way: AdoptWay) -> Result<(), SeedError> {
        let space = self.places.store.space();
        let free = Room::of(&space.map_err(SeedError::disk("read the free space of", "."))?);
        let files = manifest.totals.contents;
        let copies = match way {
            AdoptWay::Move => Room::NONE,
            AdoptWay::Reflink => Room { bytes: 0, files },
            AdoptWay::Copy => Room {
                bytes: manifest.totals.bytes,
                files,
            },
        };
        let names_bytes = manifest.records.bytes;
        let needed = copies.plus(Room {
            bytes: names_bytes + RESERVE_BYTES + SPARE_BYTES + 2 * self.options.log.segment_bytes,
            files: files / FILES_PER_DIRECTORY + SPARE_FILES,
        });
        if free.covers(&needed) {
            return Ok(());
        }
        Err(SeedError::NoRoom {
            needed_bytes: needed.bytes,
            needed_files: needed.files,
            free_bytes: free.bytes,
            free_files: free.files,
        })
    }

    /// Takes the contents that an earlier call has not taken.
    fn take_contents(
        &mut self,
        manifest: &SeedManifest,
        note: &mut ImportNote,
    ) -> Result<(), SeedError> {
        self.places.store.scatter(CONTENT_DIR);
        let phase = (ImportPhase::Taking, Some(note.way));
        let from = note.taken_below;
        self.each_content(manifest, phase, from, Some(note))?;
        self.sync_taken(note, Ino::new(u64::MAX))
    }

    /// Goes through the list of the contents from an inode on: takes them in a way, or only checks them. Notes in `note` what is taken.
    fn each_content(
        &mut self,
        manifest: &SeedManifest,
        (phase, way): (ImportPhase, Option<AdoptWay>),
        from: Ino,
        mut note: Option<&mut ImportNote>,
    ) -> Result<(), SeedError> {
        let totals = manifest.totals;
        let mut list = ContentList::open(self.places.seed.as_ref(), &manifest.contents)?;
        self.done = (0, 0);
        let mut since_sync = (0, 0);
        while let Some(entry) = list.next()? {
            if entry.ino >= from {
                let (watch, done) = (&mut *self.watch, &mut self.done);
                let mut show = |bytes| {
                    done.1 += bytes;
                    tell(watch, phase, *done, totals)
                };
                show(0)?;
                match way {
                    Some(way) => self.places.take(way, &entry, &mut show)?,
                    None => self.places.check(&entry, &mut show)?,
                }
                since_sync = (since_sync.0 + entry.size, since_sync.1 + 1);
            }
            self.done.0 += 1;
            let SyncAfter { bytes, files } = self.options.sync_after;
            let is_due = since_sync.0 >= bytes || since_sync.1 >= files;
            if let Some(note) = note.as_deref_mut()
                && is_due
            {
                self.sync_taken(note, Some(entry.ino.next()))?;
                since_sync = (0, 0);
            }
        }
        list.check()
    }

    /// Puts the contents so far on stable storage, and notes that.
    fn sync_taken(&self, note: &mut ImportNote, below: Option<Ino>) -> Result<(), SeedError> {
        let store = &self.places.store;
        store.sync_all().map_err(SeedError::disk("sync", "."))?;
        note.taken_below = below.unwrap_or(note.taken_below);
        Ok(note.write(store.as_ref())?)
    }

    /// The store is whole. Removes the names of moved files from the seed, its manifest first, and then the note.
    fn end(&mut self, note: &ImportNote) -> Result<(), SeedError> {
        // The name of `format.json` may not be on stable storage yet.
        self.sync_names()?;
        if note.way == AdoptWay::Move {
            self.show(ImportPhase::Emptying, note.totals)?;
            self.places.remove(MANIFEST_FILE)?;
            self.show(ImportPhase::Emptying, note.totals)?;
            self.places.empty()?;
            for path in [CONTENTS_FILE, RECORDS_FILE] {
                self.places.remove(path)?;
            }
        }
        self.show(ImportPhase::Finishing, note.totals)?;
        match self.places.store.remove(IMPORT_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(SeedError::disk("remove", IMPORT_FILE))?,
        }
        self.sync_names()
    }

    fn sync_names(&self) -> Result<(), SeedError> {
        let synced = self.places.store.sync_dir(".");
        synced.map_err(SeedError::disk("sync the names in", "."))
    }

    fn show(&mut self, phase: ImportPhase, totals: SeedTotals) -> Result<(), SeedError> {
        tell(self.watch, phase, self.done, totals)
    }
}

fn tell(
    watch: &mut WatchImport<'_>,
    phase: ImportPhase,
    (files, bytes): (u64, u64),
    totals: SeedTotals,
) -> Result<(), SeedError> {
    let progress = ImportProgress {
        phase,
        files,
        bytes,
        totals,
    };
    match watch(&progress) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(SeedError::Stopped),
    }
}
