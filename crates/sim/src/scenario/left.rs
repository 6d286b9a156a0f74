//! What a node that has stopped leaves on its disk, held against what must be there.
//!
//! The other node may have to go on with this alone: so a secondary in sync must hold what was
//! acknowledged, and each table every write that may be on its side only.

use std::sync::Arc;

use lockstep_fs::Store;
use lockstep_fs::store::{Access, OpenOptions};
use lockstep_intentlog::LogOptions;
use lockstep_paw_saw::{Entry, InFlightTable, TABLE_BYTES};
use lockstep_types::backing::Backing;
use lockstep_types::{DatastoreUuid, FileName, Ino};

use super::clients::{BLOCK_BYTES, SHARED_FILE};
use super::ledger::{ClientId, Ledger};
use crate::disk::Disk;

/// A stopped node, looked at through a copy of its disk.
pub struct Left {
    store: Store,
    /// The shared file, if it is there.
    file: Option<Ino>,
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
        let name = FileName::new(SHARED_FILE).map_err(|_| "not a name".to_owned())?;
        let file = store.lookup(Ino::ROOT, &name).ok().map(|attr| attr.ino);
        Ok(Self {
            store,
            file,
            backing,
        })
    }

    /// The write that the block of a client holds; zero for none.
    pub fn write_of(&self, client: ClientId) -> u64 {
        let mut first = [0; 8];
        let read = self.file.map(|file| {
            self.store
                .read(file, client * BLOCK_BYTES as u64, &mut first)
        });
        match read {
            Some(Ok(_)) => u64::from_le_bytes(first),
            _ => 0,
        }
    }

    /// The writes that a table of the node remembers.
    fn waiting(&self, table: &str) -> Result<Vec<Entry>, String> {
        let opened = self.backing.open_table(table, TABLE_BYTES);
        let table = opened.map_err(|error| error.to_string())?;
        let opened = InFlightTable::open(table).map_err(|damage| damage.to_string())?;
        Ok(opened.1)
    }

    fn remembers(&self, waiting: &[Entry], client: ClientId) -> bool {
        let offset = client * BLOCK_BYTES as u64;
        let mine = |entry: &&Entry| Some(entry.ino) == self.file && entry.offset == offset;
        waiting.iter().any(|entry| mine(&entry))
    }
}

/// A secondary in sync lost power: what was acknowledged as durable must be on its disk.
pub fn holds_the_durable(left: &Left, ledger: &Ledger, clients: u64) -> Result<(), String> {
    for client in 0..clients {
        let (found, durable) = (left.write_of(client), ledger.durable(client));
        if found < durable {
            return Err(format!(
                "after its loss of power the secondary has write {found} of client {client}, but \
                 {durable} was acknowledged as durable"
            ));
        }
    }
    Ok(())
}

/// Both processes hold still, in sync: a block that differs is in PAW, and if the secondary is ahead
/// in SAW too (P6, P7).
pub fn tables_tell(primary: &Left, secondary: &Left, clients: u64) -> Result<(), String> {
    let paw = primary.waiting("tables/paw")?;
    let saw = secondary.waiting("tables/saw")?;
    for client in 0..clients {
        let (here, there) = (primary.write_of(client), secondary.write_of(client));
        if here != there && !primary.remembers(&paw, client) {
            return Err(format!(
                "write {here} of client {client} is on the primary, {there} on the secondary, and \
                 not in PAW"
            ));
        }
        if there > here && !secondary.remembers(&saw, client) {
            return Err(format!("write {there} of client {client} is not in SAW"));
        }
    }
    Ok(())
}
