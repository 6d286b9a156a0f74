use lockstep_lossy::disk::{Disk, DiskOptions, Verdict};

use super::*;
use crate::backing::reserve::{Reserve, Reserved, Withheld};

const PAGE: u64 = BLOCK;

struct Site {
    disk: Disk,
    store: StoreDisk,
    reserve: Arc<Reserve>,
    lost_found: LostFound,
}

impl Site {
    /// A disk with this many pages for clients, in which the file 7 is 40 pages long.
    fn new(pages: u64) -> Self {
        let withheld = Withheld {
            reserve_bytes: 8 * PAGE,
            spare_bytes: 2 * PAGE,
            spare_files: 3,
        };
        let disk = Disk::new(DiskOptions {
            capacity_bytes: (pages + 50) * PAGE,
            capacity_files: 200,
        });
        let (reserved, reserve) = Reserved::over(disk.mount(), withheld);
        assert!(reserve.fill().unwrap());
        let store = StoreDisk::new(Arc::new(reserved));
        let site = Self {
            disk,
            store,
            reserve,
            lost_found: LostFound::default(),
        };
        let bytes: Vec<u8> = (1..=40).flat_map(|page| [page; BLOCK_BYTES]).collect();
        site.content().write_at(0, &bytes).unwrap();
        site
    }

    /// The content of the file leaves its place.
    fn move_content(&self) -> io::Result<Option<String>> {
        let removal = Removal {
            disk: &self.store,
            ino: ino(),
            mark: None,
            is_shared: false,
        };
        self.lost_found.move_content(&removal, generation())
    }

    fn content(&self) -> Arc<dyn BackingFile> {
        let path = content_path(ino());
        self.store.backing().open_or_create(&path).unwrap()
    }

    fn preserve(&self, range: Range<u64>, new: Option<&[u8]>) {
        let loss = LostBytes {
            ino: ino(),
            range,
            new,
            kind: LostKind::Overwritten,
        };
        // A killed process has no content to keep.
        if let Ok(content) = self.store.backing().open(&content_path(ino())) {
            self.lost_found.preserve_range(&*content, &loss);
        }
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        self.disk
            .read_all(&format!(".lockstep/lost+found/2/{path}"))
    }

    fn list(&self) -> String {
        let list = self.read("list.txt").unwrap_or_default();
        String::from_utf8(list).unwrap()
    }

    /// Another program takes all space that is left.
    fn fill_up(&self) {
        let ballast = self.disk.mount().open_or_create("ballast").unwrap();
        let left = self.disk.mount().space().unwrap().available_bytes;
        ballast.allocate(0, left, false).unwrap();
    }
}

fn ino() -> Ino {
    Ino::new(7).unwrap()
}

fn generation() -> Generation {
    Generation::new(2).unwrap()
}

#[test]
fn a_file_that_becomes_no_shorter_is_not_cut_off() {
    let site = Site::new(400);
    let end = 40 * PAGE + 100;
    site.content().write_at(40 * PAGE, &[9; 100]).unwrap();
    site.lost_found.begin(&site.store, generation(), None);
    let cut_at = |size: u64| {
        let loss = LostBytes {
            ino: ino(),
            range: size..u64::MAX,
            new: None,
            kind: LostKind::Cut,
        };
        site.lost_found.preserve_range(&*site.content(), &loss);
    };
    cut_at(end);
    cut_at(end + PAGE);
    assert!(!site.list().contains("cut off"), "{}", site.list());
    cut_at(end - 1);
    assert!(site.list().contains("cut off"), "{}", site.list());
}

#[test]
fn nothing_is_kept_before_the_begin_and_after_the_end() {
    let site = Site::new(400);
    site.preserve(0..PAGE, None);
    site.lost_found.begin(&site.store, generation(), None);
    site.lost_found.end();
    site.preserve(0..PAGE, None);
    assert!(site.read("list.txt").is_none());
    assert!(
        !site
            .disk
            .directories()
            .iter()
            .any(|path| path.contains("lost+found"))
    );
}

/// The bytes before the first change are those that only this node had.
#[test]
fn a_block_is_kept_once_and_only_if_it_changes() {
    let site = Site::new(400);
    site.lost_found.begin(&site.store, generation(), None);
    let mut new = vec![1; 3 * 4096];
    new[4096..2 * 4096].fill(99);
    new[2 * 4096..].fill(3);
    site.preserve(0..3 * PAGE, Some(&new));
    site.content().write_at(0, &new).unwrap();
    site.preserve(PAGE + 10..PAGE + 20, Some(&[1; 10]));
    let kept = site.read("content/0/7.ranges").unwrap();
    assert_eq!(kept.len(), 2 * 4096);
    assert!(kept[..4096].iter().all(|byte| *byte == 0));
    assert!(kept[4096..].iter().all(|byte| *byte == 2));
    let entries = site
        .list()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .count();
    assert_eq!(entries, 1, "{}", site.list());
}

#[test]
fn the_limit_is_a_quarter_of_the_room_and_the_list_names_the_rest() {
    let site = Site::new(100);
    let room = site.store.space().unwrap().available_bytes;
    site.lost_found.begin(&site.store, generation(), None);
    for page in 0..40 {
        site.preserve(page * PAGE..(page + 1) * PAGE, None);
    }
    let kept = site.read("content/0/7.ranges").unwrap();
    let pages = kept.len() as u64 / PAGE;
    assert!(
        pages >= 5 && pages * PAGE <= room / 4,
        "{pages} pages of {room} bytes"
    );
    for page in 0..40 {
        let line = format!("overwritten\t7\t?\toffset {} length 4096\t", page * PAGE);
        let list = site.list();
        let (_, place) = list.split_once(&line).unwrap();
        assert_eq!(
            place.starts_with("NOT KEPT: the limit"),
            page >= pages,
            "{page}: {list}"
        );
    }
}

#[test]
fn a_full_disk_stops_the_preservation_and_nothing_else_and_leaves_the_reserve() {
    let site = Site::new(100);
    site.lost_found.begin(&site.store, generation(), None);
    site.preserve(0..PAGE, None);
    site.fill_up();
    for page in 1..40 {
        site.preserve(page * PAGE..(page + 1) * PAGE, None);
    }
    let moved = site.move_content();
    assert!(moved.is_ok());
    assert_eq!(site.reserve.lacking(), 0, "the reserve is not used");
    assert_eq!(site.read("content/0/7.ranges").unwrap().len(), 4096);
}

#[test]
fn a_resync_without_room_gets_the_room_of_what_is_kept() {
    let site = Site::new(400);
    site.lost_found.begin(&site.store, generation(), None);
    site.preserve(0..10 * PAGE, None);
    let before = site.store.space().unwrap().available_bytes;
    assert!(site.lost_found.give_room_back());
    assert!(site.store.space().unwrap().available_bytes >= before + 10 * PAGE);
    assert!(!site.lost_found.give_room_back(), "nothing is left");
    assert!(site.list().contains("REMOVED AGAIN"), "{}", site.list());
    site.preserve(10 * PAGE..11 * PAGE, None);
    assert!(site.read("content/0/7.ranges").is_none());
}

#[test]
fn a_preservation_goes_on_after_a_stop_of_the_process() {
    let site = Site::new(400);
    site.lost_found.begin(&site.store, generation(), None);
    site.preserve(0..PAGE, None);
    let path = ".lockstep/lost+found/2/list.txt";
    site.disk
        .edit(path, |bytes| bytes.truncate(bytes.len() - 3))
        .unwrap();
    site.lost_found.begin(&site.store, generation(), None);
    site.preserve(0..2 * PAGE, None);
    let list = site.list();
    let entries: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(entries.len(), 2, "{list}");
    assert!(
        entries[1].contains("offset 4096 length 4096\t.lockstep/"),
        "{list}"
    );
}

#[test]
fn moved_content_never_replaces_kept_content() {
    let site = Site::new(400);
    for round in 0..3 {
        site.content().write_at(0, &[round; 10]).unwrap();
        let moved = site.move_content();
        let directory = moved.unwrap().unwrap();
        assert_eq!(directory, ".lockstep/lost+found/2/content/0");
    }
    let gone = site.move_content();
    assert_eq!(gone.unwrap(), None);
    for (name, first) in [("7", 0), ("7.1", 1), ("7.2", 2)] {
        let kept = site.read(&format!("content/0/{name}")).unwrap();
        assert_eq!(kept[0], first);
    }
}

/// Any call of the disk may be the last of the process: either the bytes are kept, or they were not overwritten.
#[test]
fn a_kill_at_any_call_loses_nothing() {
    for verdict in [
        Verdict::CrashBefore,
        Verdict::CrashAfter,
        Verdict::CrashTorn(4096),
    ] {
        kill_at_each_call(verdict);
    }
}

fn kill_at_each_call(verdict: Verdict) {
    let mut killed = 0;
    for nth in 1.. {
        let site = Site::new(400);
        site.disk.set_verdict(nth, verdict);
        site.lost_found.begin(&site.store, generation(), None);
        let ended = overwrite(&site, 0).and_then(|()| overwrite(&site, 3 * PAGE));
        if ended.is_ok() {
            break;
        }
        killed += 1;
        let now = site.disk.read_all(&content_path(ino())).unwrap();
        let kept = site.read("content/0/7.ranges").unwrap_or_default();
        for page in 0..6_u8 {
            let at = usize::from(page) * 4096;
            let is_in_place = now[at..at + 4096] == [page + 1; 4096];
            let is_kept = kept.get(at..at + 4096) == Some(&[page + 1; 4096]);
            assert!(is_in_place || is_kept, "call {nth}, page {page}");
        }
    }
    assert!(killed > 5, "{killed} calls");
}

/// Overwrites three pages, as a resync does.
fn overwrite(site: &Site, at: u64) -> io::Result<()> {
    site.preserve(at..at + 3 * PAGE, None);
    let content = site.store.backing().open(&content_path(ino()))?;
    content.write_at(at, &[77; 3 * 4096])
}
