//! Writing the seed of a snapshot, beside the clients of the node.
//!
//! The store is only read. The destination is a new directory, which is called `NAME.partial` until the seed is complete.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use blake3::Hash;
use lockstep_types::Ino;
use lockstep_types::backing::{Backing, BackingFile};
use serde::{Deserialize, Serialize};

use super::blocks::{BlocksEnd, read_blocks, runs};
use super::contents::{CONTENTS_FILE, ContentEntry, push};
use super::manifest::{SeedManifest, SeedOrigin, SeedSnapshot};
use super::names::{RECORDS_FILE, push_record};
use super::part::PartWriter;
use crate::backing::os_backing::OsBacking;
use crate::error::{OpError, StoreError};
use crate::export::{ExportError, ExportSource, Unfinished, prepare};
use crate::namespace::keys;
use crate::namespace::record::{self, Body, Inode};
use crate::namespace::snapshot_list::SnapshotBytes;
use crate::paths::{CONTENT_DIR, content_path};
use crate::snapshots::view::SnapshotView;
use crate::store::{ImageChunk, SeedTotals, SnapshotAccess, Store};
use crate::text::escaped;
use crate::view::StoreView;

/// Bytes of records that are read at once.
const RECORD_BYTES: usize = 256 << 10;

/// A seed that is asked for.
#[derive(Clone, Debug)]
pub struct SeedOrder<'a> {
    /// The name of the snapshot.
    pub at: &'a str,
    /// The directory of the seed: missing, or empty.
    pub dest: &'a Path,
    /// Where the seed comes from.
    pub origin: SeedOrigin,
}

/// How far an export is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedProgress {
    /// Regular files so far.
    pub files: u64,
    /// Bytes of these, holes included.
    pub bytes: u64,
    /// All regular files.
    pub files_total: u64,
    /// All their bytes, holes included.
    pub bytes_total: u64,
}

/// A seed that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedSummary {
    /// Inodes of any kind.
    pub inodes: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of data; holes are none.
    pub bytes: u64,
}

/// Hears of the progress. A break stops the export.
pub type WatchSeed<'a> = dyn FnMut(SeedProgress) -> ControlFlow<()> + 'a;

/// Writes a seed of a snapshot of the store in a directory, which a node has open.
///
/// # Errors
/// The store has no such snapshot, or one that makes no seed; the snapshot was deleted meanwhile; the destination is in use, fails or is
/// full; or the watcher has stopped the export.
pub fn export_seed(
    (dir, store): (&Path, &Store),
    order: SeedOrder<'_>,
    watch: &mut WatchSeed<'_>,
) -> Result<SeedSummary, ExportError> {
    let view = view_of((dir, store), order.at)?;
    let place = Unfinished::directory(order.dest)?;
    prepare(dir, &place.path).map_err(|error| error.about(order.dest))?;
    let written = open_place(&place.path)
        .and_then(|seed| write_seed(&view, order.origin, &seed, watch))
        .map_err(|error| {
            let is_gone = SnapshotAccess::of(store).get(view.id()).is_none();
            let name = order.at.to_owned();
            let error = if is_gone && error.is_of_reading() {
                ExportError::SnapshotGone { name }
            } else {
                error
            };
            place.incomplete(error)
        })?;
    place.finish()?;
    sync_above(order.dest)?;
    let SeedTotals {
        inodes,
        files,
        bytes,
        ..
    } = written.totals;
    Ok(SeedSummary {
        inodes,
        files,
        bytes,
    })
}

/// The view of a snapshot of the datastore whose bytes are all there.
fn view_of<'a>(
    (dir, store): (&Path, &'a Store),
    at: &str,
) -> Result<SnapshotView<'a>, ExportError> {
    let source = ExportSource {
        store: dir,
        at: Some(at),
    };
    let id = source.find(store, at)?;
    let name = at.to_owned();
    if id.is_local() {
        return Err(ExportError::NotOfDatastore { name });
    }
    let snapshots = SnapshotAccess::of(store);
    let bytes = snapshots.all().get(&id).map(|record| record.bytes);
    let unfit = |why| ExportError::Unfit {
        name: at.to_owned(),
        why,
    };
    match bytes {
        Some(SnapshotBytes::Torn) => {
            return Err(unfit(
                "torn on this node: some of its bytes may be of an earlier moment",
            ));
        }
        Some(SnapshotBytes::Missing) => {
            return Err(unfit(
                "missing on this node: only the other one has its bytes",
            ));
        }
        _ => {}
    }
    snapshots.view(id).ok_or(ExportError::SnapshotGone { name })
}

fn open_place(path: &Path) -> Result<Arc<dyn Backing>, ExportError> {
    let name = escaped(path.as_os_str().as_encoded_bytes());
    let opened = OsBacking::open(path).map_err(ExportError::write("open", name))?;
    Ok(Arc::new(opened))
}

/// Puts the name of the seed on stable storage.
fn sync_above(dest: &Path) -> Result<(), ExportError> {
    let name = || escaped(dest.as_os_str().as_encoded_bytes());
    let Some(above) = dest.parent() else {
        return Ok(());
    };
    let synced = std::fs::File::open(above).and_then(|above| above.sync_all());
    synced.map_err(ExportError::write("sync the name of", name()))
}

/// Writes the seed of a view into an empty directory.
///
/// # Errors
/// As for [`export_seed`].
pub fn write_seed(
    view: &SnapshotView<'_>,
    origin: SeedOrigin,
    seed: &Arc<dyn Backing>,
    watch: &mut WatchSeed<'_>,
) -> Result<SeedManifest, ExportError> {
    seed.scatter(CONTENT_DIR);
    let census = view.census(0, u64::MAX);
    let census = census.map_err(reading("the records"))?;
    let mut writing = SeedWriting {
        view,
        seed: &**seed,
        watch,
        progress: SeedProgress {
            files_total: census.files,
            bytes_total: census.bytes,
            ..SeedProgress::default()
        },
        totals: SeedTotals::default(),
        buffer: Vec::new(),
    };
    let parts = writing.parts()?;
    seed.sync_all().map_err(ExportError::write("sync", "."))?;
    let record = view.snapshot();
    let snapshot = SeedSnapshot {
        name: record.name.clone(),
        time: record.time,
        osn: view.id().osn,
        serial: record.serial,
        inos_below: record.inos_below,
    };
    let manifest = SeedManifest::new(origin, snapshot, writing.totals, parts);
    let written = manifest.write(&**seed);
    written.map_err(ExportError::write("write", super::MANIFEST_FILE))?;
    Ok(manifest)
}

fn reading(what: &str) -> impl FnOnce(OpError) -> ExportError {
    let name = what.to_owned();
    move |source| ExportError::Read { name, source }
}

/// A seed that is being written.
struct SeedWriting<'a, 'w> {
    view: &'a SnapshotView<'a>,
    seed: &'a dyn Backing,
    watch: &'a mut WatchSeed<'w>,
    progress: SeedProgress,
    totals: SeedTotals,
    buffer: Vec<u8>,
}

impl SeedWriting<'_, '_> {
    /// Writes the records and the contents. Returns what the manifest says of both lists.
    fn parts(&mut self) -> Result<[super::part::SeedPart; 2], ExportError> {
        let create = |path| {
            let made = PartWriter::create(self.seed, path);
            made.map_err(ExportError::write("create", path))
        };
        let (mut records, mut contents) = (create(RECORDS_FILE)?, create(CONTENTS_FILE)?);
        for table in keys::REPLICATED {
            self.table(table, &mut records, &mut contents)?;
        }
        let records = records.finish();
        let contents = contents.finish();
        Ok([
            records.map_err(ExportError::write("write", RECORDS_FILE))?,
            contents.map_err(ExportError::write("write", CONTENTS_FILE))?,
        ])
    }

    fn table(
        &mut self,
        table: u8,
        records: &mut PartWriter,
        contents: &mut PartWriter,
    ) -> Result<(), ExportError> {
        let mut after = Vec::new();
        loop {
            let chunk = ImageChunk::read(self.view, table, &after, RECORD_BYTES);
            let chunk = chunk.map_err(reading("the records"))?;
            for record in &chunk.records {
                let pushed = push_record(records, &record.key, &record.value);
                pushed.map_err(ExportError::write("write", RECORDS_FILE))?;
                if table == keys::INODES {
                    self.inode(&record.key, &record.value, contents)?;
                }
            }
            self.show(0)?;
            match chunk.records.into_iter().next_back() {
                Some(last) if !chunk.last => after = last.key,
                _ => return Ok(()),
            }
        }
    }

    /// Counts an inode, and writes its content.
    fn inode(
        &mut self,
        key: &[u8],
        value: &[u8],
        contents: &mut PartWriter,
    ) -> Result<(), ExportError> {
        let found = keys::ino_of(key).zip(record::decode::<Inode>(value));
        let unreadable = || OpError::Store(StoreError::unreadable(key));
        let (ino, inode) = found.ok_or_else(|| reading("the records")(unreadable()))?;
        self.totals.inodes += 1;
        let Body::File { size } = inode.body else {
            return Ok(());
        };
        self.totals.files += 1;
        if size > 0 {
            let sum = self.content(ino, size)?;
            let pushed = push(contents, &ContentEntry { ino, size, sum });
            pushed.map_err(ExportError::write("write", CONTENTS_FILE))?;
            self.totals.contents += 1;
        }
        self.progress.files += 1;
        self.progress.bytes += size;
        self.show(0)
    }

    /// Writes the content of a file. Returns its sum.
    fn content(&mut self, ino: Ino, size: u64) -> Result<Hash, ExportError> {
        let name = format!("inode {ino}");
        let from = self.view.content(ino).map_err(OpError::Store);
        let from = from.map_err(reading(&name))?;
        let path = content_path(ino);
        let file = self.seed.open_or_create(&path);
        let file = file.map_err(ExportError::write("create", &*path))?;
        let grown = file.set_len(size);
        grown.map_err(ExportError::write("set the length of", &*path))?;
        let Some(from) = from else {
            return Ok(blake3::Hasher::new().finalize());
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = read_blocks(&*from, size, &mut buffer, &mut |at, piece| {
            self.show(at)?;
            self.piece(&*file, at, piece)
                .map_err(ExportError::write("write", &*path))
        });
        self.buffer = buffer;
        read.map_err(|end| match end {
            BlocksEnd::Read(error) => {
                reading(&name)(StoreError::content("read", ino)(error).into())
            }
            BlocksEnd::Caller(error) => error,
        })
    }

    fn piece(&mut self, file: &dyn BackingFile, at: u64, piece: &[u8]) -> std::io::Result<()> {
        for (offset, run) in runs(at, piece) {
            file.write_at(offset, run)?;
            self.totals.bytes += run.len() as u64;
        }
        Ok(())
    }

    /// Tells the progress, with the bytes of the file that is being written.
    fn show(&mut self, bytes: u64) -> Result<(), ExportError> {
        let progress = SeedProgress {
            bytes: self.progress.bytes + bytes,
            ..self.progress
        };
        match (self.watch)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ExportError::Stopped),
        }
    }
}
