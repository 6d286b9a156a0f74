//! The two segment files: their names, headers, creation, and how they belong together.
//!
//! Invariants: the header of segment n+1 is written only when segment n is complete and synced, and segment
//! n-1, whose file it takes, is not needed any more. The new header does not overwrite the header of n-1. It
//! lies in the other of two places, so a crash in the middle of the header changes nothing.

use std::io;
use std::sync::Arc;

use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{DatastoreUuid, Hash128};

use crate::error::LogError;
use crate::frame::Salt;
use crate::position::Position;

/// Bytes of a segment file unless the options say otherwise.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// Offset of the first frame of a segment: after one page for the header.
pub(crate) const FRAMES_START: u64 = BLOCK_BYTES as u64;

/// Used bytes of the header.
const HEADER_BYTES: usize = 88;

/// Bytes of the header that the hash covers: all bytes before the hash.
const HASHED_BYTES: usize = HEADER_BYTES - 16;

/// Distance of the two places for headers.
const PLACE_BYTES: usize = BLOCK_BYTES / 2;

const MAGIC: [u8; 8] = *b"LSINTENT";
const FORMAT_VERSION: u32 = 1;

/// Number of the first segment with records. The segment before it stays empty.
const FIRST_NUMBER: u64 = 2;

/// Choices made by the owner of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes of each segment file, a multiple of 4 KiB and at least 8 KiB. Used when the log is created;
    /// afterwards the header knows it.
    pub segment_bytes: u64,
    /// Bytes that no client knows, so that no client can forge a frame. Used when the log is created. Random
    /// by default; a simulator sets it.
    pub salt: [u8; 16],
    /// The end of the owner's last checkpoint: records before it need not be replayed. `None` replays every
    /// record that is not known to be covered by a checkpoint.
    pub keep_from: Option<Position>,
    /// No power was lost since the last opening: every append that returned survives, and only the last
    /// record may be torn. An owner that is not certain leaves it false.
    pub is_whole: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES,
            salt: *DatastoreUuid::random().as_bytes(),
            keep_from: None,
            is_whole: false,
        }
    }
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) number: u64,
    pub(crate) segment_bytes: u64,
    /// Position of the first frame.
    pub(crate) base: Position,
    /// Position where the previous segment ended.
    pub(crate) before_end: Position,
    /// When the segment was begun, no record before this position was needed.
    pub(crate) cut: Position,
    pub(crate) salt: Salt,
}

/// Bytes of both segments.
pub(crate) const fn capacity(segment_bytes: u64) -> u64 {
    segment_bytes.saturating_mul(2)
}

impl SegmentHeader {
    /// The header of the next segment; this segment ends at `end`.
    pub(crate) const fn next(&self, end: Position, cut: Position) -> Self {
        Self {
            number: self.number.saturating_add(1),
            base: end.plus(capacity(self.segment_bytes)),
            before_end: end,
            cut,
            ..*self
        }
    }

    /// Offset of the header in its file. Consecutive segments in one file use the two places alternately.
    const fn place(&self) -> u64 {
        self.number / 2 % 2 * PLACE_BYTES as u64
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend((!FORMAT_VERSION).to_le_bytes());
        let positions = [self.base, self.before_end, self.cut].map(Position::get);
        for number in [self.number, self.segment_bytes].iter().chain(&positions) {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.salt);
        bytes.extend(Hash128::of(&bytes).0);
        bytes
    }

    fn decode(path: &str, bytes: &[u8; HEADER_BYTES]) -> Result<Self, LogError> {
        let (hashed, hash) = bytes.split_at(HASHED_BYTES);
        let [magic, version, fields @ .., salt0, salt1] = hashed.as_chunks::<8>().0 else {
            unreachable!("the hashed part of a header is nine words")
        };
        if *magic != MAGIC {
            let path = path.to_owned();
            return Err(LogError::NotALog { path });
        }
        check_version(path, *version)?;
        let [number, segment_bytes, base, before_end, cut] = fields else {
            unreachable!("five words lie between version and salt")
        };
        if Hash128::of(hashed).0 != hash {
            return Err(damaged_header(path, "the checksum of its header is wrong"));
        }
        let mut salt = [0; 16];
        salt.copy_from_slice([*salt0, *salt1].as_flattened());
        Ok(Self {
            number: u64::from_le_bytes(*number),
            segment_bytes: u64::from_le_bytes(*segment_bytes),
            base: Position::new(u64::from_le_bytes(*base)),
            before_end: Position::new(u64::from_le_bytes(*before_end)),
            cut: Position::new(u64::from_le_bytes(*cut)),
            salt,
        })
    }
}

/// The complement tells a newer version from a damaged one.
fn check_version(path: &str, word: [u8; 8]) -> Result<(), LogError> {
    let [v0, v1, v2, v3, c0, c1, c2, c3] = word;
    let found = u32::from_le_bytes([v0, v1, v2, v3]);
    if found != !u32::from_le_bytes([c0, c1, c2, c3]) || found == 0 {
        return Err(damaged_header(path, "its format version is unreadable"));
    }
    if found > FORMAT_VERSION {
        return Err(LogError::NewerFormat {
            path: path.to_owned(),
            found,
            supported: FORMAT_VERSION,
        });
    }
    Ok(())
}

fn damaged_header(path: &str, cause: &str) -> LogError {
    LogError::Damaged {
        path: path.to_owned(),
        position: Position::START,
        cause: cause.to_owned(),
    }
}

/// An open segment file.
#[derive(Clone)]
pub(crate) struct SegmentFile {
    pub(crate) path: String,
    pub(crate) file: Arc<dyn BackingFile>,
}

impl SegmentFile {
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), LogError> {
        let written = self.file.write_at(offset, bytes);
        written.map_err(LogError::io("write", &self.path))
    }

    pub(crate) fn sync(&self) -> Result<(), LogError> {
        self.file.sync().map_err(LogError::io("sync", &self.path))
    }

    pub(crate) fn write_header(&self, header: &SegmentHeader) -> Result<(), LogError> {
        self.write(header.place(), &header.encode())
    }

    fn open(backing: &dyn Backing, path: String) -> Result<Self, LogError> {
        match backing.open(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(LogError::Missing { path })
            }
            Err(error) => Err(LogError::io("open", &path)(error)),
        }
    }

    fn read_header(&self) -> Result<FoundHeader, LogError> {
        let stat = self.file.stat();
        let length = stat.map_err(LogError::io("look at", &self.path))?.length;
        let mut page = [0; BLOCK_BYTES];
        let read = self.file.read_at(0, &mut page);
        let read = read.map_err(LogError::io("read", &self.path))?;
        if read < BLOCK_BYTES && looks_like_ours(page.get(..read).unwrap_or(&[])) {
            return Err(self.truncated(length, FRAMES_START));
        }
        let found = FoundHeader::choose(&self.path, &page)?;
        if length < found.header.segment_bytes {
            return Err(self.truncated(length, found.header.segment_bytes));
        }
        Ok(found)
    }

    pub(crate) fn truncated(&self, length: u64, expected: u64) -> LogError {
        LogError::Truncated {
            path: self.path.clone(),
            length,
            expected,
        }
    }
}

/// Whether the first bytes of a truncated file are those of a log. Zeros may stand at the place of a header.
fn looks_like_ours(bytes: &[u8]) -> bool {
    let first = bytes.get(..bytes.len().min(MAGIC.len())).unwrap_or(&[]);
    MAGIC.starts_with(first) || first.iter().all(|&byte| byte == 0)
}

/// The newest valid header of a file.
#[derive(Clone, Copy)]
pub(crate) struct FoundHeader {
    pub(crate) header: SegmentHeader,
    /// The other place holds bytes that are no header: a crash in the middle of beginning the next segment
    /// left them, or the header of a begun segment is damaged.
    pub(crate) suspect: bool,
}

impl FoundHeader {
    /// Reads the headers at both places.
    fn choose(path: &str, page: &[u8; BLOCK_BYTES]) -> Result<Self, LogError> {
        let (first, second) = page.split_at(PLACE_BYTES);
        let [first, second] = [first, second].map(|place| at_place(path, place));
        match (first?, second?) {
            (RecordPlace::Header(a), RecordPlace::Header(b)) => Ok(Self {
                header: if a.number > b.number { a } else { b },
                suspect: false,
            }),
            (RecordPlace::Header(header), other) | (other, RecordPlace::Header(header)) => {
                Ok(Self {
                    header,
                    suspect: !matches!(other, RecordPlace::Empty),
                })
            }
            (RecordPlace::Damaged(error), _) | (_, RecordPlace::Damaged(error)) => Err(error),
            (
                RecordPlace::Empty | RecordPlace::Foreign,
                RecordPlace::Empty | RecordPlace::Foreign,
            ) => {
                let path = path.to_owned();
                Err(LogError::NotALog { path })
            }
        }
    }
}

/// The content of one place for a header.
enum RecordPlace {
    Empty,
    Foreign,
    Damaged(LogError),
    Header(SegmentHeader),
}

/// A newer format is an error, even if the other place holds a valid header.
fn at_place(path: &str, place: &[u8]) -> Result<RecordPlace, LogError> {
    let Some(bytes) = place.first_chunk() else {
        unreachable!("a header fits its place")
    };
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(RecordPlace::Empty);
    }
    match SegmentHeader::decode(path, bytes) {
        Ok(header) => Ok(RecordPlace::Header(header)),
        Err(LogError::NotALog { .. }) => Ok(RecordPlace::Foreign),
        Err(error @ LogError::NewerFormat { .. }) => Err(error),
        Err(error) => Ok(RecordPlace::Damaged(error)),
    }
}

/// The two files. The parity of a segment's number tells its file.
#[derive(Clone)]
pub(crate) struct Segments {
    even: SegmentFile,
    odd: SegmentFile,
}

impl Segments {
    /// Opens both files. Returns the headers of the older and the current segment.
    pub(crate) fn open(
        backing: &dyn Backing,
        dir: &str,
    ) -> Result<(Self, FoundHeader, SegmentHeader), LogError> {
        let segments = Self {
            even: SegmentFile::open(backing, path(dir, 0))?,
            odd: SegmentFile::open(backing, path(dir, 1))?,
        };
        let (even, odd) = (segments.even.read_header()?, segments.odd.read_header()?);
        let (older, current) = if even.header.number < odd.header.number {
            (even, odd)
        } else {
            (odd, even)
        };
        let in_place = even.header.number.is_multiple_of(2);
        if !in_place || !belong_together(&older.header, &current.header) {
            let cause = "the two files of the log do not belong together";
            let path = &segments.of(older.header.number).path;
            return Err(damaged_header(path, cause));
        }
        Ok((segments, older, current.header))
    }

    /// The file of segment `number`.
    pub(crate) const fn of(&self, number: u64) -> &SegmentFile {
        if number.is_multiple_of(2) {
            &self.even
        } else {
            &self.odd
        }
    }
}

fn belong_together(older: &SegmentHeader, current: &SegmentHeader) -> bool {
    older.number.checked_add(1) == Some(current.number)
        && older.segment_bytes == current.segment_bytes
        && older.salt == current.salt
        && older.base <= current.before_end
        && current.before_end <= current.base
}

fn path(dir: &str, file: u64) -> String {
    format!("{dir}/intent.{file}")
}

/// Creates an empty log in `dir`, durably. `intent.0` gets its name last: if it exists, the log is complete.
/// After a crash before that, creating the log again is enough.
pub(crate) fn create(
    backing: &dyn Backing,
    dir: &str,
    options: &LogOptions,
) -> Result<(), LogError> {
    check_segment_bytes(options.segment_bytes)?;
    let (even, odd) = (path(dir, 0), path(dir, 1));
    if backing
        .exists(&even)
        .map_err(LogError::io("look for", &even))?
    {
        return Err(LogError::Exists { path: even });
    }
    let first = SegmentHeader {
        number: FIRST_NUMBER,
        segment_bytes: options.segment_bytes,
        base: Position::START,
        before_end: Position::START,
        cut: Position::START,
        salt: options.salt,
    };
    let before = SegmentHeader {
        number: FIRST_NUMBER - 1,
        ..first
    };
    make_file(backing, &odd, &before)?;
    let new = format!("{even}.new");
    make_file(backing, &new, &first)?;
    let renamed = backing.rename(&new, &even);
    renamed.map_err(LogError::io("name", &even))?;
    sync_names(backing, dir)
}

fn check_segment_bytes(bytes: u64) -> Result<(), LogError> {
    let cause = if !bytes.is_multiple_of(FRAMES_START) {
        "it must be a multiple of 4096"
    } else if bytes < 2 * FRAMES_START {
        "it must be at least 8192"
    } else if bytes > u64::from(u32::MAX) {
        "it must be below 4 GiB"
    } else {
        return Ok(());
    };
    Err(LogError::BadSegmentBytes { bytes, cause })
}

/// Zeros are written, not only reserved: the first sync of a reserved page changes the metadata of the file,
/// which halves the speed of the sync.
fn make_file(backing: &dyn Backing, path: &str, header: &SegmentHeader) -> Result<(), LogError> {
    let made = backing
        .open_or_create(path)
        .and_then(|file| fill(&*file, header));
    made.map_err(LogError::io("make", path))
}

fn fill(file: &dyn BackingFile, header: &SegmentHeader) -> io::Result<()> {
    let bytes = header.segment_bytes;
    file.set_len(0)?;
    file.allocate(0, bytes, false)?;
    let zeros = vec![0; 1 << 20];
    for offset in (0..bytes).step_by(zeros.len()) {
        let rest = usize::try_from(bytes - offset).unwrap_or(usize::MAX);
        file.write_at(offset, zeros.get(..rest).unwrap_or(&zeros))?;
    }
    file.write_at(header.place(), &header.encode())?;
    file.sync()
}

/// Makes the names in `dir`, and `dir` itself, survive a power loss.
fn sync_names(backing: &dyn Backing, dir: &str) -> Result<(), LogError> {
    let parent = dir.rsplit_once('/').map_or("", |(parent, _)| parent);
    for name in [dir, parent] {
        let synced = backing.sync_dir(name);
        synced.map_err(LogError::io("sync the directory of", dir))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            number: 7,
            segment_bytes: 8192,
            base: Position::new(100),
            before_end: Position::new(90),
            cut: Position::new(80),
            salt: [3; 16],
        }
    }

    fn bytes() -> [u8; HEADER_BYTES] {
        header().encode().try_into().unwrap()
    }

    #[test]
    fn header_round_trips_and_knows_every_flipped_bit() {
        assert_eq!(SegmentHeader::decode("f", &bytes()).unwrap(), header());
        for at in 0..HEADER_BYTES {
            for bit in 0..8 {
                let mut flipped = bytes();
                flipped[at] ^= 1 << bit;
                let error = SegmentHeader::decode("f", &flipped).unwrap_err();
                let foreign = matches!(error, LogError::NotALog { .. });
                assert_eq!(foreign, at < 8, "byte {at}: {error}");
                assert!(foreign || matches!(error, LogError::Damaged { .. }));
            }
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let mut newer = bytes();
        newer[8..12].copy_from_slice(&9u32.to_le_bytes());
        newer[12..16].copy_from_slice(&(!9u32).to_le_bytes());
        let error = SegmentHeader::decode("f", &newer).unwrap_err();
        assert!(matches!(error, LogError::NewerFormat { found: 9, .. }));
    }

    #[test]
    fn segments_that_are_no_neighbours_are_refused() {
        let next = header().next(Position::new(120), Position::new(110));
        assert!(belong_together(&header(), &next));
        assert!(next.base > next.before_end.plus(8192));
        let later = next.next(next.base, next.cut);
        assert!(!belong_together(&header(), &later));
        let foreign = SegmentHeader {
            salt: [4; 16],
            ..next
        };
        assert!(!belong_together(&header(), &foreign));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for bytes in [0, 4096, 8191, 1 << 40] {
            assert!(check_segment_bytes(bytes).is_err());
        }
        assert!(check_segment_bytes(8192).is_ok());
    }
}
