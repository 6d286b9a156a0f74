//! The metadata store on redb. Nothing outside this file knows redb.
//!
//! redb runs over a [`BlockFile`], and so over the disk below as a trait: the simulator crashes
//! the real store. Every commit is two-phase and records the allocator state ("quick repair"):
//! the pages of a commit are synced before the header that leads to them is written, so that a
//! page torn by a power loss is never read, and a store that was killed opens without a repair.
//!
//! redb reads only bytes that it has written, see [`BlockFile`]. If it panics all the same, the panic ends in this
//! file: the store stops writing, keeps this redb from ever running again (it is leaked, not dropped, as closing would
//! write) and answers [`KvError::Stopped`]. This needs a build that unwinds.
//!
//! redb gives up after any failed read or write. Commits are copy-on-write, so a failed commit has left only
//! unreachable pages. The next call opens redb again, unless a *sync* failed: then the state of the disk is unknown and
//! the store stays stopped.

use std::any::Any;
use std::io;
use std::mem;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::mutants::{Mutant, is_active};
use parking_lot::{Mutex, RwLock};
use redb::{
    Database, ReadOnlyTable, ReadableDatabase, StorageBackend, TableDefinition, WriteTransaction,
};

use super::blocks::{BLOCKS_VERSION, BlockFault, BlockFile};
use super::{Direction, Each, Kv, KvChanges, KvError};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("metadata");

/// Newest file format of redb that this program understands, and where its header says it: once
/// in each of its two commit slots.
const REDB_FORMAT: u8 = 3;
const REDB_FORMAT_AT: [usize; 2] = [64, 192];

type RedbView = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// How the store uses the machine.
#[derive(Clone, Copy, Debug)]
pub struct RedbOptions {
    /// Most memory for pages of the store, in bytes.
    pub cache_bytes: usize,
}

impl Default for RedbOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
        }
    }
}

/// A metadata store in one file.
pub struct RedbKv {
    path: String,
    options: RedbOptions,
    file: Arc<dyn BackingFile>,
    /// `None` if it could not be opened again after a failure.
    open: RwLock<Option<Open>>,
    /// Held by the one commit at a time.
    committing: Mutex<()>,
    /// Why the store has stopped.
    stopped: RwLock<Option<String>>,
    /// Length in bytes below which the file is not cut.
    kept: AtomicU64,
}

/// redb, and a view of its last commit: to open a view for each read would double the time of the read.
struct Open {
    view: Arc<RedbView>,
    database: Database,
    blocks: Arc<BlockFile>,
}

impl RedbKv {
    /// Makes an empty store, which exists under its name only once it is whole and on stable
    /// storage.
    pub fn create(
        backing: &dyn Backing,
        path: &str,
        options: RedbOptions,
    ) -> Result<Self, KvError> {
        let fail = |source| from_io(path, "make", source);
        if backing.exists(path).map_err(fail)? {
            return Err(KvError::Exists { path: path.into() });
        }
        let new = format!("{path}.new");
        let file = backing.open_or_create(&new).map_err(fail)?;
        let blocks = BlockFile::create(file).map_err(fail)?;
        let empty = Open::start(options, blocks).map_err(|failure| failure.at(path, "make"))?;
        empty.close();
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        backing.rename(&new, path).map_err(fail)?;
        backing.sync_dir(parent).map_err(fail)?;
        Self::open(backing, path, options)
    }

    /// Opens an existing store. If this fails, the file was not changed.
    pub fn open(backing: &dyn Backing, path: &str, options: RedbOptions) -> Result<Self, KvError> {
        let file = backing.open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => KvError::Missing { path: path.into() },
            _ => from_io(path, "open", source),
        })?;
        let open = Open::existing(path, options, &file)?;
        Ok(Self {
            path: path.into(),
            options,
            file,
            open: RwLock::new(Some(open)),
            committing: Mutex::new(()),
            stopped: RwLock::new(None),
            kept: AtomicU64::new(0),
        })
    }

    /// Reserves disk space for a file of this length in bytes, also for the time after a failure. Commits that need no
    /// longer file then succeed on a full disk.
    ///
    /// # Errors
    /// A [`KvError`], [`KvError::is_full_disk`] for a full disk. The store goes on.
    pub fn reserve(&self, bytes: u64) -> Result<(), KvError> {
        let _one_at_a_time = self.committing.lock();
        self.kept.store(bytes, Ordering::Relaxed);
        self.with_open("reserve", |open| {
            let reserved = open.blocks.reserve(bytes);
            reserved.map_err(|error| redb::Error::Io(error).into())
        })
    }

    fn stop(&self, why: String) -> KvError {
        let why = self.stopped.write().get_or_insert(why).clone();
        let path = self.path.clone();
        KvError::Stopped { path, why }
    }

    /// Runs `call`; if redb gave up over an earlier failure, opens it again, once.
    fn with_open<T>(
        &self,
        operation: &'static str,
        call: impl Fn(&Open) -> Result<T, RedbFailure>,
    ) -> Result<T, KvError> {
        if let Some(why) = &*self.stopped.read() {
            let (path, why) = (self.path.clone(), why.clone());
            return Err(KvError::Stopped { path, why });
        }
        let mut done = self.call(&call);
        if done.as_ref().is_err_and(RedbFailure::is_given_up) {
            self.reopen()?;
            done = self.call(&call);
        }
        done.map_err(|failure| self.explain(operation, failure))
    }

    fn call<T>(&self, call: impl Fn(&Open) -> Result<T, RedbFailure>) -> Result<T, RedbFailure> {
        match &*self.open.read() {
            Some(open) => call(open),
            None => Err(redb::Error::PreviousIo.into()),
        }
    }

    fn reopen(&self) -> Result<(), KvError> {
        let mut open = self.open.write();
        // Dropped first: at most one redb may write to the file. This redb gave up, so its close writes nothing.
        if let Some(given_up) = open.take() {
            given_up.close();
        }
        let again = Open::existing(&self.path, self.options, &self.file)?;
        again.blocks.keep(self.kept.load(Ordering::Relaxed));
        *open = Some(again);
        Ok(())
    }

    fn explain(&self, operation: &'static str, failure: RedbFailure) -> KvError {
        let is_stopped = {
            let open = self.open.read();
            open.as_ref().is_some_and(|open| open.blocks.is_stopped())
        };
        if matches!(failure, RedbFailure::Panicked(_)) {
            self.abandon();
        }
        self.judge(operation, failure, is_stopped)
    }

    /// Turns a failure into an error, and decides whether the store goes on.
    fn judge(&self, operation: &'static str, failure: RedbFailure, is_stopped: bool) -> KvError {
        match failure {
            RedbFailure::Panicked(what) => self.stop(format!("of an error of its own ({what})")),
            RedbFailure::Redb(error) if is_stopped => self.stop(format!("a sync failed ({error})")),
            failure @ RedbFailure::Redb(_) => failure.at(&self.path, operation),
        }
    }

    /// Never lets a redb that panicked run again.
    fn abandon(&self) {
        if let Some(open) = self.open.write().take() {
            open.blocks.stop();
            mem::forget(open);
        }
    }

    /// Shows readers the last commit.
    fn refresh(&self) -> Result<(), KvError> {
        let view = self.with_open("read", |open| contained(|| view(&open.database)))?;
        if let Some(open) = &mut *self.open.write() {
            open.view = view;
        }
        Ok(())
    }
}

impl Kv for RedbKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.with_open("read", |open| {
            contained(|| {
                let found = open.view.get(key)?;
                Ok::<_, redb::Error>(found.map(|value| value.value().to_vec()))
            })
        })
    }

    fn scan(
        &self,
        direction: Direction,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        each: &mut Each<'_>,
    ) -> Result<(), KvError> {
        if is_empty(from, to) {
            return Ok(());
        }
        // The range does not keep its pages from being used again. The view does: declared first, the view goes last.
        let view = self.with_open("read", |open| Ok(Arc::clone(&open.view)))?;
        let range = contained(|| view.range::<&[u8]>((from, to)));
        let mut range = range.map_err(|failure| self.explain("read", failure))?;
        // The callback runs outside of `contained`: a panic of its own is not redb's.
        loop {
            let next = contained(|| {
                let next = match direction {
                    Direction::Up => range.next(),
                    Direction::Down => range.next_back(),
                };
                let next = next.transpose()?;
                // Read once inside of `contained`: reading can also panic on a senseless page.
                let _ = next
                    .as_ref()
                    .map(|(key, value)| (key.value(), value.value()));
                Ok::<_, redb::Error>(next)
            });
            let Some((key, value)) = next.map_err(|failure| self.explain("read", failure))? else {
                return Ok(());
            };
            if each(key.value(), value.value()).is_break() {
                return Ok(());
            }
        }
    }

    fn commit_durable(&self, changes: &mut KvChanges<'_>) -> Result<(), KvError> {
        let _one_at_a_time = self.committing.lock();
        let begin = |open: &Open| contained(|| open.database.begin_write());
        let transaction = self.with_open("write", begin)?;
        contained(|| commit(transaction, changes))
            .map_err(|failure| self.explain("write", failure))?;
        self.refresh()
    }

    fn check(&mut self) -> Result<(), KvError> {
        // Opens redb again if it gave up.
        self.refresh()?;
        let Some(open) = self.open.get_mut().take() else {
            return Err(self.stop("it is not open".into()));
        };
        match open.check() {
            Ok((open, is_whole)) => {
                *self.open.get_mut() = Some(open);
                is_whole.then_some(()).ok_or_else(|| KvError::Damaged {
                    path: self.path.clone(),
                    what: "its pages do not fit together".into(),
                })
            }
            Err((failure, is_stopped)) => Err(self.judge("check", failure, is_stopped)),
        }
    }
}

impl Drop for RedbKv {
    fn drop(&mut self) {
        if let Some(open) = self.open.get_mut().take() {
            open.close();
        }
    }
}

impl Open {
    fn existing(
        path: &str,
        options: RedbOptions,
        file: &Arc<dyn BackingFile>,
    ) -> Result<Self, KvError> {
        let fail = |source| from_io(path, "open", source);
        let blocks = BlockFile::open(Arc::clone(file)).map_err(fail)?;
        check_format(path, &blocks.header().map_err(fail)?)?;
        let open = Self::start(options, blocks).map_err(|failure| failure.at(path, "open"))?;
        // Closing writes too, which a file that refused the first write must not get.
        match open.blocks.accept() {
            Ok(()) => Ok(open),
            Err(source) => {
                open.blocks.stop();
                open.close();
                Err(fail(source))
            }
        }
    }

    /// Closes redb, which commits once more to give up free space. If that fails, the last commit of the store is
    /// valid.
    fn close(self) {
        let _ = contained(|| {
            drop(self);
            Ok::<_, redb::Error>(())
        });
    }

    /// Checks all pages. After a failure redb is gone; the second value says whether a sync failed.
    fn check(self) -> Result<(Self, bool), (RedbFailure, bool)> {
        let Self {
            view: last,
            mut database,
            blocks,
        } = self;
        // redb checks only while no view is open.
        drop(last);
        let checked = contained(|| {
            let is_whole = database.check_integrity()?;
            Ok::<_, redb::Error>((view(&database)?, is_whole))
        });
        match checked {
            Ok((view, is_whole)) => {
                let open = Self {
                    view,
                    database,
                    blocks,
                };
                Ok((open, is_whole))
            }
            Err(failure) => {
                let is_stopped = blocks.is_stopped();
                blocks.stop();
                mem::forget(database);
                Err((failure, is_stopped))
            }
        }
    }

    /// Starts redb, and creates a missing table.
    fn start(options: RedbOptions, blocks: BlockFile) -> Result<Self, RedbFailure> {
        let blocks = Arc::new(blocks);
        let backend = Backend(Arc::clone(&blocks));
        contained(|| {
            let database = Database::builder()
                .set_cache_size(options.cache_bytes)
                .create_with_backend(backend)?;
            let view = match view(&database) {
                Err(redb::Error::TableDoesNotExist(_)) => {
                    commit(database.begin_write()?, &mut std::iter::empty())?;
                    view(&database)?
                }
                view => view?,
            };
            Ok::<_, redb::Error>(Self {
                view,
                database,
                blocks,
            })
        })
    }
}

fn view(database: &Database) -> Result<Arc<RedbView>, redb::Error> {
    Ok(Arc::new(database.begin_read()?.open_table(TABLE)?))
}

fn commit(
    mut transaction: WriteTransaction,
    changes: &mut KvChanges<'_>,
) -> Result<(), redb::Error> {
    transaction.set_quick_repair(true);
    let mut table = transaction.open_table(TABLE)?;
    for (key, value) in changes {
        match value {
            Some(value) => drop(table.insert(key, value)?),
            None => drop(table.remove(key)?),
        }
    }
    drop(table);
    Ok(transaction.commit()?)
}

/// Whether no key can lie in the range; redb panics on some empty ranges.
fn is_empty(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) => from >= to,
        _ => false,
    }
}

fn check_format(path: &str, header: &[u8]) -> Result<(), KvError> {
    let formats = REDB_FORMAT_AT.iter().filter_map(|at| header.get(*at));
    match formats.max() {
        Some(&found) if found > REDB_FORMAT => Err(KvError::Newer {
            path: path.into(),
            format: "database",
            found: found.into(),
            known: REDB_FORMAT.into(),
        }),
        _ => Ok(()),
    }
}

/// Why a call of redb gave no answer.
enum RedbFailure {
    Redb(redb::Error),
    Panicked(String),
}

impl<E: Into<redb::Error>> From<E> for RedbFailure {
    fn from(error: E) -> Self {
        Self::Redb(error.into())
    }
}

impl RedbFailure {
    /// Whether redb refused only because of an earlier failure.
    fn is_given_up(&self) -> bool {
        matches!(
            self,
            Self::Redb(redb::Error::PreviousIo | redb::Error::DatabaseClosed)
        )
    }

    fn at(self, path: &str, operation: &'static str) -> KvError {
        let path = path.to_owned();
        let what = match self {
            Self::Redb(redb::Error::Io(source)) => return from_io(&path, operation, source),
            Self::Redb(error @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed)) => {
                let source = io::Error::other(error.to_string());
                return from_io(&path, operation, source);
            }
            Self::Redb(redb::Error::Corrupted(what)) | Self::Panicked(what) => what,
            Self::Redb(error) => error.to_string(),
        };
        KvError::Damaged { path, what }
    }
}

fn from_io(path: &str, operation: &'static str, source: io::Error) -> KvError {
    let path = path.to_owned();
    let fault = |error: &io::Error| -> Option<KvError> {
        let path = path.clone();
        match error.get_ref()?.downcast_ref::<BlockFault>()? {
            BlockFault::Damaged(what) => Some(KvError::Damaged {
                path,
                what: what.clone(),
            }),
            BlockFault::Newer(found) => Some(KvError::Newer {
                path,
                format: "layout",
                found: *found,
                known: BLOCKS_VERSION,
            }),
            BlockFault::Stopped => None,
        }
    };
    fault(&source).unwrap_or(KvError::Io {
        path,
        operation,
        source,
    })
}

/// Runs a call of redb; a panic in it becomes a failure. A redb that panicked is never used again, see the head of this
/// file.
fn contained<T, E: Into<redb::Error>>(
    call: impl FnOnce() -> Result<T, E>,
) -> Result<T, RedbFailure> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(RedbFailure::from),
        Err(panic) => Err(RedbFailure::Panicked(text_of(&*panic))),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

/// The five calls that redb makes of a disk.
#[derive(Debug)]
struct Backend(Arc<BlockFile>);

impl StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.0.length())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.0.set_length(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        if is_active(Mutant::CutLogUnsynced) {
            return Ok(());
        }
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.0.write(offset, data)
    }
}
