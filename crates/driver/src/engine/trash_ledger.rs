//! The knowledge of a primary about its trash: the inodes in it, in the order in which they went there, with their bytes (rule P38).
//!
//! The marks in the store are the truth. The ledger follows them: an operation that moves an inode into the trash or out of it notes the inode, and a look
//! of the primary (`jobs/trash/keeper.rs`) reads its mark again. A new session of a primary reads all marks anew.

use std::collections::{BTreeMap, HashMap};
use std::mem;

use lockstep_types::limits::{REAPED_MAX, TRASH_INODES_MAX};
use lockstep_types::{Ino, Osn};
use parking_lot::Mutex;

/// A moment of an inode in the trash is later than the clock by more than this only if a clock was wrong. Then the moment says nothing.
const CLOCK_ERROR: i64 = 24 * 60 * 60;

/// Most noted inodes. With more, all marks are read anew.
const NOTED_MAX: usize = TRASH_INODES_MAX;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct TrashLedger {
    known: Mutex<KnownTrash>,
    noted: Mutex<NotedTrash>,
}

/// The events of the trash since the last look.
#[derive(Debug, Default)]
pub(crate) struct NotedTrash {
    /// All marks are to be read.
    pub all: bool,
    /// Inodes may have left the trash that nothing frees.
    pub orphans: bool,
    /// Inodes whose marks have changed.
    pub inos: Vec<Ino>,
}

/// An inode in the trash, as the ledger has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrashedInode {
    /// The operation that took its last name away.
    pub osn: Osn,
    /// The time of that operation.
    pub secs: i64,
    /// The bytes of its content on the disk of this node.
    pub bytes: u64,
}

/// Limits of the trash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrashLimits {
    /// An inode stays for so many seconds.
    pub age_secs: i64,
    /// Most bytes.
    pub bytes: u64,
    /// Most inodes.
    pub inodes: usize,
}

/// The extent of the trash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrashUsage {
    /// Inodes.
    pub inodes: u64,
    /// Bytes of their contents on the disk of this node.
    pub bytes: u64,
    /// The time of the oldest one.
    pub oldest_secs: Option<i64>,
}

#[derive(Default)]
struct KnownTrash {
    /// All marks were read in this session.
    is_complete: bool,
    by_age: BTreeMap<(Osn, Ino), (i64, u64)>,
    osns: HashMap<Ino, Osn>,
    bytes: u64,
}

impl KnownTrash {
    fn put(&mut self, ino: Ino, found: Option<TrashedInode>) {
        if let Some(osn) = self.osns.remove(&ino)
            && let Some((_, bytes)) = self.by_age.remove(&(osn, ino))
        {
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        if let Some(TrashedInode { osn, secs, bytes }) = found {
            self.osns.insert(ino, osn);
            self.by_age.insert((osn, ino), (secs, bytes));
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }
}

impl TrashLedger {
    /// A session of a primary begins: all marks are to be read.
    pub fn begin_session(&self) {
        *self.known.lock() = KnownTrash::default();
        *self.noted.lock() = NotedTrash {
            all: true,
            ..NotedTrash::default()
        };
    }

    /// Notes that an operation has moved an inode into the trash or out of it.
    pub fn note(&self, ino: Ino) {
        let mut noted = self.noted.lock();
        if noted.inos.len() < NOTED_MAX {
            noted.inos.push(ino);
        } else {
            noted.all = true;
            noted.inos.clear();
        }
    }

    /// Notes that inodes may have left the trash by an operation of an earlier process: nothing has asked for their freeing.
    pub fn note_orphans(&self) {
        let mut noted = self.noted.lock();
        noted.all = true;
        noted.orphans = true;
    }

    /// Takes what was noted.
    pub fn take_noted(&self) -> NotedTrash {
        mem::take(&mut self.noted.lock())
    }

    /// Whether anything was noted.
    pub fn has_noted(&self) -> bool {
        let noted = self.noted.lock();
        noted.all || noted.orphans || !noted.inos.is_empty()
    }

    /// The marks of the store are about to be read, all of them.
    pub fn begin_reading(&self) {
        *self.known.lock() = KnownTrash::default();
    }

    /// All marks were read.
    pub fn end_reading(&self) {
        self.known.lock().is_complete = true;
    }

    /// Notes what the store says of an inode: `None` if it is not in the trash.
    pub fn put(&self, ino: Ino, found: Option<TrashedInode>) {
        self.known.lock().put(ino, found);
    }

    /// Whether nothing is in the trash, or may be.
    pub fn is_empty(&self) -> bool {
        let known = self.known.lock();
        known.is_complete && known.by_age.is_empty() && !self.has_noted()
    }

    /// The extent of the trash; `None` before all marks were read.
    pub fn usage(&self) -> Option<TrashUsage> {
        let known = self.known.lock();
        known.is_complete.then(|| TrashUsage {
            inodes: known.by_age.len() as u64,
            bytes: known.bytes,
            oldest_secs: known.by_age.values().next().map(|(secs, _)| *secs),
        })
    }

    /// The oldest inodes, with at least so many bytes if there are, at most as many inodes as one operation takes; and their bytes.
    pub fn oldest(&self, bytes_wanted: u64) -> (Vec<Ino>, u64) {
        let known = self.known.lock();
        let mut found = (Vec::new(), 0_u64);
        for ((_, ino), (_, bytes)) in known.by_age.iter().take(REAPED_MAX) {
            if found.1 >= bytes_wanted {
                break;
            }
            found.0.push(*ino);
            found.1 = found.1.saturating_add(*bytes);
        }
        found
    }

    /// Inodes that are to leave the trash at a moment, the oldest ones, at most as many as one operation takes.
    pub fn outdated(&self, limits: TrashLimits, now_secs: i64) -> Vec<Ino> {
        let known = self.known.lock();
        let mut surplus = known.by_age.len().saturating_sub(limits.inodes);
        let mut bytes = known.bytes;
        let mut outdated = Vec::new();
        for ((_, ino), (secs, its_bytes)) in &known.by_age {
            let is_old = secs.saturating_add(limits.age_secs) <= now_secs;
            if is_old || surplus > 0 || bytes > limits.bytes {
                surplus = surplus.saturating_sub(1);
                bytes = bytes.saturating_sub(*its_bytes);
                outdated.push(*ino);
            } else if *secs <= now_secs.saturating_add(CLOCK_ERROR) {
                break;
            }
            if outdated.len() >= REAPED_MAX {
                break;
            }
        }
        outdated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TrashLimits = TrashLimits {
        age_secs: 100,
        bytes: 1000,
        inodes: 10,
    };

    fn ino(number: u64) -> Ino {
        Ino::new(number + 1).unwrap()
    }

    /// A ledger of inodes with these times and bytes, in this order.
    fn ledger(all: &[(i64, u64)]) -> TrashLedger {
        let ledger = TrashLedger::default();
        for (number, (secs, bytes)) in (1..).zip(all) {
            let osn = Osn {
                sequence: number,
                ..Osn::ZERO
            };
            let found = TrashedInode {
                osn,
                secs: *secs,
                bytes: *bytes,
            };
            ledger.put(ino(number), Some(found));
        }
        ledger.end_reading();
        ledger
    }

    #[test]
    fn an_inode_leaves_the_trash_when_it_is_old() {
        let ledger = ledger(&[(10, 1), (50, 1), (80, 1)]);
        assert!(ledger.outdated(LIMITS, 109).is_empty());
        assert_eq!(ledger.outdated(LIMITS, 110), [ino(1)]);
        assert_eq!(ledger.outdated(LIMITS, 170), [ino(1), ino(2)]);
    }

    #[test]
    fn the_oldest_inodes_leave_a_trash_that_is_too_large() {
        let by_bytes = ledger(&[(10, 500), (10, 0), (10, 400), (10, 101)]);
        assert_eq!(by_bytes.outdated(LIMITS, 10), [ino(1)]);
        let few = TrashLimits {
            inodes: 2,
            ..LIMITS
        };
        assert_eq!(by_bytes.outdated(few, 10), [ino(1), ino(2)]);
        assert_eq!(by_bytes.oldest(600), (vec![ino(1), ino(2), ino(3)], 900));
    }

    #[test]
    fn a_moment_of_a_wrong_clock_holds_no_other_inode_in_the_trash() {
        let ledger = ledger(&[(CLOCK_ERROR * 9, 1), (10, 1), (200, 1)]);
        assert_eq!(ledger.outdated(LIMITS, 150), [ino(2)]);
    }

    #[test]
    fn the_ledger_counts_each_inode_once() {
        let ledger = ledger(&[(10, 5), (20, 6)]);
        let again = TrashedInode {
            osn: Osn {
                sequence: 9,
                ..Osn::ZERO
            },
            secs: 30,
            bytes: 7,
        };
        ledger.put(ino(1), Some(again));
        let usage = |inodes, bytes, oldest_secs| TrashUsage {
            inodes,
            bytes,
            oldest_secs,
        };
        assert_eq!(ledger.usage(), Some(usage(2, 13, Some(20))));
        ledger.put(ino(2), None);
        assert_eq!(ledger.usage(), Some(usage(1, 7, Some(30))));
        ledger.put(ino(1), None);
        assert!(ledger.is_empty());
        ledger.begin_session();
        assert!(ledger.usage().is_none() && !ledger.is_empty());
    }
}
