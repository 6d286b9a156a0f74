//! The check of PAW and SAW: while the nodes are in sync, the tables say where the nodes differ
//! (P6, P7).
//!
//! Each differing block is in PAW. A block that only the secondary has received is in SAW too. The
//! rule holds between any two steps, whether or not the nodes are running. So the check runs many
//! times in a schedule.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_fs::paths::content_owner;
use lockstep_paw_saw::{InFlightEntry, InFlightTable, TABLE_BYTES};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Ino, MetaRequest};

use crate::disk::Disk;
use crate::history::{CallRecord, Fate, History};
use crate::op::{Mark, Op, mark};

/// Compares the tables of two nodes in sync with the content of their disks. `exists` says whether
/// both nodes have an inode: each node removes the content of a freed inode at a time of its own.
pub fn check(
    [primary, secondary]: [&Disk; 2],
    exists: impl Fn(Ino) -> Result<bool, String>,
    history: &History,
) -> Result<(), String> {
    let (ours, theirs) = (contents(primary), contents(secondary));
    let on_both = ours
        .iter()
        .filter_map(|(ino, ours)| Some((*ino, ours, theirs.get(ino)?)));
    let mut differ = on_both
        .filter(|(_, ours, theirs)| ours != theirs)
        .peekable();
    if differ.peek().is_none() {
        return Ok(());
    }
    let tables = Tables {
        paw: entries(primary, "tables/paw")?,
        saw: entries(secondary, "tables/saw")?,
    };
    let uncertain = with_open_changes_of_content(history.calls());
    for (ino, ours, theirs) in differ {
        if !uncertain.contains(&ino) && exists(ino)? {
            tables.check_file(ino, ours, theirs, &open_marks(history, ino))?;
        }
    }
    Ok(())
}

/// Returns the writes in a table.
fn entries(disk: &Disk, path: &str) -> Result<Vec<InFlightEntry>, String> {
    let opened = disk.fork().mount().open_table(path, TABLE_BYTES);
    let table = opened.map_err(|error| error.to_string())?;
    let opened = InFlightTable::open(table);
    let (_, entries) = opened.map_err(|damage| format!("{path} is damaged: {damage}"))?;
    Ok(entries)
}

/// Returns the writes in both tables of a node: PAW, then SAW.
pub fn both(disk: &Disk) -> Result<[Vec<InFlightEntry>; 2], String> {
    Ok([entries(disk, "tables/paw")?, entries(disk, "tables/saw")?])
}

/// Returns the bytes of all files.
fn contents(disk: &Disk) -> BTreeMap<Ino, Vec<u8>> {
    let content = |path: String| Some((content_owner(&path)?, disk.read_all(&path)?));
    disk.files().into_iter().filter_map(content).collect()
}

/// The tables of both nodes.
struct Tables {
    paw: Vec<InFlightEntry>,
    saw: Vec<InFlightEntry>,
}

impl Tables {
    fn check_file(
        &self,
        ino: Ino,
        ours: &[u8],
        theirs: &[u8],
        open: &BTreeSet<Mark>,
    ) -> Result<(), String> {
        for block in 0..ours.len().max(theirs.len()).div_ceil(BLOCK_BYTES) {
            let (ours, theirs) = (block_of(ours, block), block_of(theirs, block));
            if ours == theirs {
                continue;
            }
            let offset = (block * BLOCK_BYTES) as u64;
            let missing = |table: &str| {
                format!("#{ino} at {offset}: differs, though in sync, and is not in {table}")
            };
            if !covers(&self.paw, ino, offset) {
                return Err(missing("PAW"));
            }
            if is_ahead(ino, offset, &ours, &theirs, open) && !covers(&self.saw, ino, offset) {
                return Err(missing("SAW"));
            }
        }
        Ok(())
    }
}

/// Returns a block of a file, with zeros after the end of the file.
fn block_of(bytes: &[u8], block: usize) -> [u8; BLOCK_BYTES] {
    let mut whole = [0; BLOCK_BYTES];
    let start = (block * BLOCK_BYTES).min(bytes.len());
    let (_, from) = bytes.split_at(start);
    for (into, byte) in whole.iter_mut().zip(from) {
        *into = *byte;
    }
    whole
}

fn covers(table: &[InFlightEntry], ino: Ino, offset: u64) -> bool {
    let block = BLOCK_BYTES as u64;
    table.iter().any(|entry| {
        let end = entry.offset + u64::from(entry.length);
        entry.ino == ino && entry.offset < offset + block && offset < end
    })
}

/// Returns whether the secondary has bytes of a write in progress that the primary does not have.
/// The primary may have bytes of another write in progress in the same range. That write holds the
/// range, so the first write is done on both nodes and only not answered yet.
fn is_ahead(ino: Ino, offset: u64, ours: &[u8], theirs: &[u8], open: &BTreeSet<Mark>) -> bool {
    let runs_of_open = |bytes| {
        let runs = mark::runs(ino, offset, bytes).into_iter();
        runs.filter(|run| run.mark.is_some_and(|mark| open.contains(&mark)))
    };
    runs_of_open(theirs).any(|run| {
        !runs_of_open(ours).any(|other| {
            if other.mark == run.mark {
                other.from <= run.from && run.to <= other.to
            } else {
                other.from < run.to && run.from < other.to
            }
        })
    })
}

/// Returns the files whose content an operation in progress may be changing: a truncation is in no
/// table.
fn with_open_changes_of_content(calls: &CallRecord) -> BTreeSet<Ino> {
    let open = calls.iter().filter(|(_, call)| call.fate() == Fate::Unsure);
    let changed = |op: &Op| match op {
        Op::Change(MetaRequest::Truncate { ino, .. } | MetaRequest::Allocate { ino, .. }) => {
            Some(*ino)
        }
        _ => None,
    };
    open.filter_map(|(_, call)| changed(&call.op)).collect()
}

/// Returns the writes to a file that are in progress in the process that serves. An earlier write
/// may have been overwritten on one side since: a write that ended with an error, or a write of an
/// earlier process.
fn open_marks(history: &History, ino: Ino) -> BTreeSet<Mark> {
    let start = history.nodes().serving_since();
    let recent = history
        .calls()
        .iter()
        .filter(|(_, call)| call.invoked > start);
    let open = recent.filter(|(_, call)| call.latest() == u64::MAX);
    open.filter_map(|(_, call)| match &call.op {
        Op::Write(write) if write.ino == ino => Some(write.mark),
        _ => None,
    })
    .collect()
}
