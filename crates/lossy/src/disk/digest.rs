//! A digest of the seen and the durable state of a disk, to compare two runs.

use super::names::InodeNumber;
use super::pages::{Page, Pages};
use super::state::State;

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// An unfinished digest. Fast, and good enough against chance; not against malice.
struct Digest(u64);

impl Digest {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(FACTOR);
        self.0 ^= self.0 >> 32;
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.add((*byte).into());
        }
        self.add(bytes.len() as u64);
    }

    fn add_pages(&mut self, pages: &Pages) {
        self.add(pages.length());
        for (number, page) in pages.iter() {
            self.add(number);
            match page {
                Page::Hole | Page::Reserved => self.add(FACTOR),
                Page::Data(bytes) => self.add_bytes(bytes.as_slice()),
            }
        }
    }
}

/// The digest of a disk.
pub(super) fn of(state: &State) -> u64 {
    let mut digest = Digest(state.unsynced() as u64);
    let kept = state.names.kept_directories();
    for directory in state.names.directories().chain(kept) {
        digest.add_bytes(directory.as_bytes());
    }
    for (path, number) in state.names.files() {
        add_file(&mut digest, state, path, number, false);
    }
    for (path, number) in state.names.kept_files() {
        add_file(&mut digest, state, path, number, true);
    }
    digest.0
}

/// Adds a file as reads see it or, if it has changed since its last sync, as stable storage holds it.
fn add_file(digest: &mut Digest, state: &State, path: &str, number: InodeNumber, is_kept: bool) {
    digest.add_bytes(path.as_bytes());
    let Some(inode) = state.inode(number) else {
        return;
    };
    match (is_kept, inode.unsynced()) {
        (false, _) => digest.add_pages(inode.seen()),
        (true, 0) => digest.add(number),
        (true, _) => digest.add_pages(&inode.kept()),
    }
}
