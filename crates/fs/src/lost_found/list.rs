//! The list of the data that were set aside: a text file, one entry a line, for people.
//!
//! An entry has five fields with a tab between them: the event, the inode, its path, details, and the place of the
//! kept bytes. Bytes of names outside printable ASCII are written as `\xNN`.
//!
//! Invariant: the list never grows beyond [`LIST_BYTES_MAX`]. Its last line then says so.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::io;
use std::sync::Arc;

use lockstep_types::backing::{Backing, BackingFile, replace};
use lockstep_types::{Generation, Ino};

use crate::paths::lost_found_dir;

/// The path of an inode whose path is not known yet.
pub const UNKNOWN_PATH: &str = "?";
/// Most bytes of a list.
const LIST_BYTES_MAX: u64 = 16 << 20;
const HEAD: &str = "\
# What only this node had when it lost its role, and what the resync did to it. docs/operations/roles.md explains this file.
# Fields, with a tab between them: what happened; inode; path; details; where the old bytes lie in the store.
";
const FULL: &str = "# THE LIST IS FULL: what follows is not listed.\n";
/// The entry of a name. Only such entries say the path of an inode by themselves.
pub const NAME_ENTRY: &str = "name";

/// An entry.
pub struct Entry<'a> {
    pub what: &'static str,
    pub ino: Option<Ino>,
    pub path: Path<'a>,
    pub detail: &'a str,
    pub place: &'a str,
}

/// The path in an entry.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    /// An earlier entry of the inode may have it.
    Unknown,
    /// The path.
    Known(&'a str),
}

/// The list of one generation. The file is made with the first entry.
pub struct PreservedList {
    backing: Arc<dyn Backing>,
    generation: Generation,
    file: Option<Arc<dyn BackingFile>>,
    end: u64,
    /// The list takes no more: it is full, or the disk has failed.
    is_closed: bool,
    /// The paths of inodes whose names were lost.
    paths: HashMap<Ino, String>,
}

impl PreservedList {
    /// The list of a generation, which may exist.
    pub fn open(backing: Arc<dyn Backing>, generation: Generation) -> Self {
        let mut list = Self {
            backing,
            generation,
            file: None,
            end: 0,
            is_closed: false,
            paths: HashMap::new(),
        };
        if let Err(error) = list.find() {
            list.fail(&error);
        }
        list
    }

    fn path(&self) -> String {
        format!("{}/list.txt", lost_found_dir(self.generation))
    }

    /// Finds the end of an existing list, and the paths in it.
    fn find(&mut self) -> io::Result<()> {
        let file = match self.backing.open(&self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let text = read(&*file)?;
        self.end = text.len() as u64;
        for line in text.lines() {
            let mut fields = line.split('\t');
            let (what, ino, path) = (fields.next(), fields.next(), fields.next());
            if let (Some(NAME_ENTRY), Some(ino), Some(path)) = (what, ino.and_then(parse_ino), path)
            {
                self.paths.insert(ino, path.to_owned());
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            // A stop has torn the last line.
            file.write_at(self.end, b"\n")?;
            self.end += 1;
        }
        self.file = Some(file);
        Ok(())
    }

    /// The path that an entry has named for an inode.
    pub fn path_of(&self, ino: Ino) -> Option<&str> {
        self.paths.get(&ino).map(String::as_str)
    }

    /// Remembers the path of an inode.
    pub fn remember(&mut self, ino: Ino, path: &str) {
        // An inode of the list: the limit of the list bounds this map, too.
        if !self.is_closed {
            self.paths.insert(ino, path.to_owned());
        }
    }

    /// Adds an entry. A list that cannot be written is given up, with a message in the log.
    pub fn add(&mut self, entry: &Entry<'_>) {
        let path = match entry.path {
            Path::Known(path) => path,
            Path::Unknown => {
                let known = entry.ino.and_then(|ino| self.path_of(ino));
                known.unwrap_or(UNKNOWN_PATH)
            }
        };
        let ino = entry.ino.map_or_else(|| "-".to_owned(), shown_ino);
        let line = format!(
            "{}\t{ino}\t{path}\t{}\t{}\n",
            entry.what, entry.detail, entry.place
        );
        if self.is_closed {
            return;
        }
        let appended = if self.end + line.len() as u64 > LIST_BYTES_MAX {
            self.is_closed = true;
            tracing::warn!(path = self.path(), "the list of what is kept is full");
            self.append(FULL)
        } else {
            self.append(&line)
        };
        if let Err(error) = appended {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.is_closed = true;
        tracing::warn!(%error, path = self.path(), "the list of what is kept cannot be written");
    }

    fn append(&mut self, text: &str) -> io::Result<()> {
        if self.file.is_none() {
            let file = self.backing.open_or_create(&self.path())?;
            file.write_at(0, HEAD.as_bytes())?;
            self.end = HEAD.len() as u64;
            self.file = Some(file);
        }
        if let Some(file) = &self.file {
            file.write_at(self.end, text.as_bytes())?;
            self.end += text.len() as u64;
        }
        Ok(())
    }

    /// The inodes whose paths are not known.
    pub fn without_path(&self) -> io::Result<Vec<Ino>> {
        let Some(file) = &self.file else {
            return Ok(Vec::new());
        };
        let text = read(&**file)?;
        let inos = text.lines().filter_map(|line| {
            let mut fields = line.split('\t').skip(1);
            let (ino, path) = (fields.next()?, fields.next()?);
            (path == UNKNOWN_PATH).then(|| parse_ino(ino)).flatten()
        });
        Ok(inos.collect())
    }

    /// Replaces the list by one with these paths.
    pub fn add_paths(&mut self, paths: &BTreeMap<Ino, String>) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut text = String::new();
        for line in read(&**file)?.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let found = match *fields.as_slice() {
                [_, ino, UNKNOWN_PATH, _, _] => parse_ino(ino).and_then(|ino| paths.get(&ino)),
                _ => None,
            };
            match (found, fields.as_slice()) {
                (Some(path), [what, ino, _, detail, place]) => {
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "{what}\t{ino}\t{path}\t{detail}\t{place}");
                }
                _ => {
                    let _ = writeln!(text, "{line}");
                }
            }
        }
        replace(&*self.backing, &self.path(), text.as_bytes())?;
        self.file = Some(self.backing.open(&self.path())?);
        self.end = text.len() as u64;
        Ok(())
    }
}

fn read(file: &dyn BackingFile) -> io::Result<String> {
    // Paths may make a full list longer.
    let length = file.stat()?.length.min(2 * LIST_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// An inode as the list and the names of content files show it.
fn shown_ino(ino: Ino) -> String {
    format!("{:x}", ino.get())
}

fn parse_ino(text: &str) -> Option<Ino> {
    u64::from_str_radix(text, 16).ok().and_then(Ino::new)
}
