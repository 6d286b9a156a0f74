//! Clients that write records to cells of files and keep account of the acknowledged ones.
//!
//! A *cell* is a range of a file that only one client writes, always whole. Each write of a cell is a *version* with
//! content of its own, so that any found byte tells its version. Cells of different clients lie in one file and share
//! blocks.
//!
//! Invariants: a version is noted as tried before its write and as acknowledged only after the write has returned.
//! The account is in the memory of the test, outside the tested system. A failed write has happened or not, in each
//! block independently; the version that a check finds is final from then on. After a power loss of the primary, each
//! block may hold any version since the one that is known to be on stable storage, and nothing older.

#![allow(dead_code)] // not every test uses all of it

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use lockstep_testbed::chance::{Chance, content, mix};

use crate::writers::Client;

/// The unit in which the nodes order and recover writes.
const BLOCK_BYTES: u64 = 4096;
/// Blocks of each file.
const FILE_BLOCKS: u64 = 256;
/// Lengths of consecutive cells in a file whose cells are not whole blocks.
const ODD_LENGTHS: [u64; 8] = [1, 700, 4096, 5003, 3, 9001, 2048, 33_001];
/// Cells written between two `fsync` calls of a client that calls it.
const FSYNC_INTERVAL: u64 = 8;

/// How a client requests durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    Never,
    EachWrite,
    Fsync,
}

/// Every way.
pub const SYNC_MODES: [SyncMode; 3] = [SyncMode::Never, SyncMode::EachWrite, SyncMode::Fsync];

/// The files that all clients share, and whether their cells are whole blocks.
const SHARED: [(&str, bool); 2] = [("shared-blocks", true), ("shared-odd", false)];

/// A client that writes cells.
pub struct CellWriter {
    sync_mode: SyncMode,
    chance: Chance,
    names: Vec<String>,
    files: Vec<File>,
    cells: Vec<Cell>,
}

impl CellWriter {
    /// Client `number` of `clients`: has a file of its own and its share of the common files. Missing files are made
    /// below `root`.
    pub fn new(root: &Path, number: usize, clients: usize, mut chance: Chance) -> Self {
        let own = (format!("own-{number}"), chance.percent(50));
        let shared = SHARED.map(|(name, whole)| (name.to_owned(), whole));
        let mut cells = Vec::new();
        let mut names = Vec::new();
        for (file, (name, whole_blocks)) in [own].into_iter().chain(shared).enumerate() {
            let made = OpenOptions::new()
                .append(true)
                .create(true)
                .open(root.join(&name));
            made.unwrap();
            let all = ranges(whole_blocks).enumerate();
            let mine = all.filter(|(place, _)| file == 0 || place % clients == number);
            cells.extend(mine.map(|(_, range)| Cell::new(file, range, chance.any())));
            names.push(name);
        }
        Self {
            sync_mode: SYNC_MODES[number % SYNC_MODES.len()],
            chance,
            names,
            files: Vec::new(),
            cells,
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let index = self.chance.within(0..self.cells.len() as u64);
        let cell = &mut self.cells[usize::try_from(index).unwrap()];
        let content = cell.begin();
        self.files[cell.file].write_all_at(&content, cell.offset)?;
        cell.acknowledged();
        if self.sync_mode == SyncMode::EachWrite {
            cell.saved();
        }
        Ok(())
    }
}

impl Client for CellWriter {
    fn name(&self) -> String {
        format!("the writer of {} ({:?})", self.names[0], self.sync_mode)
    }

    fn open(&mut self, root: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true);
        if self.sync_mode == SyncMode::EachWrite {
            options.custom_flags(libc::O_SYNC);
        }
        let opened = self.names.iter().map(|name| options.open(root.join(name)));
        self.files = opened.collect::<io::Result<_>>()?;
        Ok(())
    }

    fn step(&mut self) -> io::Result<()> {
        self.write()?;
        if self.sync_mode == SyncMode::Fsync && self.chance.within(0..FSYNC_INTERVAL) == 0 {
            self.files.iter().try_for_each(File::sync_data)?;
            self.saved();
        }
        Ok(())
    }

    fn close(&mut self) {
        self.files.clear();
    }

    fn saved(&mut self) {
        self.cells.iter_mut().for_each(Cell::saved);
    }

    fn power_lost(&mut self) {
        self.cells.iter_mut().for_each(Cell::power_lost);
    }

    fn copy(&self) -> Box<dyn Client> {
        Box::new(Self {
            sync_mode: self.sync_mode,
            chance: self.chance.clone(),
            names: self.names.clone(),
            files: Vec::new(),
            cells: self.cells.clone(),
        })
    }

    fn check(&mut self, root: &Path) -> Result<(), String> {
        let contents: Vec<Vec<u8>> = self
            .names
            .iter()
            .map(|name| read(&root.join(name)))
            .collect::<io::Result<_>>()
            .map_err(|error| error.to_string())?;
        for cell in &mut self.cells {
            let name = &self.names[cell.file];
            let checked = cell.check(&contents[cell.file]);
            checked.map_err(|wrong| format!("{name}: {wrong}"))?;
        }
        Ok(())
    }
}

/// The content of a file, with zeros up to its full size.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    fs::File::open(path)?.read_to_end(&mut content)?;
    content.resize(usize::try_from(FILE_BLOCKS * BLOCK_BYTES).unwrap(), 0);
    Ok(content)
}

/// Offset and length of each cell of a file.
fn ranges(whole_blocks: bool) -> impl Iterator<Item = (u64, u64)> {
    let lengths: &[u64] = if whole_blocks {
        &[BLOCK_BYTES]
    } else {
        &ODD_LENGTHS
    };
    let mut next = 0;
    let cells = lengths.iter().cycle().map(move |&length| {
        let offset = next;
        next += length;
        (offset, length)
    });
    cells.take_while(|(offset, length)| offset + length <= FILE_BLOCKS * BLOCK_BYTES)
}

/// A range of a file, and the client's account of its content.
#[derive(Clone)]
struct Cell {
    file: usize,
    offset: u64,
    length: usize,
    /// Distinguishes the content of this cell from that of all others.
    key: u64,
    /// The last tried version; 0 is the zeros of a file that was never written.
    last: u64,
    /// The least version that each piece must hold: acknowledged, or found by a check.
    settled: Vec<u64>,
    /// The least version of each piece on stable storage.
    saved: Vec<u64>,
    /// Tried versions that are not acknowledged. A version does not count for a piece that holds a later one.
    in_doubt: Vec<u64>,
}

impl Cell {
    fn new(file: usize, (offset, length): (u64, u64), key: u64) -> Self {
        let length = usize::try_from(length).unwrap();
        let mut cell = Self {
            file,
            offset,
            length,
            key,
            last: 0,
            settled: Vec::new(),
            saved: Vec::new(),
            in_doubt: Vec::new(),
        };
        cell.settled = vec![0; cell.pieces().len()];
        cell.saved.clone_from(&cell.settled);
        cell
    }

    /// Begins the next version, which is in doubt from now on, and returns its content.
    fn begin(&mut self) -> Vec<u8> {
        self.last += 1;
        self.in_doubt.push(self.last);
        self.content(self.last)
    }

    /// Notes that the last version is written.
    fn acknowledged(&mut self) {
        self.settled.fill(self.last);
        self.in_doubt.clear();
    }

    /// Notes that every settled version is on stable storage.
    fn saved(&mut self) {
        self.saved.clone_from(&self.settled);
    }

    /// Notes that every version that is not on stable storage may be lost.
    fn power_lost(&mut self) {
        self.settled.clone_from(&self.saved);
        let first = self.saved.iter().min().map_or(1, |oldest| oldest + 1);
        self.in_doubt = (first..=self.last).collect();
    }

    fn content(&self, version: u64) -> Vec<u8> {
        if version == 0 {
            return vec![0; self.length];
        }
        content(mix(self.key ^ version), self.length)
    }

    /// The parts of the cell by block: a failed write may have reached some of them.
    fn pieces(&self) -> Vec<std::ops::Range<usize>> {
        let end = self.offset + self.length as u64;
        let inner = (self.offset / BLOCK_BYTES + 1) * BLOCK_BYTES;
        let cuts = (inner..end).step_by(usize::try_from(BLOCK_BYTES).unwrap());
        let starts: Vec<u64> = std::iter::once(self.offset).chain(cuts).collect();
        let ends = starts.iter().copied().skip(1).chain([end]);
        let within = |at: u64| usize::try_from(at - self.offset).unwrap();
        let ranges = starts.iter().zip(ends);
        ranges
            .map(|(&start, end)| within(start)..within(end))
            .collect()
    }

    /// Compares the cell with the content of the file, and takes the found versions as final.
    fn check(&mut self, file: &[u8]) -> Result<(), String> {
        let offset = usize::try_from(self.offset).unwrap();
        let found = &file[offset..offset + self.length];
        let mut pieces = Vec::new();
        for (piece, range) in self.pieces().into_iter().enumerate() {
            let settled = &self.settled[piece];
            let later = self.in_doubt.iter().rev().filter(|&tried| tried > settled);
            let mut allowed = later.chain([settled]);
            let holds = |version: u64| self.content(version)[range.clone()] == found[range.clone()];
            match allowed.find(|&&version| holds(version)) {
                Some(version) => pieces.push(*version),
                None => return Err(self.explain(piece, (0..=self.last).rev().find(|&v| holds(v)))),
            }
        }
        self.settled = pieces;
        self.in_doubt.clear();
        Ok(())
    }

    fn explain(&self, piece: usize, found: Option<u64>) -> String {
        let range = &self.pieces()[piece];
        let found = found.map_or("bytes that were never written".to_owned(), |version| {
            format!("version {version}")
        });
        format!(
            "bytes {} to {} of the cell at {} hold {found} instead of version {} (in doubt: {:?})",
            range.start, range.end, self.offset, self.settled[piece], self.in_doubt
        )
    }
}
