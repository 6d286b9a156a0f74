//! The files in the lost+found of a store: which generations there are, and how much they hold.

use std::io;

use lockstep_types::Generation;
use lockstep_types::backing::Backing;

use crate::error::StoreError;
use crate::paths::{LOST_FOUND_DIR, lost_found_dir};
use crate::store_disk::StoreDisk;

/// Files and bytes that are preserved of one generation, without the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreservedTotals {
    /// Files.
    pub files: u64,
    /// Bytes of data in them.
    pub bytes: u64,
}

impl PreservedTotals {
    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            files: self.files.saturating_add(other.files),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// The generations of which something is preserved.
pub fn generations(disk: &StoreDisk) -> Result<Vec<Generation>, StoreError> {
    let names = disk.list(LOST_FOUND_DIR)?;
    let numbers = names.iter().filter_map(|name| name.parse().ok());
    Ok(numbers.filter_map(Generation::new).collect())
}

/// Counts what is preserved of a generation.
pub fn count(disk: &StoreDisk, generation: Generation) -> Result<PreservedTotals, StoreError> {
    let mut totals = PreservedTotals::default();
    let directory = format!("{}/content", lost_found_dir(generation));
    let counted = each_file(&**disk.backing(), &directory, &mut |backing, path| {
        // An operator may remove files meanwhile.
        if let Ok(stat) = backing.stat(path) {
            totals = totals.plus(PreservedTotals {
                files: 1,
                bytes: stat.blocks.saturating_mul(512),
            });
        }
        Ok(())
    });
    counted.map_err(StoreError::disk("count the files in", directory))?;
    Ok(totals)
}

/// Removes all files in a directory of preserved content, as far as possible. Returns what was removed.
pub fn remove_all(backing: &dyn Backing, directory: &str) -> PreservedTotals {
    let mut removed = PreservedTotals::default();
    let done = each_file(backing, directory, &mut |backing, path| {
        let stat = backing.stat(path)?;
        backing.remove(path)?;
        removed = removed.plus(PreservedTotals {
            files: 1,
            bytes: stat.blocks.saturating_mul(512),
        });
        Ok(())
    });
    if let Err(error) = done {
        tracing::warn!(%error, directory, "preserved content stays");
    }
    removed
}

/// Calls `each` with the path of each file of content.
fn each_file(
    backing: &dyn Backing,
    directory: &str,
    each: &mut dyn FnMut(&dyn Backing, &str) -> io::Result<()>,
) -> io::Result<()> {
    for above in backing.list(directory)? {
        for name in backing.list(&format!("{directory}/{above}"))? {
            each(backing, &format!("{directory}/{above}/{name}"))?;
        }
    }
    Ok(())
}
