//! Finds a path for each inode that differs.

use std::collections::BTreeSet;

use lockstep_fs::view::paths::paths_of;
use lockstep_fs::{OpError, StoreView};
use lockstep_types::Ino;

use crate::report::Report;

/// Gives each listed difference a path.
pub(crate) fn add_paths(view: &dyn StoreView, report: &mut Report) -> Result<(), OpError> {
    let inos = report.differences.iter();
    let wanted: BTreeSet<Ino> = inos.filter_map(|found| Ino::new(found.ino)).collect();
    let paths = paths_of(view, &wanted)?;
    for difference in &mut report.differences {
        let path = Ino::new(difference.ino).and_then(|ino| paths.get(&ino));
        difference.path = path.map(|path| String::from_utf8_lossy(path).into_owned());
    }
    Ok(())
}
