//! The calls, on a disk without faults.

use std::io;

use super::*;

fn whole(file: &dyn BackingFile) -> Vec<u8> {
    let length = usize::try_from(file.stat().unwrap().length).unwrap();
    let mut content = vec![0xaa; length + 1];
    let count = file.read_at(0, &mut content).unwrap();
    content.truncate(count);
    content
}

#[test]
fn a_write_past_the_end_leaves_zeros_between() {
    let (_disk, _, file) = with_file();
    file.write_at(5, b"hello").unwrap();
    assert_eq!(whole(&*file), b"\0\0\0\0\0hello");
    file.write_at(3 * PAGE_BYTES - 2, b"over").unwrap();
    let content = whole(&*file);
    assert_eq!(content.len(), 3 * PAGE + 2);
    assert_eq!(&content[3 * PAGE - 2..], b"over");
    assert!(content[10..3 * PAGE - 2].iter().all(|byte| *byte == 0));
    assert_eq!(file.read_at(1 << 30, &mut [0; 4]).unwrap(), 0);
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let (_disk, _, file) = with_file();
    file.write_at(0, &vec![7; 2 * PAGE]).unwrap();
    file.set_len(10).unwrap();
    file.set_len(2 * PAGE_BYTES).unwrap();
    let content = whole(&*file);
    assert_eq!(content[..10], [7; 10]);
    assert!(content[10..].iter().all(|byte| *byte == 0));
    assert_eq!(file.stat().unwrap().blocks, 8);
}

#[test]
fn holes_are_found_and_free_their_space() {
    let (_disk, backing, file) = with_file();
    file.write_at(0, &vec![1; 64 * PAGE]).unwrap();
    let free = backing.space().unwrap().free_bytes;
    file.punch_hole(16 * PAGE_BYTES, 16 * PAGE_BYTES).unwrap();
    let stat = file.stat().unwrap();
    assert_eq!((stat.length, stat.blocks), (64 * PAGE_BYTES, 48 * 8));
    assert_eq!(
        backing.space().unwrap().free_bytes,
        free + 16 * PAGE_BYTES,
        "space"
    );
    let pages = |found: Option<u64>| found.map(|at| at / PAGE_BYTES);
    assert_eq!(pages(file.seek_hole(0).unwrap()), Some(16));
    assert_eq!(pages(file.seek_data(16 * PAGE_BYTES).unwrap()), Some(32));
    assert_eq!(
        file.seek_hole(16 * PAGE_BYTES + 5).unwrap(),
        Some(16 * PAGE_BYTES + 5)
    );
    assert_eq!(file.seek_data(5).unwrap(), Some(5));
    assert_eq!(pages(file.seek_hole(32 * PAGE_BYTES).unwrap()), Some(64));
    assert_eq!(file.seek_data(64 * PAGE_BYTES).unwrap(), None);
    assert_eq!(file.seek_hole(64 * PAGE_BYTES).unwrap(), None);
}

/// Each sequence of four changes of four pages: a page is written or punched.
#[test]
fn holes_are_those_of_the_pages_after_any_changes() {
    for changes in 0..8_usize.pow(4) {
        let (_disk, _, file) = with_file();
        file.set_len(4 * PAGE_BYTES).unwrap();
        let mut pages = [false; 4];
        for step in 0..4 {
            let change = changes / 8_usize.pow(step) % 8;
            let (page, is_written) = (change / 2, change % 2 == 1);
            let at = page as u64 * PAGE_BYTES;
            if is_written {
                file.write_at(at, &[1; PAGE]).unwrap();
            } else {
                file.punch_hole(at, PAGE_BYTES).unwrap();
            }
            pages[page] = is_written;
        }
        for from in 0..4 {
            let found = |wanted| (from..4).find(|page| pages[*page] == wanted);
            let at = |page: usize| page as u64 * PAGE_BYTES;
            let hole = found(false).unwrap_or(4);
            assert_eq!(file.seek_data(at(from)).unwrap(), found(true).map(at));
            assert_eq!(file.seek_hole(at(from)).unwrap(), Some(at(hole)));
        }
    }
}

/// As on ext4: extents that were never written are holes, and take space.
#[test]
fn reserved_space_counts_as_used_and_as_a_hole() {
    let (_disk, _, file) = with_file();
    file.allocate(0, 8 * PAGE_BYTES, true).unwrap();
    assert_eq!(file.stat().unwrap().length, 0);
    assert_eq!(file.stat().unwrap().blocks, 64);
    file.allocate(PAGE_BYTES, PAGE_BYTES, false).unwrap();
    assert_eq!(whole(&*file), [0; 2 * PAGE]);
    assert_eq!(file.seek_data(0).unwrap(), None);
    file.write_at(PAGE_BYTES + 1, b"x").unwrap();
    assert_eq!(file.seek_data(0).unwrap(), Some(PAGE_BYTES));
    assert_eq!(file.stat().unwrap().blocks, 64);
    file.zero_range(PAGE_BYTES, PAGE_BYTES, false).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), None);
    file.set_len(2 * PAGE_BYTES).unwrap();
    assert_eq!(
        file.stat().unwrap().blocks,
        16,
        "past the end it is given back"
    );
}

#[test]
fn zero_range_keeps_or_grows_the_length() {
    let (_disk, _, file) = with_file();
    file.write_at(0, &[7; 10]).unwrap();
    file.zero_range(5, 100, true).unwrap();
    assert_eq!(whole(&*file), [7, 7, 7, 7, 7, 0, 0, 0, 0, 0]);
    file.zero_range(4, 10, false).unwrap();
    assert_eq!(file.stat().unwrap().length, 14);
}

#[test]
fn files_are_as_long_as_ext4_lets_them_be() {
    let (_disk, _, file) = with_file();
    file.set_len((16 << 40) - PAGE_BYTES).unwrap();
    assert_eq!(file.seek_hole(0).unwrap(), Some(0));
    let refused = [
        file.set_len(16 << 40),
        file.write_at((16 << 40) - PAGE_BYTES, b"x"),
        file.allocate(u64::MAX, 2, false),
    ];
    for error in refused {
        assert_eq!(error.unwrap_err().raw_os_error(), Some(27));
    }
}

#[test]
fn names_are_listed_found_renamed_and_removed() {
    let (disk, backing) = mounted();
    for path in ["x", "z/w", "z/v/u", "z-other"] {
        backing.open_or_create(path).unwrap();
    }
    assert_eq!(backing.list("").unwrap(), ["x", "z", "z-other"]);
    assert_eq!(backing.list(".").unwrap(), ["x", "z", "z-other"]);
    assert_eq!(backing.list("z/").unwrap(), ["v", "w"]);
    assert!(backing.list("no").unwrap().is_empty());
    assert!(backing.exists("z/v").unwrap() && !backing.exists("z/no").unwrap());
    assert!(!backing.exists("x/below").unwrap());

    let old = backing.open("x").unwrap();
    old.write_at(0, b"old").unwrap();
    backing.rename("z/w", "x").unwrap();
    assert_eq!(disk.files(), ["x", "z-other", "z/v/u"]);
    assert_eq!(whole(&*old), b"old", "an open file outlives its name");
    backing.remove("x").unwrap();
    assert_eq!(disk.files(), ["z-other", "z/v/u"]);
}

#[test]
fn what_cannot_be_is_refused_with_the_number_of_linux() {
    let (_disk, backing) = mounted();
    backing.open_or_create("d/f").unwrap();
    let number = |error: io::Error| error.raw_os_error().unwrap();
    assert_eq!(number(backing.open("no").err().unwrap()), 2);
    assert_eq!(number(backing.stat("no").unwrap_err()), 2);
    assert_eq!(number(backing.remove("no").unwrap_err()), 2);
    assert_eq!(number(backing.rename("no", "d/f").unwrap_err()), 2);
    assert_eq!(number(backing.rename("d/f", "no/f").unwrap_err()), 2);
    assert_eq!(number(backing.sync_dir("no").unwrap_err()), 2);
    assert_eq!(number(backing.open("d").err().unwrap()), 21);
    assert_eq!(number(backing.remove("d").unwrap_err()), 21);
    assert_eq!(number(backing.open_or_create("d/f/g").err().unwrap()), 20);
    assert_eq!(number(backing.list("d/f").unwrap_err()), 20);
    for path in ["", ".", "/d", "../d", "d/../d"] {
        let error = backing.open_or_create(path).err().unwrap();
        assert_eq!(number(error), 22, "{path:?}");
    }
}

#[test]
fn tables_have_all_their_space_and_are_one_with_their_file() {
    let (_disk, backing) = mounted();
    let file = backing.open_or_create("t").unwrap();
    file.write_at(3, b"before").unwrap();
    let table = backing.open_table("t", 5000).unwrap();
    assert_eq!((table.len(), file.stat().unwrap().length), (5000, 5000));
    assert_eq!(file.stat().unwrap().blocks, 16);
    table.store(4990, b"stored");
    let mut back = [1; 10];
    table.load(4990, &mut back);
    assert_eq!(&back, b"stored\0\0\0\0");
    table.load(0, &mut back);
    assert_eq!(&back, b"\0\0\0before\0");
    assert_eq!(&whole(&*file)[4990..4996], b"stored");
    assert_eq!(backing.open_table("t", 10_000).unwrap().len(), 10_000);
    assert_eq!(file.stat().unwrap().length, 10_000);
}

#[test]
#[should_panic(expected = "outside a table")]
fn tables_refuse_ranges_outside() {
    let (_disk, backing) = mounted();
    backing.open_table("t", 10).unwrap().store(8, &[0; 3]);
}

#[test]
fn a_removed_file_keeps_its_space_until_it_is_closed() {
    let (_disk, backing, file) = with_file();
    let empty = backing.space().unwrap();
    file.write_at(0, &vec![1; 3 * PAGE]).unwrap();
    backing.remove("f").unwrap();
    assert_eq!(
        backing.space().unwrap().free_bytes,
        empty.free_bytes - 3 * PAGE_BYTES
    );
    drop(file);
    let space = backing.space().unwrap();
    assert_eq!(space.free_bytes, empty.free_bytes);
    assert_eq!(space.free_files, empty.free_files + 1);
}

#[test]
fn a_killed_process_changes_nothing_and_the_next_finds_all() {
    let (disk, backing, file) = with_file();
    let table = backing.open_table("t", PAGE).unwrap();
    file.write_at(0, b"bytes").unwrap();
    table.store(0, b"memory");
    disk.kill();

    let before = disk.digest();
    assert!(file.write_at(0, b"other").is_err());
    assert!(file.read_at(0, &mut [0; 5]).is_err());
    assert!(file.sync().is_err());
    assert!(backing.open_or_create("new").is_err());
    assert!(backing.list("").is_err());
    table.store(0, b"never!");
    let mut loaded = [9; 6];
    table.load(0, &mut loaded);
    assert_eq!(loaded, [0; 6]);
    drop((file, table));
    assert_eq!(disk.digest(), before);

    let next = disk.mount();
    assert_eq!(whole(&*next.open("f").unwrap()), b"bytes");
    next.open_table("t", PAGE).unwrap().load(0, &mut loaded);
    assert_eq!(&loaded, b"memory");
}

/// A file without a name ends with the process that had it open. A late close by a remaining thread of that
/// process has no effect.
#[test]
fn files_without_names_end_with_the_process() {
    let (disk, backing, file) = with_file();
    file.write_at(0, &vec![1; PAGE]).unwrap();
    backing.remove("f").unwrap();
    disk.kill();
    let next = disk.mount();
    assert_eq!(next.space().unwrap().free_bytes, 1 << 40);
    let other = next.open_or_create("f").unwrap();
    drop(file);
    other.write_at(0, b"x").unwrap();
    assert_eq!(next.space().unwrap().free_bytes, (1 << 40) - PAGE_BYTES);
}

#[test]
fn forks_go_their_own_ways() {
    let (disk, _, file) = with_file();
    file.write_at(0, b"one").unwrap();
    let fork = disk.fork();
    assert_eq!(fork.digest(), disk.digest());
    file.write_at(0, b"two").unwrap();
    assert_ne!(fork.digest(), disk.digest());
    assert_eq!(bytes(&fork, "f"), b"one");
    let other = fork.mount();
    other.open("f").unwrap().write_at(0, b"two").unwrap();
    assert_eq!(fork.digest(), disk.digest());
    fork.kill();
    file.write_at(0, b"still there").unwrap();
}

/// The digest covers the durable state, not only the seen state.
#[test]
fn the_digest_tells_what_is_kept() {
    let (disk, _, file) = with_file();
    file.write_at(0, b"one").unwrap();
    let fork = disk.fork();
    file.sync().unwrap();
    assert_ne!(fork.digest(), disk.digest());
}
