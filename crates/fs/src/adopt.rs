//! Making an existing directory the content of a new store, without node, peer or mount.
//!
//! | part | does |
//! |---|---|
//! | `listing` | reads all names of the directory, makes the records of the namespace (`draft`), finds the names that a store cannot hold |
//! | `filling`, `taking` | take the content of each file: by a further name, by shared blocks, or by a copy |
//! | `source`, `descent` | read the directory |
//!
//! The steps, each durable before the next one begins: (1) the draft has all records; (2) `format.json` of an empty store is gone;
//! (3) the note in `adoption.json` is there; (4) the content is in the store, and after a move the names in the directory are gone; (5) the draft is the namespace; (6) the log and
//! `format.json` are there; (7) the note is gone. A stop before (3) leaves the store as it was. A stop after (3) leaves a directory
//! that no node takes for a store; the same call goes on. A stop between (6) and (7) leaves a complete store.
//!
//! Invariant: with [`AdoptWay::Reflink`] and [`AdoptWay::Copy`] the directory is only read. With [`AdoptWay::Move`] its names go, but
//! for those of directories, and each of them only after the file has a name in the store on stable storage.

mod descent;
mod draft;
mod error;
mod filling;
mod listing;
mod progress;
mod source;
mod taken;
mod taking;
mod target;

use std::path::{Path, PathBuf};

use lockstep_intentlog::LogOptions;
use lockstep_types::backing::Room;
use lockstep_types::limits::{RESERVE_BYTES, SPARE_BYTES, SPARE_FILES};
use lockstep_types::{DatastoreUuid, Ino};

pub use error::{AdoptError, NotAdopted, Reason};
pub use filling::SyncAfter;
pub use progress::{AdoptWatcher, AdoptionProgress, Phase};
pub use target::AdoptTarget;

use crate::paths::{ADOPTED_NAMES_FILE, ADOPTION_FILE, CONTENT_DIR, FORMAT_FILE, NAMESPACE_FILE};
use crate::store::adoption::AdoptionNote;
use crate::store::{AdoptWay, Store, create};
use crate::text::escaped;
use descent::Descent;
use draft::NamesDraft;
use filling::AdoptionWalk;
use listing::{ListedSource, ListingRules, SourceListing};
use progress::CountedWatcher;

/// Files for each directory of content.
const FILES_PER_DIRECTORY: u64 = 256;

/// The directory that is adopted, and the way.
#[derive(Clone, Debug)]
pub struct AdoptOptions {
    /// The directory.
    pub source: PathBuf,
    /// How its files are taken; `None`: by shared blocks if the file systems can do that, otherwise by copies.
    pub way: Option<AdoptWay>,
    /// File systems that are mounted below the directory are left out: an empty directory is in their place. Otherwise the
    /// adoption is refused.
    pub one_file_system: bool,
    /// The datastore of the store.
    pub datastore: DatastoreUuid,
    /// Options of the log of the new store.
    pub log: LogOptions,
    /// When copies go to stable storage.
    pub sync_after: SyncAfter,
}

/// Counts of an adoption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptSummary {
    /// How the files were taken.
    pub way: AdoptWay,
    /// Names that were listed, without the directory itself.
    pub names: u64,
    /// Directories, the directory itself included.
    pub directories: u64,
    /// Regular files. A file with several names counts once.
    pub files: u64,
    /// Bytes of data in these; holes are none.
    pub bytes: u64,
    /// File systems mounted below the directory that were left out.
    pub left_out: u64,
    /// Reports of names that were not adopted, or not in one state, since they were changed meanwhile.
    pub reports: u64,
    /// An earlier call had begun the adoption.
    pub went_on: bool,
}

/// Makes a directory the content of a store that no node has used yet: the directory of the store is empty, or has a store that was
/// just made. An adoption that has not ended goes on.
///
/// Modes, owners, all times, flags, extended attributes with access control lists, hard links, holes, and nodes of any kind are
/// kept. If the store cannot hold a name, the adoption is refused with a report for each, before anything is changed. The caller
/// has locked the store.
pub fn adopt(
    target: &AdoptTarget,
    options: &AdoptOptions,
    watcher: &mut dyn AdoptWatcher,
) -> Result<AdoptSummary, AdoptError> {
    let mut watch = CountedWatcher::new(watcher);
    let source = canonical(&options.source)?;
    if target.contains(&source) {
        return Err(AdoptError::InsideStore { path: source });
    }
    let name = escaped(source.as_os_str().as_encoded_bytes());
    let found = AdoptionNote::read(target.backing().as_ref())?;
    let went_on = found.is_some();
    let note = match found {
        Some(note) => {
            check_same(&note, options, &name)?;
            note
        }
        None => begin(target, options, (&source, name), &mut watch)?,
    };
    if Store::exists(target.backing().as_ref())? {
        // The name of `format.json` may not be on stable storage yet, and the note must not go before.
        sync_names(target)?;
        remove_note(target)?;
        return Ok(summary(&note, &watch, went_on));
    }
    let note = fill(target, options, (&source, note), &mut watch)?;
    finish(target, options, &note, &mut watch)?;
    Ok(summary(&note, &watch, went_on))
}

fn canonical(source: &Path) -> Result<PathBuf, AdoptError> {
    let name = || escaped(source.as_os_str().as_encoded_bytes());
    source.canonicalize().map_err(|error| AdoptError::Source {
        operation: "find",
        name: name(),
        source: error,
    })
}

/// Whether an adoption that is under way is the one that is asked for.
fn check_same(note: &AdoptionNote, options: &AdoptOptions, name: &str) -> Result<(), AdoptError> {
    let is_same = note.source == name
        && options.way.is_none_or(|way| way == note.way)
        && options.one_file_system == note.one_file_system
        && options.datastore == note.datastore;
    if is_same {
        return Ok(());
    }
    let AdoptionNote { source, way, .. } = note;
    Err(AdoptError::other(
        source,
        *way,
        note.one_file_system,
        note.emptying,
    ))
}

/// Lists the directory and notes that the adoption is under way. If that fails, the store is what it was before.
fn begin(
    target: &AdoptTarget,
    options: &AdoptOptions,
    (source, name): (&Path, String),
    watch: &mut CountedWatcher<'_>,
) -> Result<AdoptionNote, AdoptError> {
    let backing = target.backing();
    let has_store = Store::exists(backing.as_ref())?;
    if !has_store {
        Store::check_vacant(backing)?;
    } else if !create::is_never_used(backing, options.datastore)? {
        return Err(AdoptError::Used);
    }
    let listed = list(target, options, source, watch);
    let (listed, way) = listed.inspect_err(|_| {
        let _removed = NamesDraft::discard(backing);
    })?;
    if has_store {
        let removed = backing.remove(FORMAT_FILE);
        removed.map_err(AdoptError::disk("remove", FORMAT_FILE))?;
    }
    sync_names(target)?;
    let note = AdoptionNote {
        datastore: options.datastore,
        source: name,
        way,
        one_file_system: options.one_file_system,
        taken_below: Ino::ROOT,
        emptying: false,
        totals: listed.totals,
    };
    note.write(backing.as_ref())?;
    Ok(note)
}

/// Makes the draft, and decides how the files are taken.
fn list(
    target: &AdoptTarget,
    options: &AdoptOptions,
    source: &Path,
    watch: &mut CountedWatcher<'_>,
) -> Result<(ListedSource, AdoptWay), AdoptError> {
    let descent = open(source)?;
    let is_move = options.way == Some(AdoptWay::Move);
    if is_move {
        let stat = source::stat(descent.fd(), b"");
        let stat = stat.map_err(|errno| AdoptError::source(("stat", errno), ".".to_owned()))?;
        if !target.can_move_from(source::place_of(&stat)) {
            return Err(AdoptError::CannotMove);
        }
    }
    let draft = NamesDraft::create(target.backing())?;
    let rules = ListingRules {
        is_move,
        one_file_system: options.one_file_system,
    };
    let listed = SourceListing::new(rules, (target, &draft), descent, watch)?.run()?;
    if listed.problems > 0 {
        let total = listed.problems;
        return Err(AdoptError::Refused { total });
    }
    let way = match (options.way, listed.can_clone) {
        (Some(AdoptWay::Reflink), Some(false)) => return Err(AdoptError::CannotReflink),
        (Some(way), _) => way,
        (None, Some(true)) => AdoptWay::Reflink,
        (None, _) => AdoptWay::Copy,
    };
    check_room(target, (&listed, way), &options.log)?;
    draft.finish(listed.ino_limit)?;
    Ok((listed, way))
}

fn open(source: &Path) -> Result<Descent, AdoptError> {
    let name = || escaped(source.as_os_str().as_encoded_bytes());
    Descent::open(source).map_err(|errno| AdoptError::source(("open", errno), name()))
}

/// Whether the disk has room for all copies, and for the files that a node makes at its first start.
fn check_room(
    target: &AdoptTarget,
    (listed, way): (&ListedSource, AdoptWay),
    log: &LogOptions,
) -> Result<(), AdoptError> {
    let space = target.backing().space();
    let free = Room::of(&space.map_err(AdoptError::disk("read the free space of", "."))?);
    let files = listed.totals.files;
    let copies = match way {
        AdoptWay::Move => Room::NONE,
        AdoptWay::Reflink => Room { bytes: 0, files },
        AdoptWay::Copy => Room {
            bytes: listed.disk_bytes,
            files,
        },
    };
    let needed = copies.plus(Room {
        bytes: RESERVE_BYTES + SPARE_BYTES + 2 * log.segment_bytes,
        files: files / FILES_PER_DIRECTORY + SPARE_FILES,
    });
    if free.covers(&needed) {
        return Ok(());
    }
    Err(AdoptError::NoRoom {
        needed_bytes: needed.bytes,
        needed_files: needed.files,
        free_bytes: free.bytes,
        free_files: free.files,
    })
}

/// Takes the content of all files, unless an earlier call has done so. A move has a second walk, which removes the names in the
/// directory.
fn fill(
    target: &AdoptTarget,
    options: &AdoptOptions,
    (source, mut note): (&Path, AdoptionNote),
    watch: &mut CountedWatcher<'_>,
) -> Result<AdoptionNote, AdoptError> {
    let backing = target.backing();
    let exists = backing.exists(ADOPTED_NAMES_FILE);
    if !exists.map_err(AdoptError::disk("look for", ADOPTED_NAMES_FILE))? {
        return Ok(note);
    }
    let draft = NamesDraft::open(backing)?;
    backing.scatter(CONTENT_DIR);
    loop {
        let is_last = note.emptying || note.way != AdoptWay::Move;
        let step = (&mut note, options.sync_after);
        let mut filling = AdoptionWalk::new((target, &draft), open(source)?, step, watch)?;
        filling.run()?;
        if is_last {
            filling.take_lengths()?;
        }
        watch.progress(&finishing(&note))?;
        let synced = backing.sync_all();
        synced.map_err(AdoptError::disk("sync", "."))?;
        draft.flush()?;
        if is_last {
            return Ok(note);
        }
        note.emptying = true;
        note.write(backing.as_ref())?;
    }
}

/// Makes a store of the draft and the content.
fn finish(
    target: &AdoptTarget,
    options: &AdoptOptions,
    note: &AdoptionNote,
    watch: &mut CountedWatcher<'_>,
) -> Result<(), AdoptError> {
    let backing = target.backing();
    watch.progress(&finishing(note))?;
    match backing.rename(ADOPTED_NAMES_FILE, NAMESPACE_FILE) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        renamed => renamed.map_err(AdoptError::disk("rename", ADOPTED_NAMES_FILE))?,
    }
    sync_names(target)?;
    watch.progress(&finishing(note))?;
    create::create_around_names(backing, options.datastore, &options.log)?;
    watch.progress(&finishing(note))?;
    remove_note(target)
}

fn remove_note(target: &AdoptTarget) -> Result<(), AdoptError> {
    let backing = target.backing();
    let removed = backing.remove(ADOPTION_FILE);
    removed.map_err(AdoptError::disk("remove", ADOPTION_FILE))?;
    sync_names(target)
}

fn sync_names(target: &AdoptTarget) -> Result<(), AdoptError> {
    let synced = target.backing().sync_dir(".");
    synced.map_err(AdoptError::disk("sync the names in", "."))
}

const fn finishing(note: &AdoptionNote) -> AdoptionProgress {
    AdoptionProgress {
        phase: Phase::Finishing,
        files: note.totals.files,
        bytes: note.totals.bytes,
        files_total: note.totals.files,
        bytes_total: note.totals.bytes,
    }
}

const fn summary(note: &AdoptionNote, watch: &CountedWatcher<'_>, went_on: bool) -> AdoptSummary {
    let totals = &note.totals;
    AdoptSummary {
        way: note.way,
        names: totals.names,
        directories: totals.directories,
        files: totals.files,
        bytes: totals.bytes,
        left_out: totals.left_out,
        reports: watch.reports(),
        went_on,
    }
}
