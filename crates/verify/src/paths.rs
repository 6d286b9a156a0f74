//! Finds a path for each inode that differs.

use std::collections::BTreeSet;

use lockstep_fs::{OpError, Store};
use lockstep_types::Ino;

use crate::report::Report;

/// Gives each listed difference a path.
pub(crate) fn add_paths(store: &Store, report: &mut Report) -> Result<(), OpError> {
    let inos = report.differences.iter();
    let wanted: BTreeSet<Ino> = inos.filter_map(|found| Ino::new(found.ino)).collect();
    let paths = store.paths_of(&wanted)?;
    for difference in &mut report.differences {
        let path = Ino::new(difference.ino).and_then(|ino| paths.get(&ino));
        difference.path = path.map(|path| String::from_utf8_lossy(path).into_owned());
    }
    Ok(())
}
