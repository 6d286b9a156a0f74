//! The paths of many directories, for a reader of the namespace that goes from entry to entry.
//!
//! The record of a directory has the place of its name. Where it has none, the entries of the parent are read, once for all wanted
//! directories in it. The paths found are kept, up to a bound.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

use lockstep_types::Ino;

use super::StoreView;
use super::named_place::name_at_place;
use crate::error::OpError;
use crate::namespace::keys;
use crate::namespace::record::{self, EntryRecord};

/// Deepest directory that gets a path. No store has a deeper one that is not damaged.
const DEPTH_MAX: usize = 1 << 20;
/// Most paths that are kept from one call to the next.
const KEPT_MAX: usize = 16 << 10;

/// Paths from the root of the datastore, without a slash at either end; that of the root is empty.
#[derive(Default)]
pub struct DirectoryPaths {
    known: HashMap<Ino, Vec<u8>>,
}

impl DirectoryPaths {
    /// Finds the paths of these directories, as far as they have one. All of them are known until the next call.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn find(&mut self, view: &dyn StoreView, wanted: &BTreeSet<Ino>) -> Result<(), OpError> {
        if self.known.len() > KEPT_MAX {
            self.known.clear();
        }
        self.known.insert(Ino::ROOT, Vec::new());
        let parents = self.parents_of(view, wanted)?;
        let mut children: BTreeMap<Ino, BTreeSet<Ino>> = BTreeMap::new();
        let mut names = HashMap::new();
        for (directory, parent) in &parents {
            match name_at_place(view, *directory)? {
                Some((above, name)) if above == *parent => drop(names.insert(*directory, name)),
                _ => drop(children.entry(*parent).or_default().insert(*directory)),
            }
        }
        for (parent, wanted) in &children {
            find_names(view, *parent, wanted, &mut names)?;
        }
        for directory in wanted {
            self.build(*directory, &parents, &names);
        }
        Ok(())
    }

    /// The path of a directory that [`Self::find`] has looked for; `None` if it is not in the tree any more.
    pub fn of(&self, directory: Ino) -> Option<&[u8]> {
        self.known.get(&directory).map(Vec::as_slice)
    }

    /// The parents of the directories whose paths are not known, up to one whose path is.
    fn parents_of(
        &self,
        view: &dyn StoreView,
        wanted: &BTreeSet<Ino>,
    ) -> Result<HashMap<Ino, Ino>, OpError> {
        let mut parents = HashMap::new();
        for directory in wanted {
            let mut at = *directory;
            for _ in 0..DEPTH_MAX {
                if self.known.contains_key(&at) || parents.contains_key(&at) {
                    break;
                }
                let Some(parent) = parent_of(view, at)? else {
                    break;
                };
                parents.insert(at, parent);
                at = parent;
            }
        }
        Ok(parents)
    }

    fn build(
        &mut self,
        directory: Ino,
        parents: &HashMap<Ino, Ino>,
        names: &HashMap<Ino, Vec<u8>>,
    ) {
        let mut chain = Vec::new();
        let mut at = directory;
        while !self.known.contains_key(&at) {
            let place = parents.get(&at).zip(names.get(&at));
            let Some((parent, name)) = place.filter(|_| chain.len() < DEPTH_MAX) else {
                return;
            };
            chain.push((at, name));
            at = *parent;
        }
        let mut path = self.known.get(&at).cloned().unwrap_or_default();
        for (ino, name) in chain.into_iter().rev() {
            path = join(&path, name);
            self.known.insert(ino, path.clone());
        }
    }
}

/// The path of an entry of a directory.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        return name.to_vec();
    }
    [directory, b"/", name].concat()
}

/// The directory above; `None` if there is no such directory.
pub fn parent_of(view: &dyn StoreView, directory: Ino) -> Result<Option<Ino>, OpError> {
    match view.parent(directory) {
        Ok(parent) => Ok(Some(parent)),
        Err(OpError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Finds the names of these directories in their parent.
fn find_names(
    view: &dyn StoreView,
    parent: Ino,
    wanted: &BTreeSet<Ino>,
    names: &mut HashMap<Ino, Vec<u8>>,
) -> Result<(), OpError> {
    let mut left = wanted.len();
    view.scan(&keys::of_ino(keys::ENTRIES, parent), &mut |key, value| {
        let entry: Option<EntryRecord> = record::decode(value);
        if let Some(entry) = entry.filter(|entry| wanted.contains(&entry.ino)) {
            names.insert(entry.ino, keys::rest_of(key).to_vec());
            left -= 1;
        }
        if left == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}
