//! Making a new store.
//!
//! Invariant: `format.json` gets its name last. A directory without this file holds no store, even if an interrupted
//! creation has left other files. The next creation removes them: exactly the files that a creation makes, and no file
//! that could hold data.

use std::sync::Arc;

use lockstep_intentlog::{IntentLog, LogOptions};
use lockstep_types::backing::{Backing, draft_of};
use lockstep_types::{DatastoreUuid, Ino, Osn, Timestamp};

use super::adoption::AdoptionNote;
use super::facade::Store;
use super::format::{read_format, write_format};
use super::import_note::ImportNote;
use crate::backing::os_backing::LOCK_FILE;
use crate::backing::overlay::Overlay;
use crate::error::StoreError;
use crate::kv::Kv;
use crate::kv::memtable::Memtable;
use crate::kv::redb::{RedbKv, RedbOptions};
use crate::namespace::keys;
use crate::namespace::record::{self, Body, Checkpoint, FIRST_COOKIE, Inode, ModeAndFlags};
use crate::paths::{
    ADOPTED_NAMES_FILE, ADOPTION_FILE, FORMAT_FILE, IMPORT_FILE, LOG_DIR, NAMESPACE_FILE,
};

impl Store {
    /// Makes a new, empty store, whose root directory belongs to root. Removes the files of an interrupted creation
    /// first.
    pub fn create(
        backing: &Arc<dyn Backing>,
        datastore: DatastoreUuid,
        options: &LogOptions,
    ) -> Result<(), StoreError> {
        clear_leftovers(backing)?;
        let kv = RedbKv::create(backing.as_ref(), NAMESPACE_FILE, RedbOptions::default())?;
        let names = Memtable::new(kv);
        names.apply(first_records());
        names.freeze();
        names.flush()?;
        IntentLog::create(backing.as_ref(), LOG_DIR, options)?;
        write_format(backing.as_ref(), datastore)
    }

    /// Whether [`Self::create`] may make a store here: the directory holds at most files of an interrupted creation.
    /// Changes nothing.
    pub fn check_vacant(backing: &Arc<dyn Backing>) -> Result<(), StoreError> {
        find_leftovers(backing).map(drop)
    }
}

/// Makes a store of a namespace that is there already, on stable storage. May be repeated after a stop.
pub(crate) fn create_around_names(
    backing: &Arc<dyn Backing>,
    datastore: DatastoreUuid,
    options: &LogOptions,
) -> Result<(), StoreError> {
    for name in names_in(backing, LOG_DIR)? {
        remove(backing, &format!("{LOG_DIR}/{name}"))?;
    }
    IntentLog::create(backing.as_ref(), LOG_DIR, options)?;
    write_format(backing.as_ref(), datastore)
}

/// Whether there is a store of this datastore that holds nothing, as no node has ever opened it. Changes nothing.
pub(crate) fn is_never_used(
    backing: &Arc<dyn Backing>,
    datastore: DatastoreUuid,
) -> Result<bool, StoreError> {
    let format = read_format(backing.as_ref())?;
    if format.datastore != datastore {
        return Err(StoreError::OtherDatastore {
            found: format.datastore.to_string(),
            expected: datastore.to_string(),
        });
    }
    let is_new = |path: &String| path == FORMAT_FILE || is_of_creation(path);
    Ok(paths_in(backing)?.iter().all(is_new) && is_unused(backing))
}

fn remove(backing: &Arc<dyn Backing>, path: &str) -> Result<(), StoreError> {
    let removed = backing.remove(path);
    removed.map_err(StoreError::disk("remove", path))
}

fn clear_leftovers(backing: &Arc<dyn Backing>) -> Result<(), StoreError> {
    for path in find_leftovers(backing)? {
        tracing::warn!(
            path,
            "removing a file of an interrupted creation of this store"
        );
        remove(backing, &path)?;
    }
    Ok(())
}

/// The files of an interrupted creation. Until a creation is complete, a store has these files and no others, and they
/// hold no data.
fn find_leftovers(backing: &Arc<dyn Backing>) -> Result<Vec<String>, StoreError> {
    AdoptionNote::check_none(backing.as_ref())?;
    ImportNote::check_none(backing.as_ref())?;
    let found = paths_in(backing)?;
    for path in &found {
        let unused = path != NAMESPACE_FILE || is_unused(backing);
        if !unused || !is_of_creation(path) {
            return Err(StoreError::NotEmpty {
                found: path.clone(),
            });
        }
    }
    Ok(found)
}

/// The names in the directory of a store, but for the lock, and with the files of the log in place of their directory.
fn paths_in(backing: &Arc<dyn Backing>) -> Result<Vec<String>, StoreError> {
    let mut found = Vec::new();
    for name in names_in(backing, ".")? {
        if name == LOCK_FILE {
            continue;
        }
        if name == LOG_DIR {
            let inside = names_in(backing, LOG_DIR)?;
            found.extend(inside.iter().map(|name| format!("{LOG_DIR}/{name}")));
        } else {
            found.push(name);
        }
    }
    Ok(found)
}

/// Whether the namespace was made empty and never opened since. A creation gives the file its name only once it is whole, so
/// a file that cannot be read belongs to no creation.
fn is_unused(backing: &Arc<dyn Backing>) -> bool {
    let overlay = Overlay::new(Arc::clone(backing));
    let Ok(kv) = RedbKv::open(&overlay, NAMESPACE_FILE, RedbOptions::default()) else {
        return false;
    };
    match kv.get(keys::CHECKPOINT) {
        Ok(None) => true,
        Ok(Some(value)) => {
            let checkpoint: Option<Checkpoint> = record::decode(&value);
            checkpoint.is_some_and(|it| it.epoch == 0 && it.applied == Osn::ZERO)
        }
        Err(_) => false,
    }
}

fn names_in(backing: &Arc<dyn Backing>, directory: &str) -> Result<Vec<String>, StoreError> {
    let names = backing.list(directory);
    names.map_err(StoreError::disk("list", directory))
}

/// Whether a creation makes this path before it is complete.
fn is_of_creation(path: &str) -> bool {
    let file = path.strip_suffix(".new").unwrap_or(path);
    path == draft_of(FORMAT_FILE)
        || path == draft_of(ADOPTION_FILE)
        || path == draft_of(IMPORT_FILE)
        || file == NAMESPACE_FILE
        || file == ADOPTED_NAMES_FILE
        || file
            .strip_prefix(LOG_DIR)
            .is_some_and(|name| ["/intent.0", "/intent.1"].contains(&name))
}

fn first_records() -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let root = Inode {
        bits: ModeAndFlags::of_mode(0o755),
        uid: 0,
        gid: 0,
        nlink: 2,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        osn: Osn::ZERO,
        body: Body::Directory {
            parent: Ino::ROOT,
            next_cookie: FIRST_COOKIE,
            entries: 0,
        },
        named_at: None,
    };
    let checkpoint = Checkpoint {
        log_position: 0,
        log_keep_from: 0,
        applied: Osn::ZERO,
        ino_limit: Ino::ROOT.get() + 1,
        epoch: 0,
        boot: None,
    };
    vec![
        (keys::inode(Ino::ROOT), Some(record::encode(&root))),
        (keys::CHECKPOINT.to_vec(), Some(record::encode(&checkpoint))),
    ]
}
