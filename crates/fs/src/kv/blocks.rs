//! A file of 4 KiB blocks, each with a checksum that is compared whenever it is read.
//!
//! The store above compares its own checksums only after a crash. Below it, this layer makes every changed, moved or
//! missing byte an error at the moment it is read, wherever it lies: in a value, a key, or the pages that lead to them.
//! (A value's own checksum would not tell that its key was lost.) It never answers with bytes that were not written at
//! this place.
//!
//! On the disk: the header in the first 512 bytes, then from 4096 on block 1, 2, … of 4096 + 16
//! bytes. The hash of a block is BLAKE3 keyed by the block's number, truncated. Block 0 of the
//! space above is its header, at most [`HEADER_BYTES_MAX`] long; beside it lies the length of the
//! space, as a power loss may leave the file itself longer.
//!
//! Invariants, with the media assumptions of `lockstep_types::backing`:
//! - The header fills one sector, so it is written whole or not at all, in place. A header that does not match its
//!   checksum is damaged, and the file is refused. (A second copy to fall back to could silently undo a commit.)
//! - The file is cut only after a header with the new length was synced.
//! - An opened file is synced before it is changed: a killed process may have left its last header in memory only.
//! - A power loss may tear blocks that were not synced. The store above must not read torn blocks, and so has to sync
//!   its blocks before it writes the header that leads to them.
//! - After a failed sync nothing more is written or synced.
//! - An opened file is on trial until it is accepted, and is not changed before. So a damaged file stays unchanged.

use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_types::backing::BackingFile;
use parking_lot::Mutex;

/// The unit of reading and writing, in bytes of the space above.
pub const BLOCK_BYTES: u64 = CONTENT as u64;

/// Longest header, in bytes at the start of block 0.
pub const HEADER_BYTES_MAX: usize = SECTOR_BYTES - SECTOR_HEADER_AT - HASH_BYTES;

/// Version of the layout that this file describes.
pub const BLOCKS_VERSION: u32 = 1;

const CONTENT: usize = 4096;
const HASH_BYTES: usize = 16;
const STORED: usize = CONTENT + HASH_BYTES;
const STORED_BYTES: u64 = STORED as u64;
const SECTOR_BYTES: usize = 512;
const SECTOR_HEADER_AT: usize = 24;
const BLOCKS_AT: u64 = 4096;
const MAGIC: [u8; 8] = *b"lockstKV";

/// A defect of the file; the source of the [`io::Error`] of a call.
#[derive(Debug, thiserror::Error)]
pub enum BlockFault {
    /// The bytes are not the written ones.
    #[error("{0}")]
    Damaged(String),
    /// Made by a newer program.
    #[error("layout version {0} is newer than {BLOCKS_VERSION}")]
    Newer(u32),
    /// An earlier sync failed.
    #[error("an earlier sync failed")]
    Stopped,
}

impl From<BlockFault> for io::Error {
    fn from(fault: BlockFault) -> Self {
        Self::new(io::ErrorKind::InvalidData, fault)
    }
}

fn damaged(what: impl Into<String>) -> io::Error {
    BlockFault::Damaged(what.into()).into()
}

/// The content of the first sector.
struct Sector {
    /// Blocks of the space, with the header.
    blocks: u64,
    header: Vec<u8>,
}

/// Lengths, in blocks, with the header.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    /// Of the space.
    space: u64,
    /// Of the space, by the last written header.
    recorded: u64,
    /// Of the file. Never less than the last synced header says.
    file: u64,
    /// Below which the file is not cut.
    kept: u64,
}

/// Whether the file may be changed.
enum Trial {
    /// It may.
    Over,
    /// Not yet; this header is to be written when it may.
    On { header: Option<Vec<u8>> },
}

/// A file of checksummed blocks. One writer at a time; any number of readers.
pub struct BlockFile {
    file: Arc<dyn BackingFile>,
    lengths: Mutex<Lengths>,
    trial: Mutex<Trial>,
    stopped: AtomicBool,
}

impl fmt::Debug for BlockFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockFile")
            .field("lengths", &*self.lengths.lock())
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl BlockFile {
    /// Makes `file` an empty space. It can be opened again once a header was written and synced,
    /// so it should get its final name only after that.
    pub fn create(file: Arc<dyn BackingFile>) -> io::Result<Self> {
        file.set_len(0)?;
        Ok(Self::new(file, Lengths::default(), Trial::Over))
    }

    /// Opens a file made by [`BlockFile::create`]. It is on trial until [`BlockFile::accept`].
    pub fn open(file: Arc<dyn BackingFile>) -> io::Result<Self> {
        let recorded = read_sector(&*file)?.blocks;
        let length = file.stat()?.length;
        if length < stored_length(recorded) {
            return Err(damaged(format!("it was cut to {length} bytes")));
        }
        let lengths = Lengths {
            space: recorded,
            recorded,
            file: blocks_within(length),
            kept: 0,
        };
        Ok(Self::new(file, lengths, Trial::On { header: None }))
    }

    fn new(file: Arc<dyn BackingFile>, lengths: Lengths, trial: Trial) -> Self {
        Self {
            file,
            lengths: Mutex::new(lengths),
            trial: Mutex::new(trial),
            stopped: AtomicBool::new(false),
        }
    }

    /// Ends the trial and writes the withheld header. The header is not durable yet: it only marks the file as in use,
    /// and reaches the disk before any other change.
    ///
    /// A process that was killed may have left its last header in memory only. The store above reads that header, and is about to
    /// write over blocks that only the header before leads to. So the content of the file is put on stable storage first.
    pub fn accept(&self) -> io::Result<()> {
        self.file.sync().inspect_err(|_| self.stop())?;
        let trial = mem::replace(&mut *self.trial.lock(), Trial::Over);
        if let Trial::On {
            header: Some(header),
        } = trial
        {
            self.write_header(&header)?;
        }
        Ok(())
    }

    /// While on trial, only the header may change.
    fn check_not_on_trial(&self) -> io::Result<()> {
        match *self.trial.lock() {
            Trial::Over => Ok(()),
            Trial::On { .. } => Err(damaged("it cannot be read without a repair")),
        }
    }

    /// Whether a sync failed, or [`Self::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Refuses every write and sync from now on.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    fn check_running(&self) -> io::Result<()> {
        if self.is_stopped() {
            return Err(BlockFault::Stopped.into());
        }
        Ok(())
    }

    /// Bytes in the space above: a multiple of [`BLOCK_BYTES`].
    pub fn length(&self) -> u64 {
        self.lengths.lock().space * BLOCK_BYTES
    }

    /// Grows or cuts the space above to a multiple of [`BLOCK_BYTES`], durably once a header was
    /// written and synced after it. New blocks cannot be read until they are written.
    pub fn set_length(&self, length: u64) -> io::Result<()> {
        self.check_running()?;
        self.check_not_on_trial()?;
        if !length.is_multiple_of(BLOCK_BYTES) {
            return Err(misuse("a length that is no multiple of a block"));
        }
        let blocks = length / BLOCK_BYTES;
        let mut lengths = self.lengths.lock();
        if blocks > lengths.file {
            self.file.set_len(stored_length(blocks))?;
            lengths.file = blocks;
        }
        lengths.space = blocks;
        Ok(())
    }

    /// Never cuts the file below a length in bytes from now on.
    pub fn keep(&self, bytes: u64) {
        self.lengths.lock().kept = blocks_within(bytes);
    }

    /// Reserves disk space for a file of this length in bytes, and keeps that. The space survives a power loss after the
    /// next sync.
    pub fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.check_running()?;
        self.check_not_on_trial()?;
        self.keep(bytes);
        let mut lengths = self.lengths.lock();
        let blocks = lengths.kept;
        self.file.allocate(0, stored_length(blocks), false)?;
        lengths.file = lengths.file.max(blocks);
        Ok(())
    }

    /// The newest header, as it was written.
    pub fn header(&self) -> io::Result<Vec<u8>> {
        if let Trial::On {
            header: Some(header),
        } = &*self.trial.lock()
        {
            return Ok(header.clone());
        }
        Ok(read_sector(&*self.file)?.header)
    }

    /// Reads whole blocks, or the start of the header.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if offset == 0 {
            let header = self.header()?;
            let start = header
                .get(..into.len())
                .ok_or_else(|| misuse("a read beyond the header"))?;
            into.copy_from_slice(start);
            return Ok(());
        }
        let first = block_number(offset, into.len())?;
        let mut stored = vec![0; stored_bytes(into.len())];
        let count = self.file.read_at(stored_at(first), &mut stored)?;
        if count < stored.len() {
            return Err(damaged(format!("the file ends within block {first}")));
        }
        let blocks = stored.as_chunks::<STORED>().0;
        let targets = into.as_chunks_mut::<CONTENT>().0;
        for ((number, block), target) in (first..).zip(blocks).zip(targets) {
            target.copy_from_slice(verified(number, block)?);
        }
        Ok(())
    }

    /// Writes whole blocks, or the header (at offset 0, replacing all of it).
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_running()?;
        if offset == 0 {
            return match &mut *self.trial.lock() {
                Trial::On { header } => {
                    *header = Some(data.to_vec());
                    Ok(())
                }
                Trial::Over => self.write_header(data),
            };
        }
        self.check_not_on_trial()?;
        let first = block_number(offset, data.len())?;
        let mut stored = Vec::with_capacity(stored_bytes(data.len()));
        for (number, block) in (first..).zip(data.as_chunks::<CONTENT>().0) {
            stored.extend_from_slice(block);
            stored.extend_from_slice(&hash(number, block));
        }
        self.file.write_at(stored_at(first), &stored)
    }

    fn write_header(&self, header: &[u8]) -> io::Result<()> {
        let mut lengths = self.lengths.lock();
        let sector = encode_sector(lengths.space, header)?;
        self.file.write_at(0, &sector)?;
        lengths.recorded = lengths.space;
        Ok(())
    }

    /// Returns once everything written before is on stable storage.
    pub fn sync(&self) -> io::Result<()> {
        self.check_running()?;
        if matches!(*self.trial.lock(), Trial::On { .. }) {
            return Ok(());
        }
        let recorded = self.lengths.lock().recorded;
        self.file.sync().inspect_err(|_| self.stop())?;
        self.cut(recorded);
        Ok(())
    }

    /// Cuts the part of the file that neither the space nor the synced header needs, and that is not kept. If this fails,
    /// the file stays longer, which is harmless.
    fn cut(&self, synced: u64) {
        let mut lengths = self.lengths.lock();
        let needed = synced.max(lengths.space).max(lengths.kept);
        if needed < lengths.file && self.file.set_len(stored_length(needed)).is_ok() {
            lengths.file = needed;
        }
    }
}

fn misuse(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

/// Length of a file of this many blocks, with the header.
fn stored_length(blocks: u64) -> u64 {
    match blocks {
        0 => 0,
        blocks => BLOCKS_AT.saturating_add((blocks - 1).saturating_mul(STORED_BYTES)),
    }
}

/// Most blocks of a file of this length, with the header.
fn blocks_within(bytes: u64) -> u64 {
    1 + bytes.saturating_sub(BLOCKS_AT) / STORED_BYTES
}

fn stored_at(number: u64) -> u64 {
    BLOCKS_AT + (number - 1) * STORED_BYTES
}

fn stored_bytes(bytes: usize) -> usize {
    bytes + bytes / CONTENT * HASH_BYTES
}

/// Number of the block at `offset`; both must be on block boundaries, after the header.
fn block_number(offset: u64, bytes: usize) -> io::Result<u64> {
    let whole = offset.is_multiple_of(BLOCK_BYTES) && bytes.is_multiple_of(CONTENT);
    if whole {
        Ok(offset / BLOCK_BYTES)
    } else {
        Err(misuse("a range that is not of whole blocks"))
    }
}

/// The hash is keyed by position, so a block in the wrong place does not match.
fn hash(position: u64, content: &[u8]) -> [u8; HASH_BYTES] {
    let mut key = [0; 32];
    for (to, from) in key.iter_mut().zip(position.to_le_bytes()) {
        *to = from;
    }
    let hash = blake3::keyed_hash(&key, content);
    let [first, ..] = hash.as_bytes().as_chunks().0 else {
        unreachable!("a BLAKE3 hash has 32 bytes")
    };
    *first
}

fn verified(number: u64, stored: &[u8; STORED]) -> io::Result<&[u8]> {
    let (content, found) = stored.split_at(CONTENT);
    if hash(number, content) != found {
        let at = stored_at(number);
        return Err(damaged(format!(
            "the checksum of the {BLOCK_BYTES} bytes at {at} does not match them"
        )));
    }
    Ok(content)
}

/// The position that the header's hash is keyed by.
const HEADER_POSITION: u64 = 0;

fn encode_sector(blocks: u64, header: &[u8]) -> io::Result<Vec<u8>> {
    if header.len() > HEADER_BYTES_MAX {
        return Err(misuse("a header that is too long"));
    }
    let length = u32::try_from(header.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(SECTOR_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&BLOCKS_VERSION.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&blocks.to_le_bytes());
    bytes.extend_from_slice(header);
    bytes.resize(SECTOR_BYTES - HASH_BYTES, 0);
    let hash = hash(HEADER_POSITION, &bytes);
    bytes.extend_from_slice(&hash);
    Ok(bytes)
}

fn read_sector(file: &dyn BackingFile) -> io::Result<Sector> {
    let mut bytes = [0; SECTOR_BYTES];
    if file.read_at(0, &mut bytes)? < SECTOR_BYTES {
        return Err(damaged("it is too short to have a header"));
    }
    decode_sector(&bytes)
}

/// Every version keeps magic number, version and hash in these places.
fn decode_sector(bytes: &[u8; SECTOR_BYTES]) -> io::Result<Sector> {
    let (content, found) = bytes.split_at(SECTOR_BYTES - HASH_BYTES);
    if !content.starts_with(&MAGIC) {
        return Err(damaged("it does not begin as a metadata store does"));
    }
    if hash(HEADER_POSITION, content) != found {
        return Err(damaged("the checksum of the header does not match it"));
    }
    let version = u32::from_le_bytes(field(content, 8)?);
    if version > BLOCKS_VERSION {
        return Err(BlockFault::Newer(version).into());
    }
    let length = u32::from_le_bytes(field(content, 12)?) as usize;
    let header = content
        .get(SECTOR_HEADER_AT..SECTOR_HEADER_AT + length)
        .ok_or_else(|| damaged("the header is longer than can be"))?;
    Ok(Sector {
        blocks: u64::from_le_bytes(field(content, 16)?),
        header: header.to_vec(),
    })
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk().copied())
        .ok_or_else(|| damaged("a header is cut short"))
}
