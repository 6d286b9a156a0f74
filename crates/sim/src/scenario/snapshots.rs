//! The snapshots of a schedule: an operator makes, renames and deletes some, and the judge compares each with a deep copy.
//!
//! The first sight of a snapshot, on either node, is its deep copy. The judge looks at the stores that the processes would leave if they ended now, and at the end
//! at those of the running nodes. Each later sight on either node must be equal to the copy, unless the node says that
//! a loss of power has torn the snapshot there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_driver::Datastore;
use lockstep_driver::report::SnapshotCommand;
use lockstep_fs::Store;
use lockstep_fs::snapshot_list::SnapshotBytes;
use lockstep_fs::store::SnapshotAccess;
use lockstep_types::{SnapshotId, Timestamp};
use parking_lot::Mutex;

use super::on_disk::dump::dump_of_snapshot;
use crate::check::Dump;
use crate::random::Random;
use crate::world::Side;

/// Number of names, so that some are taken.
const NAMES: u64 = 4;

/// An act of an operator. Numbers stand for names.
#[derive(Clone, Copy, Debug)]
pub enum SnapshotAct {
    /// Makes a snapshot.
    Create(u64),
    /// Gives a snapshot another name.
    Rename(u64, u64),
    /// Deletes a snapshot.
    Delete(u64),
}

impl SnapshotAct {
    /// Draws an act.
    pub fn random(random: &mut Random) -> Self {
        let name = random.below(NAMES);
        match random.below(6) {
            0..=3 => Self::Create(name),
            4 => Self::Rename(name, random.below(NAMES)),
            _ => Self::Delete(name),
        }
    }

    fn command(self) -> SnapshotCommand {
        let text = |name: u64| format!("s{name}");
        match self {
            Self::Create(name) => SnapshotCommand::Create { name: text(name) },
            Self::Rename(name, to) => SnapshotCommand::Rename {
                name: text(name),
                to: text(to),
            },
            Self::Delete(name) => SnapshotCommand::Delete { name: text(name) },
        }
    }
}

/// The knowledge of the snapshots.
#[derive(Default)]
struct Known {
    /// The deep copies.
    copies: BTreeMap<Sight, Dump>,
    /// An act was carried out, or tried.
    has_acted: bool,
    /// Those whose making was acknowledged, and whose deletion nobody has asked for.
    kept: BTreeSet<SnapshotId>,
}

/// What tells one snapshot from all others: its number, and for the one of a node's own copy the node and the moment, as such a
/// number may be given out again.
type Sight = (SnapshotId, Option<(Side, Timestamp)>);

/// The judge of the snapshots.
#[derive(Clone, Default)]
pub struct SnapshotJudge(Arc<Mutex<Known>>);

impl SnapshotJudge {
    /// Carries out an act at a node. Returns whether the node has done it.
    pub fn act(&self, datastore: &Datastore, act: SnapshotAct) -> bool {
        let named = |name: &str| taken(datastore).into_iter().find(|(_, of)| of == name);
        let command = act.command();
        self.0.lock().has_acted = true;
        if let SnapshotCommand::Delete { name } = &command
            && let Some((id, _)) = named(name)
        {
            self.0.lock().kept.remove(&id);
        }
        let is_done = datastore.snapshots(&command).is_ok();
        if is_done
            && let SnapshotCommand::Create { name } = &command
            && let Some((id, _)) = named(name)
        {
            self.0.lock().kept.insert(id);
        }
        is_done
    }

    /// Expects no acknowledged snapshot any more: a node may have lost each of them.
    pub fn forget_kept(&self) {
        self.0.lock().kept.clear();
    }

    /// Returns whether there may be snapshots.
    pub fn has_acted(&self) -> bool {
        self.0.lock().has_acted
    }

    /// Compares what a store shows of its snapshots with the deep copies.
    pub fn look(&self, side: Side, store: &Store) -> Result<(), String> {
        let snapshots = SnapshotAccess::of(store);
        for (id, record) in snapshots.list() {
            let Some(view) = snapshots.view(id) else {
                continue;
            };
            if record.bytes == SnapshotBytes::Torn {
                continue;
            }
            let shown = dump_of_snapshot(&view)?;
            let mut known = self.0.lock();
            let own = id.is_local().then_some((side, record.time));
            let copy = known.copies.entry((id, own));
            let copy = copy.or_insert_with(|| shown.clone());
            if *copy != shown {
                return Err(format!(
                    "snapshot: {side:?} shows {id} otherwise than it was: {}",
                    difference(copy, &shown)
                ));
            }
        }
        Ok(())
    }

    /// Checks the snapshots of two nodes that are in sync and idle.
    pub fn check_at_end(&self, nodes: [(Side, &Datastore); 2]) -> Result<(), String> {
        for (side, datastore) in nodes {
            self.look(side, datastore.store())?;
        }
        let [ours, theirs] = nodes.map(|(_, datastore)| taken(datastore));
        if ours != theirs {
            return Err(format!(
                "snapshot: the lists differ: {ours:?} and {theirs:?}"
            ));
        }
        let known = self.0.lock();
        let is_there = |id: &&SnapshotId| ours.iter().any(|(of, _)| of == *id);
        match known.kept.iter().find(|id| !is_there(id)) {
            Some(lost) => Err(format!("snapshot: {lost} was acknowledged, and is gone")),
            None => Ok(()),
        }
    }
}

/// The snapshots of the datastore, as a node has them.
fn taken(datastore: &Datastore) -> Vec<(SnapshotId, String)> {
    let snapshots = datastore.store().image().snapshots().into_iter();
    snapshots.map(|(id, record)| (id, record.name)).collect()
}

/// The first inode that differs.
fn difference(copy: &Dump, shown: &Dump) -> String {
    let mut inos = copy.inodes.keys().chain(shown.inodes.keys());
    let differing = inos.find(|ino| copy.inodes.get(ino) != shown.inodes.get(ino));
    let Some(ino) = differing else {
        return "nothing".to_owned();
    };
    let size = |dump: &Dump| dump.inodes.get(ino).map(|inode| (inode.size, inode.mtime));
    format!(
        "#{ino}, size and time {:?} and {:?}",
        size(copy),
        size(shown)
    )
}
