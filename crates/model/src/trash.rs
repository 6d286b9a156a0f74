//! The trash: inodes without a name that keep the place of their last one.

use lockstep_types::{Errno, FileName, Ino, NameRemoval, Timestamp};

use crate::{Done, Effect, Model};

impl Model {
    /// Does a removal at `time`. An inode that loses its last name goes into the trash.
    pub(crate) fn remove_into_trash(
        &mut self,
        time: Timestamp,
        removal: &NameRemoval,
    ) -> Done<Effect> {
        let place = match removal {
            NameRemoval::Unlink { parent, name } | NameRemoval::Rmdir { parent, name } => {
                (*parent, name)
            }
            NameRemoval::Rename {
                new_parent,
                new_name,
                ..
            } => (*new_parent, new_name),
        };
        let effect = self.apply(time, &removal.request())?;
        if let Some(ino) = effect.orphaned {
            self.node_mut(ino).trashed = Some((place.0, place.1.clone(), time));
        }
        Ok(Effect {
            orphaned: None,
            ..effect
        })
    }

    /// Gives an inode of the trash a name.
    pub(crate) fn restore(&mut self, ino: Ino, to: (Ino, &FileName)) -> Done<Ino> {
        if self.node(ino)?.trashed.is_none() {
            return Err(Errno::NoData);
        }
        self.check_free(to)?;
        self.check_mutable(to.0)?;
        self.node_mut(ino).trashed = None;
        self.put(to, ino);
        self.changed(ino);
        Ok(ino)
    }

    /// Takes those of `inos` out of the trash that are in it.
    pub(crate) fn drop_from_trash(&mut self, inos: &[Ino]) {
        for ino in inos {
            if let Some(node) = self.nodes.get_mut(ino) {
                node.trashed = None;
            }
        }
    }
}
