//! Inodes that are to be freed: gathered, so that many removals take one more operation instead of one each.
//!
//! An inode that is lost here, because the process ends, is found again when a node begins to serve: a store lists its
//! inodes without a name.

use std::mem;

use lockstep_types::Ino;
use lockstep_types::limits::REAPED_MAX;
use parking_lot::Mutex;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct ReapQueue(Mutex<Gathered>);

#[derive(Default)]
struct Gathered {
    inos: Vec<Ino>,
    /// Inodes may wait for the next tick: the disks have ample room, so no program waits for the space.
    may_wait: bool,
}

impl ReapQueue {
    /// Adds an inode. Returns the inodes that are to be freed now, if any.
    pub fn add(&self, ino: Ino) -> Vec<Ino> {
        let mut gathered = self.0.lock();
        gathered.inos.push(ino);
        if gathered.may_wait && gathered.inos.len() < REAPED_MAX {
            return Vec::new();
        }
        mem::take(&mut gathered.inos)
    }

    /// Takes the inodes that wait. Until the next call, inodes wait if `may_wait` says so.
    pub fn take(&self, may_wait: bool) -> Vec<Ino> {
        let mut gathered = self.0.lock();
        gathered.may_wait = may_wait;
        mem::take(&mut gathered.inos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_wait_for_others_while_there_is_room() {
        let queue = ReapQueue::default();
        let ino = |number| Ino::new(number).unwrap();
        assert_eq!(queue.add(ino(1)), [ino(1)]);
        assert!(queue.take(true).is_empty());
        for number in 1..REAPED_MAX as u64 {
            assert!(queue.add(ino(number)).is_empty());
        }
        assert_eq!(queue.add(ino(1000)).len(), REAPED_MAX);
        assert!(queue.add(ino(1001)).is_empty());
        assert_eq!(queue.take(false), [ino(1001)]);
        assert_eq!(queue.add(ino(1002)), [ino(1002)]);
    }
}
