//! The trustworthiness of the copy in the store of a stopped node, for an export.

use std::io;
use std::path::Path;
use std::sync::Arc;

use lockstep_fs::boot::boot_id;
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::poison::PoisonMarkers;
use lockstep_types::BootId;
use lockstep_types::backing::Backing;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;

use super::poison_marker::RunDirMarker;
use super::role_file::{RoleFile, RoleState, SlotChoice};
use super::tables::{TableError, Tables};

/// The caveats about the copy in the directory `store`, one text each; none for a copy that is complete. A new store
/// has the role `role`. Changes nothing.
///
/// # Errors
/// If `role.json` cannot be read.
pub fn caveats(store: &Path, role: Role) -> io::Result<Vec<String>> {
    let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(store)?);
    let role = RoleFile::read(backing.as_ref(), role, SlotChoice::Last)?;
    let stamp = Arc::new(RunDirMarker::of(store));
    let failure = PoisonMarkers::new(Arc::clone(&backing), Some(stamp)).read();
    let is_secondary = !role.record.is_primary();
    let incomplete = is_secondary.then(|| incomplete(role, backing.as_ref()));
    let failed = failure.map(|failure| {
        format!(
            "the disk of this copy failed {failure}; what is read here may be older than what was written"
        )
    });
    Ok(incomplete.flatten().into_iter().chain(failed).collect())
}

/// Why a secondary's copy is not in sync, as its node would find at the next start (rule P12).
fn incomplete(role: RoleState, backing: &dyn Backing) -> Option<String> {
    if !role.record.complete {
        return Some(
            "this copy is marked out of sync: it may be older than the primary's, or incomplete, as in \
             the middle of a resync"
                .to_owned(),
        );
    }
    match CopyLoss::of(role, backing, boot_id()) {
        Ok(None) => None,
        Ok(Some(CopyLoss::Power)) if role.keeps_complete() => None,
        Ok(Some(lost @ CopyLoss::Power)) => Some(format!(
            "{lost}: what was not on stable storage may be missing from this copy"
        )),
        Ok(Some(lost @ CopyLoss::Tables)) => Some(format!("{lost} from this copy")),
        Ok(Some(lost @ CopyLoss::Older)) => Some(lost.to_string()),
        Err(error) => Some(format!(
            "it cannot be told what was under way in this copy: {error}"
        )),
    }
}

/// Why a copy that is marked in sync is not in sync (rule P12).
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum CopyLoss {
    #[error("this machine went down while the store was open")]
    Power,
    #[error("the tables of the writes that were under way are missing")]
    Tables,
    #[error(
        "this machine has answered operations that this copy lacks: an older copy of the store was put back; connect the nodes, or \
         put the newer store back"
    )]
    Older,
}

impl CopyLoss {
    /// The loss of the copy on `backing`, if there is one, for a node that starts in the run `boot` of the machine.
    /// Changes nothing.
    pub(crate) fn of(
        role: RoleState,
        backing: &dyn Backing,
        boot: BootId,
    ) -> Result<Option<Self>, TableError> {
        if role.went_down(boot) && !is_active(Mutant::TrustAfterPowerLoss) {
            return Ok(Some(Self::Power));
        }
        Ok((!Tables::look(backing)?).then_some(Self::Tables))
    }
}

#[cfg(test)]
mod tests {
    use lockstep_fs::poison::MARKER_FILE;
    use lockstep_roles::RoleRecord;
    use lockstep_types::Generation;

    use super::super::tables::open_count;
    use super::*;

    #[test]
    fn a_copy_that_may_be_incomplete_or_on_a_failed_disk_is_called_so() {
        let dir = tempfile::tempdir().unwrap();
        let caveats = || caveats(dir.path(), Role::Secondary);
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(dir.path()).unwrap());
        let found = RoleFile::read(backing.as_ref(), Role::Secondary, SlotChoice::Last).unwrap();
        let complete = RoleRecord {
            complete: true,
            ..found.record
        };
        let said_once = |what: &str| {
            let said = caveats().unwrap();
            assert!(said.len() == 1 && said[0].contains(what), "{said:?}");
        };
        RoleFile::open(
            Arc::clone(&backing),
            found,
            BootId::from_bytes([1; 16]),
            complete,
        )
        .unwrap();
        said_once("went down");
        let mut synced = found;
        synced.lineage.power.all_synced = true;
        let other_boot = BootId::from_bytes([1; 16]);
        RoleFile::open(Arc::clone(&backing), synced, other_boot, complete).unwrap();
        assert!(caveats().unwrap().is_empty(), "nothing can be missing");
        let file = RoleFile::open(Arc::clone(&backing), found, boot_id(), complete).unwrap();
        said_once("are missing");
        Tables::make(backing.as_ref()).unwrap();
        said_once("are missing");
        open_count(backing.as_ref(), false).unwrap();
        assert!(caveats().unwrap().is_empty());
        file.mark(Generation::FIRST, false).unwrap();
        said_once("marked out of sync");
        std::fs::write(dir.path().join(MARKER_FILE), "{}").unwrap();
        let said = caveats().unwrap();
        assert!(
            said.len() == 2 && said[1].contains("disk of this copy failed"),
            "{said:?}"
        );
        std::fs::write(dir.path().join("role.json"), "{").unwrap();
        assert!(caveats().is_err());
    }
}
