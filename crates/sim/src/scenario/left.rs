//! What a node that has stopped leaves behind, held against what must be there.
//!
//! While both nodes count as in sync, the secondary alone must be able to go on: what clients saw and
//! were told must be explained by what it has.

use lockstep_driver::RoleMarks;
use lockstep_fs::Store;
use lockstep_fs::store::{Access, OpenOptions};
use lockstep_intentlog::LogOptions;
use lockstep_types::{BootId, DatastoreUuid};

use super::dump::dump;
use crate::check::{self, Dump, durable};
use crate::disk::Disk;
use crate::history::History;

/// What the disk of a stopped node holds, for who would open it in the run `boot` of the machine. The
/// disk stays as it is.
pub fn on(disk: &Disk, uuid: DatastoreUuid, boot: BootId) -> Result<Dump, String> {
    let options = OpenOptions {
        datastore: Some(uuid),
        boot,
        access: Access::Read,
        log: LogOptions::default(),
    };
    let opened = Store::open(disk.fork().mount(), &options);
    dump(&opened.map_err(|error| error.to_string())?.store)
}

/// The secondary lost power while in sync: what was acknowledged as durable must be on its disk.
pub fn holds_the_durable(secondary: &Dump, history: &History) -> Result<(), String> {
    durable::check(&history.without_closes(), secondary)
        .map_err(|violation| format!("on the secondary, after its loss of power: {violation}"))
}

/// The primary is gone while in sync: the secondary could go on in its place. `false` if that had to
/// be left undecided.
pub fn could_take_over(secondary: &Dump, history: &History) -> Result<bool, String> {
    check::history(history, secondary)
        .map_err(|violation| format!("on the secondary, had it to go on alone: {violation}"))
}

/// The secondary is being resynced: were it to go on alone now, it must know that it cannot (P10).
pub fn is_marked_out_of_sync(disk: &Disk) -> Result<(), String> {
    match marks(disk) {
        Some(marks) if !marks.in_sync => Ok(()),
        marks => Err(format!(
            "the secondary is being resynced and says: {marks:?}"
        )),
    }
}

/// Whether the role file says that the store was closed in order (P12).
pub fn is_closed(disk: &Disk) -> bool {
    marks(disk).is_some_and(|marks| marks.is_closed)
}

/// What the role file says.
fn marks(disk: &Disk) -> Option<RoleMarks> {
    RoleMarks::of(&disk.read_all("role.json")?)
}
