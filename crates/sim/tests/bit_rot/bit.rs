//! Which bit of a store turns over.

use std::fmt;

use lockstep_fs::files::content_owner;
use lockstep_sim::disk::Disk;
use lockstep_sim::random::Random;
use lockstep_types::Ino;

/// The key-value store.
pub const NAMESPACE: &str = "namespace.redb";
/// Role and marks.
const ROLE: &str = "role.json";
/// Every file of a store but content and `poisoned.json`, which only a failed disk has.
pub const FILES: [&str; 8] = [
    "format.json",
    ROLE,
    NAMESPACE,
    "log/intent.0",
    "log/intent.1",
    "tables/paw",
    "tables/saw",
    "tables/times",
];

/// Where the frames of a segment of the log begin.
const FRAMES_AT: usize = 4096;
/// What a disk keeps or does not.
const PAGE_BYTES: u64 = 4096;
/// Of a piece of a file that is looked at for bytes.
const PIECE_BYTES: usize = 64;

/// One bit of a disk.
pub struct Bit {
    /// Of which file.
    pub file: String,
    /// Of which byte.
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
    /// A bit of a file, mostly one in a piece that is not like the one before: not in free space or slots.
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

    /// A bit of the content of some file.
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

    /// The inode whose content it is of.
    pub fn ino(&self) -> Option<Ino> {
        content_owner(&self.file)
    }

    /// Turns it over.
    pub fn turn(&self, disk: &Disk) {
        assert!(
            disk.flip_bit(&self.file, self.offset, self.number),
            "{self}"
        );
    }

    /// Whether it is one of the store of a killed process of which no program can tell that it turned
    /// over: in the table of times, for a slot may be stored half, and in the last record of the log,
    /// for its append may not have been over.
    pub fn may_be_lost(&self, disk: &Disk) -> bool {
        self.file == "tables/times" || last_record(disk).is_some_and(|last| last.contains(self))
    }
}

/// The first place from `place` on, by pages, where the disk keeps a byte of a file: a hole does not rot.
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

/// The last record of the log: that of the highest position, see `docs/on-disk.md`.
fn last_record(disk: &Disk) -> Option<Record> {
    let segments = ["log/intent.0", "log/intent.1"].into_iter();
    let last = segments.filter_map(|file| last_of_segment(file, &disk.read_all(file)?));
    last.max_by_key(|record| record.position)
}

fn last_of_segment(file: &str, segment: &[u8]) -> Option<Record> {
    let mut last: Option<Record> = None;
    let mut start = FRAMES_AT;
    // Behind the last may be what the segment had before: of lower positions.
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
