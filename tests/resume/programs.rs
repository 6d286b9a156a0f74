//! Programs that use a mount and check each answer. A program bears no error but a refusal: `EROFS` says that a change was not
//! made, because the other node may have served since it was asked. The program then asks again.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use memmap2::MmapMut;
use rustix::fs::{
    FallocateFlags, OFlags, XattrFlags, copy_file_range, fallocate, getxattr, listxattr,
    removexattr, setxattr,
};

use crate::names;

/// Content by path.
pub type Tree = BTreeMap<String, Vec<u8>>;

/// A program: works until it is stopped, and returns what it has left in its directory.
pub type Body = fn(&Place) -> Tree;

/// All programs, by name.
pub const PROGRAMS: [(&str, Body); 10] = [
    ("sync", sync),
    ("direct", direct),
    ("mapped", mapped),
    ("names", names::names),
    ("exchanges", names::exchanges),
    ("attributes", attributes),
    ("listing", listing),
    ("append", append),
    ("unlinked", unlinked),
    ("ranges", ranges),
];

const PAGE: usize = 4096;
const PAGES: usize = 32;
const LISTED: usize = 1000;

/// Time before a program asks again.
const PAUSE: Duration = Duration::from_millis(2);

/// The directory of one program.
pub struct Place {
    pub dir: PathBuf,
    pub stop: AtomicBool,
    rounds: AtomicU64,
    refusals: AtomicU64,
}

impl Place {
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            stop: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    /// Runs a program in a new directory.
    pub fn run(&self, body: Body) -> Tree {
        self.ask(|| fs::create_dir(&self.dir));
        body(self)
    }

    /// The rounds that the program has begun.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::SeqCst)
    }

    /// Begins a round; `None` when the program is to stop.
    pub fn next(&self) -> Option<u64> {
        if self.stop.load(Ordering::SeqCst) {
            return None;
        }
        Some(self.rounds.fetch_add(1, Ordering::SeqCst))
    }

    /// The refused calls so far.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::SeqCst)
    }

    /// Makes a call again until it is not refused. The call succeeds.
    pub fn ask<T, E: Into<io::Error>>(&self, mut call: impl FnMut() -> Result<T, E>) -> T {
        loop {
            match call().map_err(Into::into) {
                Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                    self.refusals.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(PAUSE);
                }
                outcome => return outcome.unwrap(),
            }
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Opens a new file. The kernel makes the file, and then looks at its attributes: a node that follows by then refuses the look,
    /// so the call fails although the file is there.
    pub fn create(&self, name: &str, flags: OFlags) -> File {
        let path = self.path(name);
        let before = self.refusals();
        self.ask(|| match open_new(&path, flags) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && self.refusals() > before =>
            {
                OpenOptions::new().read(true).write(true).open(&path)
            }
            outcome => outcome,
        })
    }
}

fn open_new(path: &Path, flags: OFlags) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// A page that no other round writes.
fn page_of(round: u64) -> Vec<u8> {
    let words = (0..PAGE as u64 / 8).flat_map(|word| (round * 1_000_003 + word).to_le_bytes());
    words.collect()
}

fn page_index(round: u64) -> usize {
    usize::try_from(round * 7 % PAGES as u64).unwrap()
}

/// Writes pages of a file, reads them again, and syncs.
fn rewrite(place: &Place, flags: OFlags) -> Tree {
    let file = place.create("file", flags);
    let mut expected = vec![0; PAGE * PAGES];
    let mut buffer = MmapMut::map_anon(PAGE).unwrap();
    place.ask(|| file.set_len(expected.len() as u64));
    while let Some(round) = place.next() {
        let start = page_index(round) * PAGE;
        buffer.copy_from_slice(&page_of(round));
        place.ask(|| file.write_all_at(&buffer, start as u64));
        expected[start..start + PAGE].copy_from_slice(&buffer);
        if round % 3 == 0 {
            place.ask(|| file.sync_all());
        }
        let other = page_index(round + 3) * PAGE;
        place.ask(|| file.read_exact_at(&mut buffer, other as u64));
        assert!(buffer[..] == expected[other..other + PAGE], "page {other}");
    }
    Tree::from([("file".to_owned(), expected)])
}

fn sync(place: &Place) -> Tree {
    rewrite(place, OFlags::empty())
}

fn direct(place: &Place) -> Tree {
    rewrite(place, OFlags::DIRECT | OFlags::DSYNC)
}

/// Stores to a shared mapping, beside writes to other pages of the file.
fn mapped(place: &Place) -> Tree {
    let file = place.create("file", OFlags::empty());
    let mut expected = vec![0; PAGE * PAGES];
    place.ask(|| file.set_len(expected.len() as u64));
    // SAFETY: only this thread uses the file.
    let mut mapping = unsafe { MmapMut::map_mut(&file) }.unwrap();
    while let Some(round) = place.next() {
        let start = page_index(round) * PAGE;
        let page = page_of(round);
        if round % 2 == 0 {
            mapping[start..start + PAGE].copy_from_slice(&page);
        } else {
            place.ask(|| file.write_all_at(&page, start as u64));
        }
        expected[start..start + PAGE].copy_from_slice(&page);
        assert!(mapping[start..start + PAGE] == page, "round {round}");
        if round % 5 == 0 {
            place.ask(|| mapping.flush());
        }
    }
    place.ask(|| mapping.flush());
    Tree::from([("file".to_owned(), expected)])
}

/// Extended attributes, permissions, times and sizes.
fn attributes(place: &Place) -> Tree {
    let path = place.path("file");
    let file = place.create("file", OFlags::empty());
    while let Some(round) = place.next() {
        let value = round.to_le_bytes();
        place.ask(|| setxattr(&path, "user.once", &value, XattrFlags::CREATE));
        place.ask(|| setxattr(&path, "user.once", &[1], XattrFlags::REPLACE));
        place.ask(|| setxattr(&path, "user.last", &value, XattrFlags::empty()));
        let mut found = [0; 8];
        assert_eq!(place.ask(|| getxattr(&path, "user.last", &mut found)), 8);
        assert_eq!(found, value);
        let mut names = [0; 64];
        let length = place.ask(|| listxattr(&path, &mut names));
        assert_eq!(length, "user.once\0user.last\0".len());
        place.ask(|| removexattr(&path, "user.once"));
        let mode = if round % 2 == 0 { 0o600 } else { 0o644 };
        place.ask(|| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
        place.ask(|| file.set_len(round % 9000));
        let metadata = place.ask(|| file.metadata());
        assert_eq!(metadata.mode() & 0o777, mode);
        assert_eq!(metadata.len(), round % 9000);
    }
    let length = usize::try_from(place.ask(|| file.metadata()).len()).unwrap();
    Tree::from([("file".to_owned(), vec![0; length])])
}

/// Lists a large directory.
fn listing(place: &Place) -> Tree {
    let names: Vec<_> = (0..LISTED).map(|number| format!("{number:04}")).collect();
    for name in &names {
        place.create(name, OFlags::empty());
    }
    while place.next().is_some() {
        let mut found = place.ask(|| {
            let entries = fs::read_dir(&place.dir)?;
            let names = entries.map(|entry| Ok(entry?.file_name().into_string().unwrap()));
            names.collect::<io::Result<Vec<_>>>()
        });
        found.sort();
        assert_eq!(found, names);
        let metadata = place.ask(|| fs::metadata(place.path(&names[found.len() / 2])));
        assert_eq!(metadata.len(), 0);
    }
    names.into_iter().map(|name| (name, Vec::new())).collect()
}

/// Appends records, and begins anew from time to time.
fn append(place: &Place) -> Tree {
    let mut file = place.create("log", OFlags::APPEND);
    let mut expected = Vec::new();
    while let Some(round) = place.next() {
        let record = format!("record {round}\n").repeat(1 + usize::try_from(round % 50).unwrap());
        place.ask(|| file.write_all(record.as_bytes()));
        expected.extend(record.bytes());
        let metadata = place.ask(|| file.metadata());
        assert_eq!(metadata.len(), expected.len() as u64, "round {round}");
        if round % 20 == 0 {
            place.ask(|| file.sync_data());
            let mut found = Vec::new();
            place.ask(|| {
                found.clear();
                file.seek(SeekFrom::Start(0))?;
                file.read_to_end(&mut found)
            });
            assert!(found == expected, "round {round}");
        }
        if round % 41 == 0 {
            place.ask(|| file.set_len(0));
            expected.clear();
        }
    }
    Tree::from([("log".to_owned(), expected)])
}

/// Keeps files open that have no name.
fn unlinked(place: &Place) -> Tree {
    let mut files: Vec<(File, Vec<u8>)> = Vec::new();
    while let Some(round) = place.next() {
        let file = place.create("file", OFlags::empty());
        let page = page_of(round);
        place.ask(|| file.write_all_at(&page, 0));
        place.ask(|| fs::remove_file(place.path("file")));
        files.push((file, page));
        for (file, page) in &files {
            let mut found = vec![0; PAGE];
            place.ask(|| file.read_exact_at(&mut found, 0));
            assert!(found == *page);
            assert_eq!(place.ask(|| file.metadata()).nlink(), 0);
        }
        if files.len() > 5 {
            files.remove(0);
        }
    }
    Tree::new()
}

/// Allocates, punches holes, copies, and looks for data.
fn ranges(place: &Place) -> Tree {
    let (from, to) = ("from", "to");
    let source = place.create(from, OFlags::empty());
    let target = place.create(to, OFlags::empty());
    let mut expected = Vec::new();
    while let Some(round) = place.next() {
        place.ask(|| source.write_all_at(&page_of(round), PAGE as u64));
        place.ask(|| fallocate(&source, FallocateFlags::KEEP_SIZE, 0, 3 * PAGE as u64));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        place.ask(|| fallocate(&source, hole, 0, PAGE as u64));
        place.ask(|| target.set_len(0));
        let (mut at, mut to_at) = (0, 0);
        while at < 2 * PAGE as u64 {
            let rest = 2 * PAGE - usize::try_from(at).unwrap();
            let copied = place
                .ask(|| copy_file_range(&source, Some(&mut at), &target, Some(&mut to_at), rest));
            assert!(copied > 0);
        }
        expected = [vec![0; PAGE], page_of(round)].concat();
        let mut found = vec![0; 2 * PAGE];
        place.ask(|| target.read_exact_at(&mut found, 0));
        assert!(found == expected, "round {round}");
        let data = place.ask(|| rustix::fs::seek(&source, rustix::fs::SeekFrom::Data(0)));
        assert_eq!(data, PAGE as u64);
    }
    let files = [from, to].map(|name| (name.to_owned(), expected.clone()));
    files.into_iter().filter(|_| !expected.is_empty()).collect()
}
