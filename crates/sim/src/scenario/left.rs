//! What a node that has stopped leaves behind, held against what must be there.
//!
//! While both nodes count as in sync, the secondary alone must be able to go on: what clients saw and
//! were told must be explained by what it has. And the tables must tell of every write that may be on
//! one side only.

use std::collections::BTreeSet;
use std::sync::Arc;

use lockstep_fs::Store;
use lockstep_fs::store::{Access, OpenOptions};
use lockstep_intentlog::LogOptions;
use lockstep_paw_saw::{Entry, InFlightTable, TABLE_BYTES};
use lockstep_types::backing::Backing;
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{DatastoreUuid, Ino, MetaRequest};

use super::dump::dump;
use crate::check::{self, Body, Dump, durable};
use crate::disk::Disk;
use crate::history::{Fate, History};
use crate::workload::{Mark, Op, mark};
use crate::world::Side;

/// A stopped node, looked at through a copy of its disk.
pub struct Left {
    dump: Dump,
    backing: Arc<dyn Backing>,
}

impl Left {
    /// What a disk holds, for who would open it in the run `boot` of the machine.
    pub fn on(disk: &Disk, uuid: DatastoreUuid, boot: [u8; 16]) -> Result<Self, String> {
        let backing = disk.fork().mount();
        let options = OpenOptions {
            datastore: Some(uuid),
            boot,
            access: Access::Read,
            log: LogOptions::default(),
        };
        let opened = Store::open(Arc::clone(&backing), &options);
        let store = opened.map_err(|error| error.to_string())?.store;
        let dump = dump(&store)?;
        Ok(Self { dump, backing })
    }

    /// The writes that a table of the node remembers.
    fn waiting(&self, table: &str) -> Result<Vec<Entry>, String> {
        let opened = self.backing.open_table(table, TABLE_BYTES);
        let table = opened.map_err(|error| error.to_string())?;
        let opened = InFlightTable::open(table).map_err(|damage| damage.to_string())?;
        Ok(opened.1)
    }

    fn bytes(&self, ino: Ino) -> &[u8] {
        self.dump.bytes(ino).unwrap_or_default()
    }
}

/// The secondary lost power while in sync: what was acknowledged as durable must be on its disk.
pub fn holds_the_durable(secondary: &Left, history: &History) -> Result<(), String> {
    durable::check(history, &secondary.dump)
        .map_err(|violation| format!("on the secondary, after its loss of power: {violation}"))
}

/// The primary is gone while in sync: the secondary could go on in its place.
pub fn could_take_over(secondary: &Left, history: &History) -> Result<(), String> {
    check::history(history, &secondary.dump)
        .map_err(|violation| format!("on the secondary, had it to go on alone: {violation}"))
}

/// The secondary is being resynced: were it to go on alone now, it must know that it cannot (P10).
pub fn is_marked_out_of_sync(disk: &Disk) -> Result<(), String> {
    let role = disk.read_all("role.json").unwrap_or_default();
    let role = String::from_utf8_lossy(&role).replace(char::is_whitespace, "");
    if role.contains("\"in_sync\":false") {
        Ok(())
    } else {
        Err(format!("the secondary is being resynced and says: {role}"))
    }
}

/// Both processes hold still, in sync: bytes that differ are in PAW, and those that only the secondary
/// has got in SAW too (P6, P7).
pub fn tables_tell(primary: &Left, secondary: &Left, history: &History) -> Result<(), String> {
    let tables = Tables {
        paw: primary.waiting("tables/paw")?,
        saw: secondary.waiting("tables/saw")?,
    };
    let uncertain = with_open_changes_of_content(history);
    let on_both = primary.dump.inodes.iter().filter(|(ino, inode)| {
        let there = secondary.dump.inodes.get(ino);
        matches!(inode.body, Body::File(_)) && there.is_some() && !uncertain.contains(ino)
    });
    for (&ino, _) in on_both {
        let open = open_marks(history, ino);
        tables.tell_of(ino, primary.bytes(ino), secondary.bytes(ino), &open)?;
    }
    Ok(())
}

/// What the tables of both nodes remember.
struct Tables {
    paw: Vec<Entry>,
    saw: Vec<Entry>,
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

fn remembers(table: &[Entry], ino: Ino, offset: u64) -> bool {
    let block = BLOCK_BYTES as u64;
    table.iter().any(|entry| {
        let end = entry.offset + u64::from(entry.length);
        entry.ino == ino && entry.offset < offset + block && offset < end
    })
}

/// Whether the secondary has got bytes of a write under way that the primary has not.
fn is_ahead(ino: Ino, offset: u64, here: &[u8], there: &[u8], open: &BTreeSet<Mark>) -> bool {
    let marks = |bytes| mark::runs(ino, offset, bytes).into_iter();
    let of_open = |run: &mark::Run| run.mark.is_some_and(|mark| open.contains(&mark));
    marks(there).filter(of_open).any(|run| {
        let mut same = marks(here).filter(|other| other.mark == run.mark);
        !same.any(|other| other.from <= run.from && run.to <= other.to)
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

/// The writes to a file that are under way in this life of the primary: older ones may since have been
/// written over on one side.
fn open_marks(history: &History, ino: Ino) -> BTreeSet<Mark> {
    let born = history.last_start(Side::Primary);
    let mine = history.calls().filter(|(_, call)| call.invoked > born);
    let open = mine.filter(|(_, call)| call.fate() == Fate::Unsure);
    open.filter_map(|(_, call)| match &call.op {
        Op::Write(write) if write.ino == ino => Some(write.mark),
        _ => None,
    })
    .collect()
}
