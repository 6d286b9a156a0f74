//! The checks of the data that a stopped node leaves on its disk.
//!
//! While both nodes are treated as in sync, the secondary alone must be able to continue: its store
//! must explain all answers of the clients.

use lockstep_driver::RoleMarks;
use lockstep_fs::Store;
use lockstep_fs::store::{Access, MarkTableSizes, OpenOptions};
use lockstep_intentlog::LogOptions;
use lockstep_types::{BootId, DatastoreUuid, Osn};

use super::dump::dump;
use super::node_disk::ROLE_FILE;
use crate::check::{self, Dump, durable};
use crate::disk::Disk;
use crate::history::History;

/// Returns the content of the store on a stopped node's disk, as a process in the run `boot` of the
/// machine would find it. The disk does not change.
pub fn dump_of(disk: &Disk, uuid: DatastoreUuid, boot: BootId) -> Result<Dump, String> {
    dump(&store_of(disk, uuid, boot)?)
}

/// The store that a process would leave if it ended now.
pub struct LeftStore {
    /// The content of the store.
    pub dump: Dump,
    /// The last operation applied.
    pub applied: Osn,
    /// Whether an operation waits for the other node.
    pub waits: bool,
}

/// Returns the store that a process would leave on its disk if it ended now.
pub fn left(disk: &Disk, uuid: DatastoreUuid, boot: BootId) -> Result<LeftStore, String> {
    let store = store_of(disk, uuid, boot)?;
    Ok(LeftStore {
        dump: dump(&store)?,
        applied: store.applied(),
        waits: !store.intents().in_doubt().is_empty(),
    })
}

/// Opens the store on a disk, as a process in the run `boot` of the machine would find it if the last one had ended now. The disk does not change.
pub fn store_of(disk: &Disk, uuid: DatastoreUuid, boot: BootId) -> Result<Store, String> {
    let options = OpenOptions {
        datastore: Some(uuid),
        boot,
        access: Access::Read,
        log: LogOptions::default(),
        marks: MarkTableSizes::of(64),
    };
    let opened = Store::open(disk.fork().mount(), &options);
    Ok(opened.map_err(|error| error.to_string())?.store)
}

/// Checks the secondary after a power loss while in sync: its disk must hold everything that was
/// acknowledged as durable.
pub fn check_durable(secondary: &Dump, history: &History) -> Result<(), String> {
    durable::check(&history.without_closes(), secondary)
        .map_err(|violation| format!("on the secondary, after its loss of power: {violation}"))
}

/// Checks the secondary after the end of the primary while in sync: the secondary must be able to
/// continue alone. Returns `false` if the question had to be left undecided.
pub fn check_could_take_over(secondary: &Dump, history: &History) -> Result<bool, String> {
    check::history(history, secondary)
        .map_err(|violation| format!("on the secondary, if it had to continue alone: {violation}"))
}

/// Checks the secondary during a resync: its role file must say that the copy is out of sync (P10).
pub fn check_marked_out_of_sync(disk: &Disk) -> Result<(), String> {
    match marks(disk) {
        Some(marks) if !marks.in_sync => Ok(()),
        marks => Err(format!(
            "the secondary is being resynced and says: {marks:?}"
        )),
    }
}

/// Returns whether the role file says that the store was closed cleanly (P12).
pub fn is_closed(disk: &Disk) -> bool {
    marks(disk).is_some_and(|marks| marks.is_closed)
}

/// Returns the marks in the role file, or `None` for a missing or damaged role file.
pub fn marks(disk: &Disk) -> Option<RoleMarks> {
    RoleMarks::of(&disk.read_all(ROLE_FILE)?)
}
