//! The inode numbers that a mount shows for the files of snapshots: the same on both nodes, and after each restart.
//!
//! A number has three parts: the highest bit, which no file of the present has set; the *slot* of the snapshot (15 bits); and the
//! number of the file in the datastore (48 bits). Snapshots get the slots in turn, by their serial numbers. So a number means another
//! file only after 32,766 further snapshots, and then with another *generation*: the two together name one file of one snapshot for good.

use crate::id::Ino;
use crate::name::FileName;

const MARK: u64 = 1 << 63;
const SLOT_SHIFT: u32 = 48;

/// Slots of snapshots: the numbers from 1 on.
const SLOTS: u32 = 32_766;

/// The slot of the directories above the snapshots.
const ABOVE: u16 = 0;

/// An inode number of a mount below `.lockstep`, in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotIno {
    /// The slot of the snapshot; zero for the directories above the snapshots.
    slot: u16,
    /// The file as the snapshot names it.
    ino: Ino,
}

impl SnapshotIno {
    /// The directory `.lockstep`.
    pub const LOCKSTEP: Self = Self {
        slot: ABOVE,
        ino: Ino::ROOT,
    };

    /// The directory `.lockstep/snapshots`.
    pub const SNAPSHOTS: Self = Self {
        slot: ABOVE,
        ino: Ino::ROOT.next(),
    };

    /// Whether a name leads to [`Self::LOCKSTEP`], unless the datastore itself has a file with the name in its root.
    pub fn is_entrance(parent: Ino, name: &FileName) -> bool {
        parent == Ino::ROOT && name.as_bytes() == b".lockstep"
    }

    /// A file of the snapshot with a serial number. `None` if the number of the file does not fit: a datastore gets there after some
    /// hundred forced promotions (rule P13).
    pub const fn new(serial: u32, ino: Ino) -> Option<Self> {
        if ino.get() >> SLOT_SHIFT == 0 {
            Some(Self {
                slot: slot_of(serial),
                ino,
            })
        } else {
            None
        }
    }

    /// The parts of a number; `None` for that of a file of the present.
    pub const fn of(number: Ino) -> Option<Self> {
        if number.get() & MARK == 0 {
            return None;
        }
        let slot = (number.get() & !MARK) >> SLOT_SHIFT;
        let ino = Ino::new(number.get() & ((1 << SLOT_SHIFT) - 1));
        match ino {
            #[allow(clippy::cast_possible_truncation)] // 15 bits
            Some(ino) => Some(Self {
                slot: slot as u16,
                ino,
            }),
            None => None,
        }
    }

    /// The number as the mount shows it.
    pub fn number(self) -> Ino {
        let parts = MARK | u64::from(self.slot) << SLOT_SHIFT | self.ino.get();
        Ino::new(parts).unwrap_or(Ino::LAST)
    }

    /// The file as the snapshot names it.
    pub const fn ino(self) -> Ino {
        self.ino
    }

    /// Whether the file is one of the snapshot with a serial number.
    pub const fn is_of(self, serial: u32) -> bool {
        self.slot != ABOVE && self.slot == slot_of(serial)
    }

    /// Whether this is one of the directories above the snapshots.
    pub const fn is_above(self) -> bool {
        self.slot == ABOVE
    }

    /// The number that tells a snapshot from those that have had its slot before.
    pub const fn generation(serial: u32) -> u64 {
        serial as u64 / SLOTS as u64
    }

    /// The serial number after `last` whose slot no other snapshot has. `serials` are those of the snapshots that there are, fewer than
    /// slots.
    pub fn next_serial(last: u32, serials: &[u32]) -> u32 {
        let mut next = last.wrapping_add(1).max(1);
        while serials.iter().any(|it| slot_of(*it) == slot_of(next)) {
            next = next.wrapping_add(1).max(1);
        }
        next
    }
}

#[allow(clippy::cast_possible_truncation)] // below 2^15
const fn slot_of(serial: u32) -> u16 {
    (serial % SLOTS) as u16 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_file_and_the_slot() {
        let file = Ino::new(0x1234_5678_9abc).unwrap();
        for serial in [1, 2, SLOTS - 1, SLOTS, u32::MAX] {
            let made = SnapshotIno::new(serial, file).unwrap();
            let read = SnapshotIno::of(made.number()).unwrap();
            assert_eq!((read, read.ino()), (made, file));
            assert!(read.is_of(serial) && !read.is_of(serial.wrapping_add(1)));
            assert!(!read.is_above());
        }
        assert_eq!(SnapshotIno::of(file), None, "a file of the present");
        assert_eq!(SnapshotIno::new(1, Ino::LAST), None);
        let below = Ino::new(1 << SLOT_SHIFT).unwrap();
        assert_eq!(SnapshotIno::new(1, below), None);
    }

    #[test]
    fn the_directories_above_are_of_no_snapshot() {
        for above in [SnapshotIno::LOCKSTEP, SnapshotIno::SNAPSHOTS] {
            assert_eq!(SnapshotIno::of(above.number()), Some(above));
            assert!(above.is_above());
            assert!((0..=SLOTS).all(|serial| !above.is_of(serial)));
        }
    }

    #[test]
    fn a_slot_comes_back_with_another_generation_and_never_beside_its_owner() {
        let mut last = 7;
        let held = [7, 9];
        for _ in 0..2 * SLOTS {
            let next = SnapshotIno::next_serial(last, &held);
            assert!(next > last);
            assert!(held.iter().all(|it| slot_of(*it) != slot_of(next)));
            last = next;
        }
        assert_eq!(slot_of(5), slot_of(5 + SLOTS));
        assert_ne!(
            SnapshotIno::generation(5),
            SnapshotIno::generation(5 + SLOTS)
        );
        assert_eq!(SnapshotIno::next_serial(u32::MAX, &[]), 1);
    }
}
