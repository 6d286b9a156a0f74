//! What PAW and SAW tell of a pair in sync, at any moment: where the nodes differ (P6, P7).
//!
//! Bytes that differ are in PAW, and those that only the secondary has got are in SAW too. This holds
//! between any two steps, whoever lives: so it is looked at again and again.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_fs::files::content_owner;
use lockstep_paw_saw::{InFlightEntry, InFlightTable, TABLE_BYTES};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Ino, MetaRequest};

use crate::disk::Disk;
use crate::history::{Fate, History};
use crate::workload::{Mark, Op, mark};
use crate::world::Side;

/// Holds the tables of two nodes in sync against what their disks hold at this moment. `is_there` tells
/// whether both nodes have an inode: the content of one that is gone goes when it suits each node.
pub fn tell(
    [primary, secondary]: [&Disk; 2],
    is_there: impl Fn(Ino) -> Result<bool, String>,
    history: &History,
) -> Result<(), String> {
    let (here, there) = (contents(primary), contents(secondary));
    let on_both = here
        .iter()
        .filter_map(|(ino, here)| Some((*ino, here, there.get(ino)?)));
    let mut differ = on_both.filter(|(_, here, there)| here != there).peekable();
    if differ.peek().is_none() {
        return Ok(());
    }
    let tables = Tables {
        paw: waiting(primary, "tables/paw")?,
        saw: waiting(secondary, "tables/saw")?,
    };
    let uncertain = with_open_changes_of_content(history);
    for (ino, here, there) in differ {
        if !uncertain.contains(&ino) && is_there(ino)? {
            tables.tell_of(ino, here, there, &open_marks(history, ino))?;
        }
    }
    Ok(())
}

/// The writes that a table remembers.
fn waiting(disk: &Disk, path: &str) -> Result<Vec<InFlightEntry>, String> {
    let opened = disk.fork().mount().open_table(path, TABLE_BYTES);
    let table = opened.map_err(|error| error.to_string())?;
    let opened = InFlightTable::open(table);
    let (_, entries) = opened.map_err(|damage| format!("{path} is damaged: {damage}"))?;
    Ok(entries)
}

/// The writes that both tables of a node remember: PAW, then SAW.
pub fn both(disk: &Disk) -> Result<[Vec<InFlightEntry>; 2], String> {
    Ok([waiting(disk, "tables/paw")?, waiting(disk, "tables/saw")?])
}

/// All bytes of all files.
fn contents(disk: &Disk) -> BTreeMap<Ino, Vec<u8>> {
    let content = |path: String| Some((content_owner(&path)?, disk.read_all(&path)?));
    disk.files().into_iter().filter_map(content).collect()
}

/// What the tables of both nodes remember.
struct Tables {
    paw: Vec<InFlightEntry>,
    saw: Vec<InFlightEntry>,
}

impl Tables {
    fn tell_of(
        &self,
        ino: Ino,
        here: &[u8],
        there: &[u8],
        open: &BTreeSet<Mark>,
    ) -> Result<(), String> {
        for block in 0..here.len().max(there.len()).div_ceil(BLOCK_BYTES) {
            let (here, there) = (block_of(here, block), block_of(there, block));
            if here == there {
                continue;
            }
            let offset = (block * BLOCK_BYTES) as u64;
            let said = |table: &str| {
                format!("#{ino} at {offset}: differs, though in sync, and {table} does not tell")
            };
            if !remembers(&self.paw, ino, offset) {
                return Err(said("PAW"));
            }
            if is_ahead(ino, offset, &here, &there, open) && !remembers(&self.saw, ino, offset) {
                return Err(said("SAW"));
            }
        }
        Ok(())
    }
}

/// A block of a file, with zeros behind its end.
fn block_of(bytes: &[u8], block: usize) -> [u8; BLOCK_BYTES] {
    let mut whole = [0; BLOCK_BYTES];
    let start = (block * BLOCK_BYTES).min(bytes.len());
    let (_, from) = bytes.split_at(start);
    for (into, byte) in whole.iter_mut().zip(from) {
        *into = *byte;
    }
    whole
}

fn remembers(table: &[InFlightEntry], ino: Ino, offset: u64) -> bool {
    let block = BLOCK_BYTES as u64;
    table.iter().any(|entry| {
        let end = entry.offset + u64::from(entry.length);
        entry.ino == ino && entry.offset < offset + block && offset < end
    })
}

/// Whether the secondary has got bytes of a write under way that the primary has not. Where the primary
/// has bytes of another one, which has its range, that write is done on both, and only not yet answered.
fn is_ahead(ino: Ino, offset: u64, here: &[u8], there: &[u8], open: &BTreeSet<Mark>) -> bool {
    let runs_of_open = |bytes| {
        let runs = mark::runs(ino, offset, bytes).into_iter();
        runs.filter(|run| run.mark.is_some_and(|mark| open.contains(&mark)))
    };
    runs_of_open(there).any(|run| {
        !runs_of_open(here).any(|other| {
            if other.mark == run.mark {
                other.from <= run.from && run.to <= other.to
            } else {
                other.from < run.to && run.from < other.to
            }
        })
    })
}

/// Files whose content an operation under way may be changing: a truncation is in no table.
fn with_open_changes_of_content(history: &History) -> BTreeSet<Ino> {
    let open = history
        .calls()
        .filter(|(_, call)| call.fate() == Fate::Unsure);
    let changed = |op: &Op| match op {
        Op::Change(MetaRequest::Truncate { ino, .. } | MetaRequest::Allocate { ino, .. }) => {
            Some(*ino)
        }
        _ => None,
    };
    open.filter_map(|(_, call)| changed(&call.op)).collect()
}

/// The writes to a file that are under way in this life of the primary: those that are over, though with
/// an error, and those of a life before may since have been written over on one side.
fn open_marks(history: &History, ino: Ino) -> BTreeSet<Mark> {
    let born = history.last_start(Side::Primary);
    let mine = history.calls().filter(|(_, call)| call.invoked > born);
    let open = mine.filter(|(_, call)| call.latest() == u64::MAX);
    open.filter_map(|(_, call)| match &call.op {
        Op::Write(write) if write.ino == ino => Some(write.mark),
        _ => None,
    })
    .collect()
}
