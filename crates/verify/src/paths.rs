//! Finds a path for each inode that differs.
//!
//! Directories know their parents. For other inodes the entries of all directories are
//! searched, once, and only if an inode differs.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use lockstep_fs::{OpError, Store};
use lockstep_types::Ino;

use crate::report::Report;

/// Deepest directory that gets a path. A deeper directory, or a directory in a circle, gets none.
const DEPTH_MAX: usize = 1000;

/// A directory and a name in the directory.
type ParentAndName = (Ino, String);

/// Gives each listed difference a path.
pub(crate) fn add_paths(store: &Store, report: &mut Report) -> Result<(), OpError> {
    let wanted: BTreeSet<u64> = report.differences.iter().map(|found| found.ino).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let mut places = find(store, &wanted)?;
    for difference in &mut report.differences {
        difference.path = match Ino::new(difference.ino) {
            Some(ino) => path_of(store, ino, &mut places)?,
            None => None,
        };
    }
    Ok(())
}

/// A directory entry of each inode in `wanted`, if there is one.
fn find(store: &Store, wanted: &BTreeSet<u64>) -> Result<HashMap<Ino, ParentAndName>, OpError> {
    let mut places = HashMap::new();
    store.replica().each_entry(&mut |directory, entry| {
        if wanted.contains(&entry.ino.get()) {
            places
                .entry(entry.ino)
                .or_insert_with(|| (directory, text(entry.name.as_bytes())));
        }
        ControlFlow::Continue(())
    })?;
    Ok(places)
}

/// The path of an inode from the root of the datastore.
fn path_of(
    store: &Store,
    ino: Ino,
    places: &mut HashMap<Ino, ParentAndName>,
) -> Result<Option<String>, OpError> {
    let mut names = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT {
        let place = match places.get(&at) {
            Some(place) => Some(place.clone()),
            None => entry_of_directory(store, at)?,
        };
        let Some((above, name)) = place.filter(|_| names.len() < DEPTH_MAX) else {
            return Ok(None);
        };
        names.push(name.clone());
        places.insert(at, (above, name));
        at = above;
    }
    names.reverse();
    Ok(Some(format!("/{}", names.join("/"))))
}

/// The entry of a directory in its parent; `None` for another kind of inode, or without an entry.
fn entry_of_directory(store: &Store, directory: Ino) -> Result<Option<ParentAndName>, OpError> {
    let above = match store.tree().parent(directory) {
        Ok(above) => above,
        Err(OpError::Refused(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut place = None;
    let looked = store.tree().readdir(above, 0, &mut |_, entry| {
        if entry.ino == directory {
            place = Some((above, text(entry.name.as_bytes())));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    match looked {
        Ok(()) | Err(OpError::Refused(_)) => Ok(place),
        Err(error) => Err(error),
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
