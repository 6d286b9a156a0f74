//! The fates of inodes between two moments: each one is there at one of them or at both, under a name.

use std::collections::{BTreeSet, HashMap};

use lockstep_types::Ino;

use super::sides::Sides;
use crate::error::{OpError, StoreError};
use crate::namespace::record::Inode;
use crate::view::StoreView;
use crate::view::named_place::ParentAndName;
use crate::view::paths::names_of;

/// An inode at one moment.
pub struct Then {
    /// Its record.
    pub inode: Inode,
    /// One of its names; `None` for the root.
    pub name: Option<ParentAndName>,
}

/// An inode at both moments.
pub struct Fate {
    /// The older moment; `None` if there was no such inode, or no name of it.
    pub old: Option<Then>,
    /// The newer moment.
    pub new: Option<Then>,
    /// Both are the same inode.
    pub is_same: bool,
}

impl Fate {
    /// Whether the inode is there at both moments, with different names.
    pub fn is_moved(&self) -> bool {
        let names = self.old.as_ref().zip(self.new.as_ref());
        self.is_same && names.is_some_and(|(old, new)| old.name != new.name)
    }

    /// Whether the entry of the inode tells of a name that the inode has lost or got.
    pub fn tells(&self, then: Option<&Then>, name: &ParentAndName) -> bool {
        let is_told = !self.is_same || self.is_moved();
        is_told && then.is_some_and(|then| then.name.as_ref() == Some(name))
    }
}

/// The fates of some inodes.
pub struct Fates(HashMap<Ino, Fate>);

impl Fates {
    /// Looks these inodes up.
    pub fn of(sides: &Sides<'_>, inos: &BTreeSet<Ino>) -> Result<Self, OpError> {
        let (mut old, mut new) = (HashMap::new(), HashMap::new());
        for ino in inos {
            old.extend(sides.inode_then(*ino)?.map(|inode| (*ino, inode)));
            new.extend(sides.inode_now(*ino)?.map(|inode| (*ino, inode)));
        }
        let old_names = find_names(&sides.from, &old, true)?;
        let new_names = find_names(&*sides.to, &new, sides.to_id.is_some())?;
        let mut fates = HashMap::new();
        for ino in inos {
            let old = then(*ino, &mut old, &old_names);
            let new = then(*ino, &mut new, &new_names);
            fates.insert(*ino, fate(sides, *ino, old, new)?);
        }
        Ok(Self(fates))
    }

    /// The fate of one of them.
    pub fn get(&self, ino: Ino) -> Option<&Fate> {
        self.0.get(&ino)
    }
}

/// The names of inodes that have one. In a snapshot none is missing.
fn find_names(
    view: &dyn StoreView,
    inodes: &HashMap<Ino, Inode>,
    is_snapshot: bool,
) -> Result<HashMap<Ino, ParentAndName>, OpError> {
    let wanted: BTreeSet<Ino> = inodes
        .keys()
        .copied()
        .filter(|it| *it != Ino::ROOT)
        .collect();
    let names = names_of(view, &wanted)?;
    if let Some(missing) = wanted.iter().find(|ino| !names.contains_key(*ino))
        && is_snapshot
    {
        return Err(StoreError::Damaged {
            what: format!("inode {missing} has no name in a snapshot that counts one"),
        }
        .into());
    }
    Ok(names)
}

/// An inode of the present whose name is not found has lost it meanwhile.
fn then(
    ino: Ino,
    inodes: &mut HashMap<Ino, Inode>,
    names: &HashMap<Ino, ParentAndName>,
) -> Option<Then> {
    let inode = inodes.remove(&ino)?;
    let name = names.get(&ino).cloned();
    let is_there = ino == Ino::ROOT || name.is_some();
    is_there.then_some(Then { inode, name })
}

fn fate(
    sides: &Sides<'_>,
    ino: Ino,
    old: Option<Then>,
    new: Option<Then>,
) -> Result<Fate, OpError> {
    let (mut old, mut new) = (old, new);
    let mut is_same = false;
    if let (Some(old), Some(new)) = (&mut old, &mut new) {
        is_same = !sides.is_replaced(ino, &old.inode, &new.inode)?;
        if is_same {
            choose_name(sides, ino, old, new)?;
        }
    }
    Ok(Fate { old, new, is_same })
}

/// Chooses a name that the inode has at both moments, if one of the two names is such a one.
fn choose_name(sides: &Sides<'_>, ino: Ino, old: &mut Then, new: &mut Then) -> Result<(), OpError> {
    let (Some(before), Some(now)) = (&old.name, &new.name) else {
        return Ok(());
    };
    if before == now {
        return Ok(());
    }
    let stayed = sides.new_entry(before.0, &before.1)?;
    if stayed.is_some_and(|entry| entry.ino == ino) {
        new.name = Some(before.clone());
        return Ok(());
    }
    let was_here = sides.old_entry(now.0, &now.1)?;
    if was_here.is_some_and(|entry| entry.ino == ino) {
        old.name = Some(now.clone());
    }
    Ok(())
}
