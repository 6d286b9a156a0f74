//! The count of the sync in memory of the machine, outside of the store (rule P17): a file under `/run`.
//!
//! The file outlives the process, and not the run of the machine. No copy of the store holds it. So it shows that an operator
//! has put an older copy of the store back: the copy has answered fewer operations than this machine, or is of an earlier sync. The
//! name of a sync is there before the other node hears of it.
//!
//! The name of the store follows the count. Names of syncs of one store have an order, those of different stores have none.
//! Datastore, path of the store and run of the machine identify the file. A node that may not write there (one that does not
//! run as root) goes without the file.

use std::io;
use std::path::Path;
use std::sync::Arc;

use lockstep_fs::os_backing::OsBacking;
use lockstep_paw_saw::{COUNT_BYTES, count_in};
use lockstep_types::backing::{Backing, BackingTable};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{BootId, Hash128, Lineage, StoreId, SyncNames, SyncStanding};

use super::role_file::RoleState;
use super::tables;
use crate::config::DatastoreConfig;

/// Directory of the counts of all stores.
const DIRECTORY: &str = "/run/lockstep/counts";

/// Bytes of the name of a store.
const NAME_BYTES: usize = 16;

/// Bytes of the table.
pub const MACHINE_COUNT_BYTES: usize = COUNT_BYTES + NAME_BYTES;

/// The table of the store of `config`; `None` if this process cannot make one, or if there is no other node.
pub(crate) fn of(config: &DatastoreConfig, boot: BootId) -> Option<Arc<dyn BackingTable>> {
    config.peer.as_ref()?;
    match open(Path::new(DIRECTORY), config, boot) {
        Ok(table) => Some(table),
        Err(error) => {
            tracing::debug!(%error, datastore = config.name, "no count outside of the store");
            None
        }
    }
}

fn open(
    directory: &Path,
    config: &DatastoreConfig,
    boot: BootId,
) -> io::Result<Arc<dyn BackingTable>> {
    let place = config.store.canonicalize()?;
    let key = [
        &config.uuid.as_bytes()[..],
        boot.as_bytes(),
        place.as_os_str().as_encoded_bytes(),
    ];
    let hash = u128::from_be_bytes(Hash128::of(&key.concat()).0);
    std::fs::create_dir_all(directory)?;
    OsBacking::open(directory)?.open_table(&format!("{hash:032x}"), MACHINE_COUNT_BYTES)
}

/// Notes the store that the count is of. A new store of a secondary has no name yet.
pub(crate) fn note_store(machine: &dyn BackingTable, store: Option<StoreId>) {
    machine.store(COUNT_BYTES, &name_of(store));
}

fn name_of(store: Option<StoreId>) -> [u8; NAME_BYTES] {
    store.map_or([0; NAME_BYTES], |store| *store.as_bytes())
}

/// Whether this machine has answered an operation that a copy with the state `role` lacks.
pub(crate) fn shows_older(
    machine: &dyn BackingTable,
    role: &RoleState,
    backing: &dyn Backing,
) -> bool {
    if is_active(Mutant::TrustLaterCopy) {
        return false;
    }
    let mut bytes = [0; MACHINE_COUNT_BYTES];
    machine.load(0, &mut bytes);
    let (counted, store) = bytes.split_at(COUNT_BYTES);
    let count = count_in(counted);
    let Some(sync) = count.of else {
        return false;
    };
    let is_of_this_store = role.lineage.store.is_some() && store == name_of(role.lineage.store);
    if !is_of_this_store && !role.lineage.sync.has(sync) {
        return false;
    }
    let known = SyncStanding {
        names: SyncNames::settled(Some(sync)),
        count,
    };
    // A copy whose count cannot be read has lost its tables, which counts as well.
    let left = tables::left_count(backing).unwrap_or_default();
    SyncStanding::of(role.lineage.sync, left).lineage(&known) == Lineage::Newer
}

#[cfg(test)]
mod tests {
    use lockstep_types::SyncId;

    use super::*;
    use crate::open::tests::Place;

    #[test]
    fn a_count_belongs_to_one_store_and_one_run_of_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let counts = dir.path().join("run/counts");
        let (one, other) = (Place::in_sync(), Place::in_sync());
        let boot = BootId::from_bytes([1; 16]);
        let found = |place: &Place, boot| {
            let mut bytes = [0; COUNT_BYTES];
            let table = open(&counts, place.config(), boot).unwrap();
            table.load(0, &mut bytes);
            count_in(&bytes)
        };
        let table = open(&counts, one.config(), boot).unwrap();
        let left = tables::open_count(one.backing().as_ref(), true).unwrap();
        left.kept_beside(table).begin(SyncId::next(None, [3; 16]));
        assert_eq!(found(&one, boot).of, Some(SyncId::next(None, [3; 16])));
        assert_eq!(found(&other, boot).of, None);
        assert_eq!(found(&one, boot.of_no_run()).of, None);
    }
}
