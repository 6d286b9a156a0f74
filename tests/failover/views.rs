//! The view that a program on one node has of the changes that were made on the other node: through open files, mappings, names
//! and attributes that its kernel has known before.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{assert_identical, await_in_sync, fail_over};
use lockstep_testbed::{Pair, WAIT_LIMIT};
use memmap2::MmapMut;

const PAGE: usize = 4096;

/// A line that the appender of `name` writes.
fn line(name: &str, number: u64) -> String {
    format!("{name} {number:06}\n")
}

/// Appends one line to a file, on a thread of its own.
fn append(file: &File, line: String) -> Receiver<std::io::Result<()>> {
    let mut file = file.try_clone().unwrap();
    let (done, outcome) = channel();
    thread::spawn(move || done.send(file.write_all(line.as_bytes())));
    outcome
}

fn await_done(appended: &Receiver<std::io::Result<()>>) {
    let outcome = appended.recv_timeout(WAIT_LIMIT);
    outcome.expect("the append ends").unwrap();
}

fn open_to_append(root: &Path) -> File {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    options.open(root.join("log")).unwrap()
}

/// Lets B serve for some work, from generation `before` of A on.
fn fail_over_twice(pair: &mut Pair, before: u64, work: impl FnOnce()) {
    await_in_sync(pair, A, before);
    fail_over(pair, A, before);
    work();
    await_in_sync(pair, B, before + 1);
    fail_over(pair, B, before + 1);
}

/// An append goes behind everything that the other node has appended. One that was asked while the other node served fails.
pub fn appends_never_overwrite(pair: &mut Pair) {
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let mut expected = Vec::new();
    let (first, idle) = (open_to_append(&on_a), open_to_append(&on_a));
    for number in 0..10 {
        await_done(&append(&first, line("a", number)));
        expected.push(line("a", number));
    }
    fail_over(pair, A, 1);
    let second = open_to_append(&on_b);
    let late = append(&first, line("a", 10));
    let refused = late.recv_timeout(WAIT_LIMIT).unwrap().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    for number in 0..10 {
        await_done(&append(&second, line("b", number)));
        expected.push(line("b", number));
    }
    await_in_sync(pair, B, 2);
    fail_over(pair, B, 2);
    await_done(&append(&first, line("a", 10)));
    expected.push(line("a", 10));
    fail_over_twice(pair, 3, || {
        await_done(&append(&second, line("b", 10)));
        expected.push(line("b", 10));
    });
    // This append begins when A serves again, and nothing has asked for the size of the file.
    await_done(&append(&idle, line("a", 11)));
    expected.push(line("a", 11));
    let found = fs::read_to_string(on_a.join("log")).unwrap();
    assert_eq!(found, expected.concat());
    assert_identical(pair.node(A));
}

/// The files, names and attributes of a directory, as A's kernel knows them.
struct View {
    file: File,
    mapping: MmapMut,
}

impl View {
    fn open(root: &Path) -> Self {
        fs::create_dir(root.join("dir")).unwrap();
        for name in ["kept", "gone", "old"] {
            fs::write(root.join("dir").join(name), [b'a'; 2 * PAGE]).unwrap();
        }
        let path = root.join("dir/kept");
        let file = File::options().read(true).write(true).open(path).unwrap();
        // SAFETY: the test accesses the mapping while no program writes to the file.
        let mapping = unsafe { MmapMut::map_mut(&file) }.unwrap();
        assert_eq!(mapping[PAGE], b'a');
        assert_eq!(fs::read_dir(root.join("dir")).unwrap().count(), 3);
        assert!(!root.join("dir/new").exists());
        Self { file, mapping }
    }
}

/// The changes of B to the directory.
fn change_elsewhere(root: &Path) {
    let dir = root.join("dir");
    let kept = File::options().write(true).open(dir.join("kept")).unwrap();
    kept.write_all_at(&[b'b'; PAGE], 0).unwrap();
    kept.set_len(3 * PAGE as u64).unwrap();
    fs::remove_file(dir.join("gone")).unwrap();
    fs::rename(dir.join("old"), dir.join("moved")).unwrap();
    fs::write(dir.join("new"), "new").unwrap();
    let (uid, gid) = (Some(7), Some(8));
    std::os::unix::fs::chown(dir.join("kept"), uid, gid).unwrap();
}

fn assert_seen(root: &Path, view: &View) {
    let mut found = vec![0; 3 * PAGE];
    view.file.read_exact_at(&mut found, 0).unwrap();
    let expected = [[b'b'; PAGE], [b'a'; PAGE], [0; PAGE]].concat();
    assert!(found[1..] == expected[1..] && found[0] == b'B', "content");
    assert_eq!(view.mapping[..2], *b"Bb", "the mapping");
    assert_eq!(view.mapping[PAGE], b'a', "the mapping");
    let metadata = view.file.metadata().unwrap();
    assert_eq!(metadata.len(), 3 * PAGE as u64);
    assert_eq!((metadata.uid(), metadata.gid()), (7, 8));
    let entries = fs::read_dir(root.join("dir")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["kept", "moved", "new"]);
    for (name, is_there) in [("gone", false), ("old", false), ("new", true)] {
        assert_eq!(root.join("dir").join(name).exists(), is_there, "{name}");
    }
    assert_eq!(fs::read(root.join("dir/new")).unwrap(), b"new");
}

/// A's kernel shows nothing that was there before B has changed it, and B sees the stores of A's mappings.
pub fn nothing_cached_survives(pair: &mut Pair) {
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let mut view = View::open(&on_a);
    // Not synced: the failover has the kernel write the page back.
    view.mapping[2 * PAGE - 1] = b'm';
    fail_over(pair, A, 1);
    let found = fs::read(on_b.join("dir/kept")).unwrap();
    assert_eq!(found[2 * PAGE - 1], b'm', "a store of a mapping of A");
    let kept = File::options().write(true).open(on_b.join("dir/kept"));
    kept.unwrap()
        .write_all_at(b"a", 2 * PAGE as u64 - 1)
        .unwrap();
    change_elsewhere(&on_b);
    await_in_sync(pair, B, 2);
    fail_over(pair, B, 2);
    view.mapping[0] = b'B';
    assert_seen(&on_a, &view);
    drop(view);
    await_in_sync(pair, A, 3);
    assert_identical(pair.node(A));
}

/// Pages of a large file without content.
const PAGES: usize = 16_384;

/// Reads new pages of a mapping, so that the kernel waits for a page at any moment. Returns when the first are read. The
/// kernel does the reads for a system call: a page that cannot be read is an error, and no signal for the whole test.
fn read_pages(file: &File) -> thread::JoinHandle<()> {
    // SAFETY: the test only reads, and accepts any byte.
    let mapping = unsafe { memmap2::Mmap::map(file) }.unwrap();
    mapping.advise(memmap2::Advice::Random).unwrap();
    let (begun, is_begun) = channel();
    let sink = tempfile::tempfile().unwrap();
    let reader = thread::spawn(move || {
        for (number, page) in mapping.chunks(PAGE).enumerate() {
            sink.write_all_at(&page[..1], 0).unwrap();
            if number == PAGES / 64 {
                begun.send(()).unwrap();
            }
        }
    });
    is_begun.recv_timeout(WAIT_LIMIT).unwrap();
    reader
}

/// A kernel that waits for a page of a mapping still writes the other pages back before B serves, and none afterwards.
pub fn no_old_page_overwrites(pair: &mut Pair) {
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let path = on_a.join("large");
    let file = File::create_new(&path).unwrap();
    file.set_len((PAGES * PAGE) as u64).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: the test accesses the mapping while no program writes to the file.
    let mut mapping = unsafe { MmapMut::map_mut(&file) }.unwrap();
    let last = (PAGES - 1) * PAGE;
    mapping[last] = b'A';
    let reader = read_pages(&file);
    fail_over(pair, A, 1);
    let elsewhere = File::options()
        .read(true)
        .write(true)
        .open(on_b.join("large"));
    let elsewhere = elsewhere.unwrap();
    let mut found = [0; 2];
    elsewhere.read_exact_at(&mut found, last as u64).unwrap();
    println!("B finds {found:?}");
    elsewhere.write_all_at(b"B", last as u64 + 1).unwrap();
    await_in_sync(pair, B, 2);
    fail_over(pair, B, 2);
    reader.join().unwrap();
    println!("msync: {:?}", mapping.flush());
    file.read_exact_at(&mut found, last as u64).unwrap();
    assert_eq!(found[1], b'B', "{found:?}");
}
