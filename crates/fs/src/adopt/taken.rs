//! The files that have their content in the store, in an adoption that passes the files in the order of their numbers.
//!
//! A file with several names is passed several times. If one of its names has gone, another one may come much later.
//! Memory grows with the files that have several names.

use std::collections::{BTreeSet, HashSet};

use lockstep_types::Ino;

/// See the head of this file.
pub(super) struct TakenFiles {
    /// All files with lower numbers were taken, by this process or an earlier one.
    below: Ino,
    /// Files with several names that were taken.
    several: HashSet<Ino>,
    /// Files of which a name has gone before they were taken by another one.
    left: BTreeSet<Ino>,
    /// The number after the last file that was passed.
    next: Ino,
}

impl TakenFiles {
    /// All files below a number were taken.
    pub fn below(below: Ino) -> Self {
        Self {
            below,
            several: HashSet::new(),
            left: BTreeSet::new(),
            next: below,
        }
    }

    /// Whether a file was taken.
    pub fn has(&self, ino: Ino) -> bool {
        ino < self.below || self.several.contains(&ino)
    }

    /// Notes a file that was taken.
    pub fn note(&mut self, ino: Ino, names: u32) {
        if names > 1 {
            self.several.insert(ino);
        }
        self.left.remove(&ino);
    }

    /// A name of a file has gone. Unless the name was the last one, another one may lead to the content.
    pub fn note_gone(&mut self, ino: Ino, is_last: bool) {
        if is_last {
            self.left.remove(&ino);
        } else if !self.has(ino) {
            self.left.insert(ino);
        }
    }

    /// Passes a file. Returns whether this is the first time, and whether an earlier process had taken the file.
    pub fn pass(&mut self, ino: Ino) -> (bool, bool) {
        let was_taken = ino < self.below;
        let is_first = was_taken || ino >= self.next;
        self.next = self.next.max(ino.next());
        (is_first, was_taken)
    }

    /// The number below which all files were taken so far.
    pub fn all_below(&self) -> Ino {
        let first_left = self.left.first().copied();
        first_left.unwrap_or(self.next).min(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_which_a_name_has_gone_is_to_be_taken_by_another_name() {
        let ino = |number| Ino::new(number).unwrap();
        let mut files = TakenFiles::below(ino(5));
        assert!(files.has(ino(4)) && !files.has(ino(5)));
        assert_eq!(files.pass(ino(4)), (true, true));
        files.note_gone(ino(5), false);
        assert_eq!(files.pass(ino(5)), (true, false));
        files.note(ino(6), 2);
        assert_eq!(files.pass(ino(6)), (true, false));
        assert_eq!(files.all_below(), ino(5));
        assert!(files.has(ino(6)), "by its other name");
        assert_eq!(files.pass(ino(6)), (false, false));
        files.note(ino(5), 1);
        assert_eq!(files.all_below(), ino(7));
        files.note_gone(ino(7), true);
        files.pass(ino(7));
        assert_eq!(files.all_below(), ino(8));
    }
}
