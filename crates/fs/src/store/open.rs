//! Making and opening a store, and bringing it back to where a crash left it.
//!
//! What is refused is refused before anything is written. Recovery after a crash of the process
//! takes the last checkpoint, applies the committed operations of the log since, and takes sizes and
//! times of files that were being written from the time table. After a power loss the lengths of
//! all content files are looked at, because those that were not synced may be shorter than recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use lockstep_intentlog::{IntentLog, LogOptions, Position, Record, Replay};
use lockstep_types::backing::Backing;
use lockstep_types::{DatastoreUuid, Ino, MetaOp, Osn, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Applying, INO_RESERVE, PendingIntent, Store};
use crate::error::{OpError, StoreError};
use crate::files::FileTable;
use crate::keys;
use crate::kv::memtable::Memtable;
use crate::kv::redb::{RedbKv, RedbOptions};
use crate::plan::{self, View};
use crate::record::{self, Body, Checkpoint, FIRST_COOKIE, Inode};
use crate::times::{Slot, TABLE_BYTES, TimeTable};

/// The format this program makes, and the newest it opens.
const FORMAT: u32 = 1;
const FORMAT_FILE: &str = "format.json";
const NAMESPACE_FILE: &str = "namespace.redb";
const LOG_DIR: &str = "log";
const TIMES_FILE: &str = "tables/times";

/// What the format file says.
#[derive(Serialize, Deserialize)]
struct Format {
    lockstep_store: u32,
    datastore: DatastoreUuid,
}

/// Whether a store is opened to be used or only to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be used: recovery is written down.
    Write,
    /// To be looked at, for export: nothing on disk changes.
    Read,
}

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Which datastore it must belong to, if that is known.
    pub datastore: Option<DatastoreUuid>,
    /// A value that changes when the machine restarts, to tell a crash from a power loss.
    pub boot: [u8; 16],
    /// To use it, or to look at it.
    pub access: Access,
    /// Options of the intent log.
    pub log: LogOptions,
}

/// An opened store and what was found on the way.
pub struct Opened {
    /// The store.
    pub store: Store,
    /// The machine lost power, or was reset, while the store was in use: what was not synced may
    /// be missing.
    pub power_lost: bool,
}

impl Store {
    /// Makes a new, empty store, whose root directory belongs to `uid` and `gid`.
    pub fn create(
        backing: &Arc<dyn Backing>,
        datastore: DatastoreUuid,
        options: &LogOptions,
    ) -> Result<(), StoreError> {
        if !backing
            .list(".")
            .map_err(StoreError::disk("list", "."))?
            .is_empty()
        {
            return Err(StoreError::NotEmpty {
                path: ".".to_owned(),
            });
        }
        let kv = RedbKv::create(backing.as_ref(), NAMESPACE_FILE, RedbOptions::default())?;
        let names = Memtable::new(kv);
        names.apply(first_records());
        names.freeze();
        names.flush()?;
        IntentLog::create(backing.as_ref(), LOG_DIR, options)?;
        write_format(backing.as_ref(), datastore)
    }

    /// Whether the directory holds a store at all.
    pub fn exists(backing: &dyn Backing) -> Result<bool, StoreError> {
        backing
            .exists(FORMAT_FILE)
            .map_err(StoreError::disk("look for", FORMAT_FILE))
    }

    /// Opens a store.
    pub fn open(backing: Arc<dyn Backing>, options: &OpenOptions) -> Result<Opened, StoreError> {
        let format = read_format(backing.as_ref())?;
        if let Some(expected) = options.datastore
            && expected != format.datastore
        {
            return Err(StoreError::OtherDatastore {
                found: format.datastore.to_string(),
                expected: expected.to_string(),
            });
        }
        let kv = RedbKv::open(backing.as_ref(), NAMESPACE_FILE, RedbOptions::default())?;
        let names = Memtable::new(kv);
        let checkpoint = read_checkpoint(&names)?;
        let power_lost = checkpoint.boot.is_some_and(|boot| boot != options.boot);
        let log_options = LogOptions {
            keep_from: Some(Position::new(checkpoint.log_keep_from)),
            ..options.log
        };
        let (log, replay) = match options.access {
            Access::Write => {
                let (log, replay) = IntentLog::open(backing.as_ref(), LOG_DIR, &log_options)?;
                (Some(log), replay)
            }
            Access::Read => (
                None,
                IntentLog::read(backing.as_ref(), LOG_DIR, &log_options)?,
            ),
        };
        let table = backing
            .open_table(TIMES_FILE, TABLE_BYTES)
            .map_err(StoreError::disk("open", TIMES_FILE))?;
        let (times, slots) = TimeTable::open(table);
        let store = Self {
            uuid: format.datastore,
            boot: options.boot,
            log,
            names,
            files: FileTable::default(),
            times,
            applying: Mutex::new(Applying {
                applied: checkpoint.applied,
                pending: Vec::new(),
                epoch: checkpoint.epoch,
            }),
            checkpointing: Mutex::new(()),
            next_ino: AtomicU64::new(checkpoint.ino_limit),
            ino_limit: AtomicU64::new(checkpoint.ino_limit),
            poisoned: AtomicBool::new(false),
            garbage: Mutex::new(Vec::new()),
            backing,
        };
        store.recover(checkpoint, replay, &slots, power_lost)?;
        if options.access == Access::Write {
            store.start_epoch(&slots)?;
        }
        Ok(Opened { store, power_lost })
    }

    fn recover(
        &self,
        checkpoint: Checkpoint,
        replay: Replay,
        slots: &[(crate::times::SlotNumber, Slot)],
        power_lost: bool,
    ) -> Result<(), StoreError> {
        self.replay(checkpoint, replay)?;
        for (_, slot) in slots {
            self.take_slot(slot)?;
        }
        if power_lost {
            self.take_lengths()?;
        }
        let garbage = self
            .keys(&keys::table(keys::GARBAGE))
            .map_err(OpError::into_store)?;
        *self.garbage.lock() = garbage.iter().filter_map(|key| keys::ino_of(key)).collect();
        Ok(())
    }

    /// Applies what the log says happened since the checkpoint.
    fn replay(&self, checkpoint: Checkpoint, replay: Replay) -> Result<(), StoreError> {
        let mut applying = self.applying.lock();
        let mut records = replay.into_iter();
        let mut pending: BTreeMap<Osn, (Position, MetaOp)> = BTreeMap::new();
        let mut ahead = records.next().transpose()?;
        while let Some((position, record)) = ahead.take() {
            ahead = records.next().transpose()?;
            let fresh = position.get() >= checkpoint.log_position;
            let op = match record {
                Record::Pending(op) => {
                    pending.insert(op.osn, (position, op));
                    continue;
                }
                Record::RolledBack { osn } => {
                    pending.remove(&osn);
                    continue;
                }
                Record::Committed { osn } => pending.remove(&osn).map(|(_, op)| op),
                Record::CommittedOp(op) => Some(op),
                Record::FileTimes { ino, mtime, ctime } if fresh => {
                    self.replay_times(ino, mtime, ctime)?;
                    continue;
                }
                _ => continue,
            };
            let (Some(op), true) = (op, fresh) else {
                continue;
            };
            // The record after the last effect of an operation proves that it was carried out.
            let effects = match &ahead {
                Some((_, Record::RolledBack { osn })) if *osn == op.osn => continue,
                Some(_) => Effects::Done,
                None => Effects::Redo,
            };
            self.replay_op(&op, effects)?;
            applying.applied = applying.applied.max(op.osn);
        }
        let mut previous = applying.applied;
        for (position, op) in pending.into_values() {
            let osn = op.osn;
            applying.pending.push(PendingIntent {
                op,
                previous,
                position,
            });
            previous = osn;
        }
        Ok(())
    }

    fn replay_op(&self, op: &MetaOp, effects: Effects) -> Result<(), StoreError> {
        let plan = plan::plan(self, op).map_err(|error| match error {
            OpError::Store(error) => error,
            OpError::Refused(errno) => StoreError::Diverged { osn: op.osn, errno },
        })?;
        if let (Some(effect), Effects::Redo) = (plan.content, effects) {
            self.names.apply(plan.batch.clone());
            self.change_content(effect)?;
        }
        self.install(plan, &op.request);
        Ok(())
    }

    fn replay_times(&self, ino: Ino, mtime: Timestamp, ctime: Timestamp) -> Result<(), StoreError> {
        self.change_record(ino, |inode| {
            inode.mtime = mtime;
            inode.ctime = ctime;
        })
    }

    fn change_record(&self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Result<(), StoreError> {
        if let Some(mut inode) = self.stored_inode(ino).map_err(OpError::into_store)? {
            change(&mut inode);
            self.names
                .apply(vec![(keys::inode(ino), Some(record::encode(&inode)))]);
        }
        Ok(())
    }

    /// A file was being written: its content says how long it is, the slot when it was written.
    fn take_slot(&self, slot: &Slot) -> Result<(), StoreError> {
        let length = self.content_length(slot.ino)?;
        self.change_record(slot.ino, |inode| {
            if let Body::File { size } = &mut inode.body {
                *size = length;
            }
            if let Some((osn, time)) = slot.last_write
                && osn > inode.osn
            {
                inode.mtime = time;
                inode.ctime = time;
            }
        })
    }

    /// After a power loss: every file is as long as its content is.
    fn take_lengths(&self) -> Result<(), StoreError> {
        let mut wrong = Vec::new();
        let inodes = keys::table(keys::INODES);
        let mut failed = None;
        self.names
            .scan(inodes.from(), inodes.to(), &mut |key, value| {
                let inode: Option<Inode> = record::decode(value);
                if let (Some(ino), Some(Body::File { size })) =
                    (keys::ino_of(key), inode.map(|i| i.body))
                {
                    match self.content_length(ino) {
                        Ok(length) if length != size => wrong.push(ino),
                        Ok(_) => {}
                        Err(error) => failed = Some(error),
                    }
                }
                std::ops::ControlFlow::Continue(())
            })?;
        if let Some(error) = failed {
            return Err(error);
        }
        for ino in wrong {
            tracing::warn!(%ino, "power loss: taking the size of the file from its content");
            self.take_slot(&Slot {
                ino,
                last_write: None,
            })?;
        }
        Ok(())
    }

    /// Makes the recovered state durable, with a new epoch, before anything new is numbered.
    fn start_epoch(&self, slots: &[(crate::times::SlotNumber, Slot)]) -> Result<(), StoreError> {
        self.applying.lock().epoch += 1;
        let limit = self.next_ino.load(std::sync::atomic::Ordering::Relaxed);
        {
            let _alone = self.checkpointing.lock();
            self.checkpoint_with_limit(limit.saturating_add(INO_RESERVE))?;
        }
        for (number, _) in slots {
            self.times.clear(*number);
        }
        Ok(())
    }
}

/// Whether the content effect of a replayed operation has to be carried out again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effects {
    Done,
    Redo,
}

impl OpError {
    /// The error as one of the store: for readings that cannot be refused.
    pub(crate) fn into_store(self) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::Refused(errno) => StoreError::Damaged {
                what: format!("a record that exists was refused: {errno}"),
            },
        }
    }
}

fn first_records() -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let root = Inode {
        mode: 0o755,
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

fn read_checkpoint(names: &Memtable<RedbKv>) -> Result<Checkpoint, StoreError> {
    names
        .get(keys::CHECKPOINT)?
        .as_deref()
        .and_then(record::decode)
        .ok_or_else(|| StoreError::Damaged {
            what: "the checkpoint record is missing or cannot be read".to_owned(),
        })
}

/// Written last and atomically: a directory without it holds no store.
fn write_format(backing: &dyn Backing, datastore: DatastoreUuid) -> Result<(), StoreError> {
    const DRAFT: &str = "format.json.new";
    let format = Format {
        lockstep_store: FORMAT,
        datastore,
    };
    let text = serde_json::to_vec_pretty(&format).unwrap_or_default();
    let wrap = || StoreError::disk("write", FORMAT_FILE);
    let file = backing.open_or_create(DRAFT).map_err(wrap())?;
    file.set_len(0).map_err(wrap())?;
    file.write_at(0, &text).map_err(wrap())?;
    file.sync().map_err(wrap())?;
    backing.rename(DRAFT, FORMAT_FILE).map_err(wrap())?;
    backing.sync_dir(".").map_err(wrap())
}

fn read_format(backing: &dyn Backing) -> Result<Format, StoreError> {
    let not_a_store = |why: String| StoreError::NotAStore {
        path: FORMAT_FILE.to_owned(),
        why,
    };
    let file = match backing.open(FORMAT_FILE) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(not_a_store("there is no format.json in it".to_owned()));
        }
        opened => opened.map_err(StoreError::disk("open", FORMAT_FILE))?,
    };
    let mut text = vec![0; 4096];
    let length = file
        .read_at(0, &mut text)
        .map_err(StoreError::disk("read", FORMAT_FILE))?;
    text.truncate(length);
    let newer: Result<FormatNumber, _> = serde_json::from_slice(&text);
    if let Ok(number) = newer
        && number.lockstep_store > FORMAT
    {
        return Err(StoreError::NewerFormat {
            found: number.lockstep_store,
            known: FORMAT,
        });
    }
    serde_json::from_slice(&text).map_err(|error| not_a_store(format!("format.json: {error}")))
}

/// The one field that every format has.
#[derive(Deserialize)]
struct FormatNumber {
    lockstep_store: u32,
}
