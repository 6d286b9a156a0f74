//! The paths of inodes.
//!
//! The record of an inode has the place of its last name. Where that is unknown, directories know their parents, and for other inodes the
//! entries of all directories are searched, once for all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

use lockstep_types::Ino;

use super::StoreView;
use super::named_place::{ParentAndName, name_at_place};
use crate::error::OpError;

/// Deepest directory that gets a path. A deeper directory, or a directory in a circle, gets none.
const DEPTH_MAX: usize = 1000;

/// A path from the root of the datastore for each inode of `wanted` that has one. A file with several names gets one of
/// them.
pub fn paths_of(
    view: &dyn StoreView,
    wanted: &BTreeSet<Ino>,
) -> Result<BTreeMap<Ino, Vec<u8>>, OpError> {
    let mut paths = BTreeMap::new();
    if wanted.is_empty() {
        return Ok(paths);
    }
    let mut places = names_of(view, wanted)?;
    for &ino in wanted {
        if let Some(path) = path_of(view, ino, &mut places)? {
            paths.insert(ino, path);
        }
    }
    Ok(paths)
}

/// A name of each inode in `wanted`, if there is one. Each one that is not known by its place costs a search, and the files among them together cost one
/// search of all names.
pub fn names_of(
    view: &dyn StoreView,
    wanted: &BTreeSet<Ino>,
) -> Result<HashMap<Ino, ParentAndName>, OpError> {
    let (mut names, mut left) = (HashMap::new(), BTreeSet::new());
    for ino in wanted {
        match known_name(view, *ino)? {
            Some(found) => drop(names.insert(*ino, found)),
            None => drop(left.insert(*ino)),
        }
    }
    if left.is_empty() {
        return Ok(names);
    }
    view.each_entry(&mut |directory, entry| {
        if left.remove(&entry.ino) {
            names.insert(entry.ino, (directory, entry.name.as_bytes().to_vec()));
        }
        if left.is_empty() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    Ok(names)
}

/// A name of an inode that is found by its record, or by that of its parent.
fn known_name(view: &dyn StoreView, ino: Ino) -> Result<Option<ParentAndName>, OpError> {
    match name_at_place(view, ino)? {
        Some(found) => Ok(Some(found)),
        None => entry_of_directory(view, ino),
    }
}

/// The path of an inode from the root of the datastore.
fn path_of(
    view: &dyn StoreView,
    ino: Ino,
    places: &mut HashMap<Ino, ParentAndName>,
) -> Result<Option<Vec<u8>>, OpError> {
    let mut names = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT {
        let place = match places.get(&at) {
            Some(place) => Some(place.clone()),
            None => known_name(view, at)?,
        };
        let Some((above, name)) = place.filter(|_| names.len() < DEPTH_MAX) else {
            return Ok(None);
        };
        names.push(name.clone());
        places.insert(at, (above, name));
        at = above;
    }
    names.push(Vec::new());
    names.reverse();
    let path = names.join(&b'/');
    Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }))
}

/// The entry of a directory in its parent; `None` for another kind of inode, or without an entry.
fn entry_of_directory(
    view: &dyn StoreView,
    directory: Ino,
) -> Result<Option<ParentAndName>, OpError> {
    let above = match view.parent(directory) {
        Ok(above) => above,
        Err(OpError::Refused(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut place = None;
    let looked = view.readdir(above, 0, &mut |_, entry| {
        if entry.ino == directory {
            place = Some((above, entry.name.as_bytes().to_vec()));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    match looked {
        Ok(()) | Err(OpError::Refused(_)) => Ok(place),
        Err(error) => Err(error),
    }
}
