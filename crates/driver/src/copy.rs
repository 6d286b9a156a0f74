//! What the store of a stopped node says of its copy: for who takes data out of it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use lockstep_fs::boot::boot_id;
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::poison::Marks;
use lockstep_types::BootId;
use lockstep_types::backing::Backing;
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::settings::Role;

use super::role::{RoleFile, RoleState};
use super::stamp::RuntimeStamp;
use super::tables::{TableError, Tables};

/// What the copy in the directory `store` cannot promise, one text each; none for one that counts. A new
/// one is the `role`'s. Changes nothing.
///
/// # Errors
/// When it cannot be told, as `role.json` cannot be read.
pub fn doubts(store: &Path, role: Role) -> io::Result<Vec<String>> {
    let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(store)?);
    let role = RoleFile::read(backing.as_ref(), role)?;
    let stamp = Arc::new(RuntimeStamp::of(store));
    let failure = Marks::new(Arc::clone(&backing), Some(stamp)).read();
    let is_secondary = role.role == Role::Secondary;
    let incomplete = is_secondary.then(|| incomplete(role, backing.as_ref()));
    let failed = failure.map(|failure| {
        format!(
            "the disk of this copy failed {failure}; what is read here may be older than what was written"
        )
    });
    Ok(incomplete.flatten().into_iter().chain(failed).collect())
}

/// Why a secondary's copy does not count as in sync, as its node would find at its next start (rule P12).
fn incomplete(role: RoleState, backing: &dyn Backing) -> Option<String> {
    if !role.in_sync {
        return Some(
            "this copy is marked out of sync: it may be older than the primary's, or incomplete, as in \
             the middle of a resync"
                .to_owned(),
        );
    }
    match Lost::of(role, backing, boot_id()) {
        Ok(None) => None,
        Ok(Some(lost @ Lost::Power)) => Some(format!(
            "{lost}: what was not on stable storage may be missing from this copy"
        )),
        Ok(Some(lost @ Lost::Tables)) => Some(format!("{lost} from this copy")),
        Err(error) => Some(format!(
            "it cannot be told what was under way in this copy: {error}"
        )),
    }
}

/// Why a copy that is marked in sync does not count as such (rule P12).
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("this machine went down while the store was open")]
    Power,
    #[error("the tables of the writes that were under way are missing")]
    Tables,
}

impl Lost {
    /// What the copy on `backing` has lost, if anything, to a node that starts in the run `boot` of the
    /// machine. Changes nothing.
    pub(super) fn of(
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
    use lockstep_fs::poison::MARK_FILE;

    use super::*;

    #[test]
    fn a_copy_that_may_be_incomplete_or_on_a_failed_disk_is_called_so() {
        let dir = tempfile::tempdir().unwrap();
        let doubts = || doubts(dir.path(), Role::Secondary);
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(dir.path()).unwrap());
        let found = RoleFile::read(backing.as_ref(), Role::Secondary).unwrap();
        let said_once = |what: &str| {
            let said = doubts().unwrap();
            assert!(said.len() == 1 && said[0].contains(what), "{said:?}");
        };
        RoleFile::open(
            Arc::clone(&backing),
            found,
            BootId::from_bytes([1; 16]),
            true,
        )
        .unwrap();
        said_once("went down");
        let file = RoleFile::open(Arc::clone(&backing), found, boot_id(), true).unwrap();
        said_once("are missing");
        Tables::make(backing.as_ref()).unwrap();
        assert!(doubts().unwrap().is_empty());
        file.mark(false).unwrap();
        said_once("marked out of sync");
        std::fs::write(dir.path().join(MARK_FILE), "{}").unwrap();
        let said = doubts().unwrap();
        assert!(
            said.len() == 2 && said[1].contains("disk of this copy failed"),
            "{said:?}"
        );
        std::fs::write(dir.path().join("role.json"), "{").unwrap();
        assert!(doubts().is_err());
    }
}
