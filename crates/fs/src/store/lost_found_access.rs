//! The lost+found of a store, for a driver and for a resync.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use lockstep_types::{Generation, Ino, Osn};

use super::facade::Store;
use crate::error::{OpError, StoreError};
use crate::lost_found::{LostFound, OwnBytes, PreservedTotals};
use crate::metadata_log::{Intents, MetadataLog};
use crate::text::escaped;
use crate::tree::Tree;
use crate::view::paths::paths_of;

/// The data that a resync sets aside of one store.
#[derive(Clone, Copy)]
pub struct LostFoundAccess<'a> {
    lost_found: &'a LostFound,
    log: &'a MetadataLog,
    tree: Tree<'a>,
}

impl Store {
    /// The data that a resync sets aside.
    pub fn lost_found(&self) -> LostFoundAccess<'_> {
        LostFoundAccess {
            lost_found: &self.lost_found,
            log: &self.metadata_log,
            tree: self.tree(),
        }
    }
}

/// For the driver.
impl LostFoundAccess<'_> {
    /// A resync begins of a copy whose node was deposed in `generation`: the bytes that the resync overwrites are set
    /// aside from now on. `own`: this node had nothing alone but these bytes.
    pub fn begin(self, generation: Generation, own: Option<OwnBytes>) {
        self.lost_found.begin(self.tree.disk(), generation, own);
    }

    /// The namespace and the content are equal: completes the list by the paths of the inodes in it.
    pub fn complete(self) -> Result<(), OpError> {
        let lost_found = self.lost_found;
        let failed = |error: io::Error| StoreError::disk("complete", "list.txt")(error);
        let wanted: BTreeSet<Ino> = lost_found
            .without_path()
            .map_err(failed)?
            .into_iter()
            .collect();
        let paths = paths_of(&self.tree, &wanted)?;
        if !paths.is_empty() {
            let shown: BTreeMap<Ino, String> = paths
                .iter()
                .map(|(ino, path)| (*ino, escaped(path)))
                .collect();
            lost_found.add_paths(&shown).map_err(failed)?;
        }
        Ok(())
    }

    /// Sets nothing aside from now on.
    pub fn end(self) {
        self.lost_found.end();
    }

    /// Whether a resync sets aside what it overwrites.
    pub fn is_preserving(self) -> bool {
        self.lost_found.is_preserving()
    }

    /// The generation for which a resync sets aside what it overwrites, if one does.
    pub fn generation(self) -> Option<Generation> {
        self.lost_found.generation()
    }

    /// Whether a mirrored write has to set something aside, which takes calls of the disk.
    pub fn preserves(self, ino: Ino, offset: u64, length: u64) -> bool {
        let bytes = offset..offset.saturating_add(length);
        self.lost_found.is_unsettled(ino, &bytes)
    }

    /// Lists operations in doubt that a deposed node is about to drop.
    pub fn note_dropped(self, generation: Generation, osn: Osn) {
        let operation = Intents::new(self.log, self.tree).get(osn).map(|(op, _)| op);
        let text = operation.map_or_else(String::new, |op| format!(": {:?}", op.request));
        let shown = escaped(format!("operation {osn}{text}").as_bytes());
        LostFound::note_dropped(self.tree.disk(), generation, &shown);
    }

    /// The kept data, by generation, as of the last [`Self::refresh`]. Asks no disk.
    pub fn totals(self) -> Vec<(Generation, PreservedTotals)> {
        self.lost_found.totals()
    }

    /// Looks for the kept data. An operator may have removed some of it.
    pub fn refresh(self) -> Result<(), StoreError> {
        self.lost_found.refresh(self.tree.disk())
    }
}

/// For a resync.
impl LostFoundAccess<'_> {
    /// The secondary has taken over size and times of a file. `differs`: the bytes before `size` are compared next.
    pub fn file_begun(self, ino: Ino, size: u64, differs: bool) {
        self.lost_found.file_begun(ino, size, differs);
    }

    /// The bytes of a file before `end` are equal on both nodes, or are being made equal.
    pub fn compared(self, ino: Ino, end: u64) {
        self.lost_found.compared(ino, end);
    }

    /// Removes what is kept of the present resync from a full disk. Returns whether there was anything.
    pub fn give_room_back(self) -> bool {
        self.lost_found.give_room_back()
    }
}
