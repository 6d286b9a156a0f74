//! A program with a large mapping, whose pages reach the other node.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lockstep_testbed::Pair;
use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::fail_over;
use memmap2::MmapMut;

const PAGE: usize = 4096;

/// Pages of a large mapping: 64 MiB.
const MANY_PAGES: usize = 16_384;

/// A new file of so many pages, and a mapping of it. Nothing but the mapping writes to the file.
fn new_mapping(path: &Path, pages: usize) -> (File, MmapMut) {
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.unwrap();
    file.set_len((pages * PAGE) as u64).unwrap();
    // SAFETY: nothing but the mapping writes to these pages of the file.
    let mapping = unsafe { MmapMut::map_mut(&file) }.unwrap();
    (file, mapping)
}

/// A program on A has stored to all pages of a large mapping, and has synced nothing.
pub fn many_dirty_pages_reach_the_other_node(pair: &mut Pair) {
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let (_file, mut mapping) = new_mapping(&on_a.join("large"), MANY_PAGES);
    for (number, page) in mapping.chunks_mut(PAGE).enumerate() {
        page.fill(u8::try_from(number % 251).unwrap() + 1);
    }
    fail_over(pair, A, 1);
    let there = File::open(on_b.join("large")).unwrap();
    let mut page = vec![0; PAGE];
    for number in 0..MANY_PAGES {
        there
            .read_exact_at(&mut page, (number * PAGE) as u64)
            .unwrap();
        let expected = u8::try_from(number % 251).unwrap() + 1;
        assert!(
            page.iter().all(|byte| *byte == expected),
            "page {number} is lost"
        );
    }
}
