//! The files whose content a resync is making equal, with the number of their parts that wait or are under way.

use std::collections::BTreeMap;

use lockstep_types::Ino;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct OpenFiles(BTreeMap<Ino, usize>);

impl OpenFiles {
    /// A part of a file begins to wait.
    pub fn begin(&mut self, ino: Ino) {
        *self.0.entry(ino).or_default() += 1;
    }

    /// A part of a file is over. Returns whether it was the last one.
    pub fn end(&mut self, ino: Ino) -> bool {
        let Some(parts) = self.0.get_mut(&ino) else {
            return false;
        };
        *parts -= 1;
        let is_last = *parts == 0;
        if is_last {
            self.0.remove(&ino);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_over_with_its_last_part() {
        let (mut files, ino) = (OpenFiles::default(), Ino::ROOT);
        files.begin(ino);
        files.begin(ino);
        assert!(!files.end(ino));
        assert!(files.end(ino));
        assert!(!files.end(ino), "it has no part");
    }
}
