//! Finding a path for inodes that differ.
//!
//! Directories know what is above them; for everything else the entries of all directories are
//! searched, once, and only when something differs.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use lockstep_fs::{OpError, Store};
use lockstep_types::Ino;

use crate::report::Report;

/// Deepest directory whose path is given; deeper, or in a circle, none is.
const DEPTH_MAX: usize = 1000;

/// A directory and a name in it.
type Place = (Ino, String);

/// Gives each listed difference a path.
pub(crate) fn name(store: &Store, report: &mut Report) -> Result<(), OpError> {
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

/// A place of each inode in `wanted` that has one.
fn find(store: &Store, wanted: &BTreeSet<u64>) -> Result<HashMap<Ino, Place>, OpError> {
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
    places: &mut HashMap<Ino, Place>,
) -> Result<Option<String>, OpError> {
    let mut names = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT {
        let place = match places.get(&at) {
            Some(place) => Some(place.clone()),
            None => place_of_directory(store, at)?,
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

/// The place of a directory; `None` for what is none, or has none.
fn place_of_directory(store: &Store, directory: Ino) -> Result<Option<Place>, OpError> {
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
