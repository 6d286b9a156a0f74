//! How far a resync has got on the receiver: which records and bytes came from the primary.
//!
//! A mirrored change of something that came from the primary loses nothing of this node.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use lockstep_types::Ino;

/// Bytes of files.
pub type OwnBytes = BTreeMap<Ino, Vec<Range<u64>>>;

/// See the head of this file.
#[derive(Default)]
pub struct ResyncProgress {
    /// Every record up to this key came from the primary.
    loaded: Vec<u8>,
    /// Files from this number on were made on both nodes; `None` before the end of the namespace.
    first_new: Option<u64>,
    /// Files up to this number are equal, but for those in `files`.
    begun: u64,
    /// Files that are being compared: size, and the end of the equal bytes.
    files: HashMap<Ino, (u64, u64)>,
    /// The only bytes that this node may have had alone; `None`: anything. With them, no record is this node's own.
    own: Option<OwnBytes>,
}

impl ResyncProgress {
    /// The begin of a resync. `own`: this node had nothing alone but these bytes.
    pub fn of(own: Option<OwnBytes>) -> Self {
        Self {
            own,
            ..Self::default()
        }
    }

    /// Whether this node may have had some of these bytes alone.
    pub fn concerns(&self, ino: Ino, bytes: &Range<u64>) -> bool {
        let Some(own) = &self.own else {
            return true;
        };
        let meets = |one: &Range<u64>| one.start < bytes.end && bytes.start < one.end;
        own.get(&ino).is_some_and(|ranges| ranges.iter().any(meets))
    }

    /// The secondary has taken over size and times of a file. `differs`: the bytes before `size` are compared next.
    /// A file that is begun again, by a resync that goes on, has its equal bytes already.
    pub fn file_begun(&mut self, ino: Ino, size: u64, differs: bool) {
        let is_begun = ino.get() <= self.begun;
        self.begun = self.begun.max(ino.get());
        if is_begun && !self.files.contains_key(&ino) {
            return;
        }
        if differs && size > 0 {
            let equal = self.files.get(&ino).map_or(0, |(_, equal)| *equal);
            self.files.insert(ino, (size, equal));
        } else {
            self.files.remove(&ino);
        }
    }

    /// The bytes of a file before `end` are equal, or are being made equal.
    pub fn compared(&mut self, ino: Ino, end: u64) {
        let Some((size, equal)) = self.files.get_mut(&ino) else {
            return;
        };
        *equal = end.max(*equal);
        if equal >= size {
            self.files.remove(&ino);
        }
    }

    /// Every record up to `key` came from the primary.
    pub fn records_loaded(&mut self, key: &[u8]) {
        if key > self.loaded.as_slice() {
            self.loaded = key.to_vec();
        }
    }

    /// Whether a record came from the primary.
    pub fn is_loaded(&self, key: &[u8]) -> bool {
        self.own.is_some() || key <= self.loaded.as_slice()
    }

    /// All records came from the primary. Files with numbers from `first_new` on are made on both nodes.
    pub const fn namespace_loaded(&mut self, first_new: u64) {
        self.first_new = Some(first_new);
    }

    /// Whether some of these bytes may be this node's own.
    pub fn is_unsettled(&self, ino: Ino, bytes: &Range<u64>) -> bool {
        if !self.concerns(ino, bytes) {
            return false;
        }
        if self.first_new.is_some_and(|first| ino.get() >= first) {
            return false;
        }
        let is_compared = |&(_, equal): &(u64, u64)| bytes.end > equal;
        ino.get() > self.begun || self.files.get(&ino).is_some_and(is_compared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ino(number: u64) -> Ino {
        Ino::new(number).unwrap()
    }

    #[test]
    fn bytes_are_settled_once_they_were_compared() {
        let mut progress = ResyncProgress::default();
        assert!(
            progress.is_unsettled(ino(5), &(0..1)),
            "nothing was compared"
        );
        progress.namespace_loaded(100);
        assert!(
            !progress.is_unsettled(ino(100), &(0..1)),
            "both nodes made it"
        );
        progress.file_begun(ino(5), 0, true);
        progress.file_begun(ino(7), 9000, true);
        // The resync goes on after a loss of its connection.
        progress.file_begun(ino(5), 100, true);
        assert!(!progress.is_unsettled(ino(5), &(0..1)) && !progress.is_unsettled(ino(6), &(0..1)));
        assert!(progress.is_unsettled(ino(7), &(0..1)) && progress.is_unsettled(ino(8), &(0..1)));
        progress.compared(ino(7), 8192);
        progress.file_begun(ino(7), 9000, true);
        assert!(
            !progress.is_unsettled(ino(7), &(0..8192)) && progress.is_unsettled(ino(7), &(0..8193))
        );
        progress.compared(ino(7), 12288);
        assert!(!progress.is_unsettled(ino(7), &(0..u64::MAX)));
    }

    #[test]
    fn a_record_counts_as_loaded_up_to_the_last_key() {
        let mut progress = ResyncProgress::default();
        progress.records_loaded(b"d5");
        progress.records_loaded(b"c9");
        assert!(progress.is_loaded(b"c7") && progress.is_loaded(b"d5"));
        assert!(!progress.is_loaded(b"d6"));
    }
}
