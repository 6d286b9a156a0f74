//! The snapshots of a schedule: an operator makes, renames, deletes and holds some, and the judge compares each with a deep copy.
//!
//! The first sight of a snapshot, on either node, is its deep copy. The judge looks at the stores that the processes would leave if they ended now, and at the end
//! at those of the running nodes. Each later sight on either node must be equal to the copy, unless the node says that
//! a loss of power has torn the snapshot there.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_driver::Datastore;
use lockstep_driver::report::SnapshotCommand;
use lockstep_fs::Store;
use lockstep_fs::snapshot_list::SnapshotBytes;
use lockstep_fs::store::SnapshotAccess;
use lockstep_types::{SnapshotId, SnapshotKind, Timestamp};
use parking_lot::Mutex;

use super::on_disk::dump::dump_of_snapshot;
use crate::check::Dump;
use crate::random::Random;
use crate::world::Side;

/// Number of names, so that some are taken.
const NAMES: u64 = 4;
/// Number of names of holds.
const HOLDS: u64 = 2;

/// An act of an operator. Numbers stand for names.
#[derive(Clone, Copy, Debug)]
pub enum SnapshotAct {
    /// Makes a snapshot.
    Create(u64),
    /// Gives a snapshot another name.
    Rename(u64, u64),
    /// Deletes a snapshot.
    Delete(u64),
    /// Puts a hold on a snapshot.
    Hold(u64, u64),
    /// Takes a hold off a snapshot.
    Release(u64, u64),
}

impl SnapshotAct {
    /// Draws an act.
    pub fn random(random: &mut Random) -> Self {
        let name = random.below(NAMES);
        match random.below(10) {
            0..=4 => Self::Create(name),
            5 => Self::Rename(name, random.below(NAMES)),
            6..=7 => Self::Delete(name),
            8 => Self::Hold(name, random.below(HOLDS)),
            _ => Self::Release(name, random.below(HOLDS)),
        }
    }

    /// The name of the snapshot that the act is about.
    fn name(self) -> String {
        let (Self::Create(name)
        | Self::Rename(name, _)
        | Self::Delete(name)
        | Self::Hold(name, _)
        | Self::Release(name, _)) = self;
        format!("s{name}")
    }

    fn command(self) -> SnapshotCommand {
        let text = |name: u64| format!("s{name}");
        let hold_text = |hold: u64| format!("h{hold}");
        match self {
            Self::Create(name) => SnapshotCommand::Create {
                name: text(name),
                hooks: true,
            },
            Self::Rename(name, to) => SnapshotCommand::Rename {
                name: text(name),
                to: text(to),
            },
            Self::Delete(name) => SnapshotCommand::Delete { name: text(name) },
            Self::Hold(name, hold) => SnapshotCommand::Hold {
                name: text(name),
                hold: hold_text(hold),
            },
            Self::Release(name, hold) => SnapshotCommand::Release {
                name: text(name),
                hold: hold_text(hold),
            },
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
    /// Those whose making was acknowledged, and whose deletion no operator has asked for while no hold kept them.
    kept: BTreeSet<SnapshotId>,
    /// Counts the moments from which on no snapshot made before is expected any more.
    losses: u64,
    /// Holds that were acknowledged, and whose release no operator has asked for.
    held: BTreeSet<(SnapshotId, String)>,
    /// Holds that an operator has asked for without an answer so far, while no operator has asked for the release.
    holding: BTreeSet<(SnapshotId, String)>,
    /// Deletions and releases that an operator has asked for without an answer so far.
    under_way: BTreeMap<(SnapshotId, Option<String>), usize>,
}

impl Known {
    /// Notes that an operator gives a command about a snapshot.
    fn begin(&mut self, id: SnapshotId, command: &SnapshotCommand) {
        match command {
            SnapshotCommand::Delete { .. } => {
                *self.under_way.entry((id, None)).or_default() += 1;
                if !self.held.iter().any(|(held, _)| *held == id) {
                    self.kept.remove(&id);
                }
            }
            SnapshotCommand::Hold { hold, .. } => {
                self.holding.insert((id, hold.clone()));
            }
            SnapshotCommand::Release { hold, .. } => {
                let of_hold = (id, hold.clone());
                self.held.remove(&of_hold);
                self.holding.remove(&of_hold);
                let release = (id, Some(hold.clone()));
                *self.under_way.entry(release).or_default() += 1;
                if self.under_way.contains_key(&(id, None)) {
                    // The deletion may come after the release.
                    self.kept.remove(&id);
                }
            }
            _ => {}
        }
    }

    /// Notes the answer to a command about a snapshot, which an operator has given after `losses` losses.
    fn end(&mut self, id: SnapshotId, command: &SnapshotCommand, is_done: bool, losses: u64) {
        match command {
            SnapshotCommand::Create { .. } if is_done && losses == self.losses => {
                self.kept.insert(id);
            }
            SnapshotCommand::Delete { .. } => self.end_under_way((id, None)),
            SnapshotCommand::Hold { hold, .. } => {
                let of_hold = (id, hold.clone());
                let is_certain = self.holding.remove(&of_hold);
                let is_releasing = self.under_way.contains_key(&(id, Some(hold.clone())));
                if is_done && is_certain && !is_releasing {
                    self.held.insert(of_hold);
                }
            }
            SnapshotCommand::Release { hold, .. } => {
                self.holding.remove(&(id, hold.clone()));
                self.end_under_way((id, Some(hold.clone())));
            }
            _ => {}
        }
    }

    fn end_under_way(&mut self, what: (SnapshotId, Option<String>)) {
        if let Entry::Occupied(mut count) = self.under_way.entry(what) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
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
        let named = |name: &str| {
            let mut all = taken(datastore).into_iter();
            all.find(|(_, record)| record.name == name)
                .map(|(id, _)| id)
        };
        let command = act.command();
        let before = named(&act.name());
        let losses = {
            let mut known = self.0.lock();
            known.has_acted = true;
            if let Some(id) = before {
                known.begin(id, &command);
            }
            known.losses
        };
        let is_done = datastore.snapshots(&command).is_ok();
        let is_new = matches!(command, SnapshotCommand::Create { .. });
        let about = if is_new { named(&act.name()) } else { before };
        if let Some(id) = about {
            self.0.lock().end(id, &command, is_done, losses);
        }
        is_done
    }

    /// Expects no snapshot or hold any more that an operator has asked for before: a node may have lost each of them.
    pub fn forget_kept(&self) {
        let mut known = self.0.lock();
        known.losses += 1;
        known.kept.clear();
        known.held.clear();
        known.holding.clear();
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
        let record = |id: &SnapshotId| ours.iter().find(|(of, _)| of == id).map(|it| &it.1);
        if let Some(lost) = known.kept.iter().find(|id| record(id).is_none()) {
            return Err(format!("snapshot: {lost} was acknowledged, and is gone"));
        }
        let has_hold = |record: &Shared, hold: &str| record.holds.iter().any(|it| it == hold);
        let lost = known.held.iter().find(|(id, hold)| {
            let listed = record(id);
            listed.is_some_and(|record| !has_hold(record, hold))
        });
        match lost {
            Some((id, hold)) => Err(format!("snapshot: the hold {hold} on {id} is gone")),
            None => Ok(()),
        }
    }
}

/// The part of a snapshot's record that both nodes have alike.
#[derive(Debug, PartialEq, Eq)]
struct Shared {
    name: String,
    kind: SnapshotKind,
    holds: Vec<String>,
}

/// The snapshots of the datastore, as a node has them.
fn taken(datastore: &Datastore) -> Vec<(SnapshotId, Shared)> {
    let snapshots = datastore.store().image().snapshots().into_iter();
    let shared = snapshots.map(|(id, record)| {
        let shared = Shared {
            name: record.name,
            kind: record.kind,
            holds: record.holds.iter().map(ToString::to_string).collect(),
        };
        (id, shared)
    });
    shared.collect()
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
