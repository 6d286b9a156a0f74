//! The choice of the bit that changes.

use std::fmt;

use lockstep_fs::paths::content_owner;
use lockstep_sim::disk::Disk;
use lockstep_sim::random::Random;
use lockstep_types::Ino;

/// The key-value store.
pub const NAMESPACE: &str = "namespace.redb";
/// The role file.
const ROLE: &str = "role.json";
/// Every file of a store, except content and its sums, and except `poisoned.json`, which only a failed disk has.
pub const FILES: [&str; 10] = [
    "format.json",
    ROLE,
    NAMESPACE,
    "log/intent.0",
    "log/intent.1",
    "tables/count",
    "tables/delta",
    "tables/paw",
    "tables/saw",
    "tables/times",
];

/// The offset of the first record in a segment of the log.
const FRAMES_AT: usize = 4096;
/// The unit in which a disk has data or a hole.
const PAGE_BYTES: u64 = 4096;
/// The length of the pieces of a file that are compared.
const PIECE_BYTES: usize = 64;

/// One bit of a disk.
pub struct Bit {
    /// The file.
    pub file: String,
    /// The offset of the byte in the file.
    pub offset: u64,
    number: u32,
}

impl fmt::Display for Bit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            offset,
            number,
        } = self;
        write!(f, "bit {number} of byte {offset} of {file}")
    }
}

impl Bit {
    /// Chooses a bit of a file. Most chosen bits are in a piece that differs from the previous
    /// piece, and so not in free space or free slots.
    pub fn of(file: &str, disk: &Disk, random: &mut Random) -> Option<Self> {
        let bytes = disk.read_all(file).filter(|bytes| !bytes.is_empty())?;
        let pieces: Vec<&[u8]> = bytes.chunks(PIECE_BYTES).collect();
        let telling = (1..pieces.len()).filter(|number| pieces[*number] != pieces[*number - 1]);
        let telling: Vec<usize> = std::iter::once(0).chain(telling).collect();
        let place = if random.percent(20) {
            random.below(bytes.len() as u64)
        } else {
            let number = *random.pick(&telling);
            let length = pieces[number].len() as u64;
            (number * PIECE_BYTES) as u64 + random.below(length)
        };
        Some(Self {
            file: file.to_owned(),
            offset: on_the_disk(file, disk, bytes.len() as u64, place)?,
            number: u32::try_from(random.below(8)).unwrap(),
        })
    }

    /// Chooses a bit of the content of some file.
    pub fn of_content(disk: &Disk, random: &mut Random) -> Option<Self> {
        let files = disk.files().into_iter();
        let mut files: Vec<String> = files.filter(|file| content_owner(file).is_some()).collect();
        while !files.is_empty() {
            let file =
                files.swap_remove(usize::try_from(random.below(files.len() as u64)).unwrap());
            if let Some(bit) = Self::of(&file, disk, random) {
                return Some(bit);
            }
        }
        None
    }

    /// Returns the inode of the file, if the bit is in content.
    pub fn ino(&self) -> Option<Ino> {
        content_owner(&self.file)
    }

    /// Changes the bit.
    pub fn turn(&self, disk: &Disk) {
        assert!(
            disk.flip_bit(&self.file, self.offset, self.number),
            "{self}"
        );
    }

    /// Returns whether the change looks like the state that a killed process may leave. In the
    /// table of times, a slot may be half stored. In the last record of the log, the append may be
    /// unfinished.
    pub fn may_be_lost(&self, disk: &Disk) -> bool {
        self.file == "tables/times" || last_record(disk).is_some_and(|last| last.contains(self))
    }
}

/// Returns the first offset from `place` on, by pages, at which the disk holds data of a file. A
/// hole cannot rot.
fn on_the_disk(file: &str, disk: &Disk, length: u64, place: u64) -> Option<u64> {
    let trial = disk.fork();
    let pages = (0..length.div_ceil(PAGE_BYTES)).map(|page| (place + page * PAGE_BYTES) % length);
    let mut kept = pages.filter(|offset| trial.flip_bit(file, *offset, 0));
    kept.next()
}

/// A record in a segment of the log.
struct Record {
    file: String,
    position: u64,
    start: usize,
    end: usize,
}

impl Record {
    fn contains(&self, bit: &Bit) -> bool {
        let offset = usize::try_from(bit.offset).unwrap();
        bit.file == self.file && (self.start..self.end).contains(&offset)
    }
}

/// Returns the last record of the log, which has the highest position (see `docs/on-disk.md`).
fn last_record(disk: &Disk) -> Option<Record> {
    let segments = ["log/intent.0", "log/intent.1"].into_iter();
    let last = segments.filter_map(|file| last_of_segment(file, &disk.read_all(file)?));
    last.max_by_key(|record| record.position)
}

fn last_of_segment(file: &str, segment: &[u8]) -> Option<Record> {
    let mut last: Option<Record> = None;
    let mut start = FRAMES_AT;
    // Records with lower positions, from an earlier use of the segment, may follow the last record.
    while let Some(head) = segment.get(start..start + 40).filter(|head| head[36] != 0) {
        let position = u64::from_le_bytes(head[16..24].try_into().unwrap());
        let payload = u32::from_le_bytes(head[32..36].try_into().unwrap());
        if last.as_ref().is_some_and(|last| position <= last.position) {
            break;
        }
        let end = start + (40 + payload as usize).next_multiple_of(8);
        last = Some(Record {
            file: file.to_owned(),
            position,
            start,
            end,
        });
        start = end;
    }
    last
}
