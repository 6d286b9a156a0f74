//! A client that replaces files as editors and databases do: it writes the new content to a file of another name,
//! syncs that file, renames it over the old one, and often syncs the directory.
//!
//! Invariants: a file is found whole, as one of its versions: the last acknowledged one, or one tried since. After a
//! power loss of the primary, the version is not older than the one on stable storage.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use lockstep_testbed::chance::{Chance, content, mix};

use crate::writers::Client;

/// The directory, below the root.
const DIRECTORY: &str = "replaced";
/// Files in it.
const FILES: usize = 24;
/// Longest content.
const BYTES_MAX: u64 = 20_000;

/// The client's account of a file. Version 0 means that the file does not exist.
#[derive(Clone, Default)]
struct Replaced {
    /// The last tried version.
    last: u64,
    /// The last version that was acknowledged, or found by a check.
    settled: u64,
    /// The last version on stable storage.
    saved: u64,
    /// Tried versions that are not acknowledged.
    in_doubt: Vec<u64>,
}

/// The client.
pub struct Replacer {
    chance: Chance,
    key: u64,
    directory: Option<(PathBuf, File)>,
    files: Vec<Replaced>,
}

impl Replacer {
    /// Makes its directory below `root`.
    pub fn new(root: &Path, mut chance: Chance) -> Self {
        fs::create_dir(root.join(DIRECTORY)).unwrap();
        Self {
            key: chance.any(),
            chance,
            directory: None,
            files: (0..FILES).map(|_| Replaced::default()).collect(),
        }
    }

    fn content(&self, index: usize, version: u64) -> Vec<u8> {
        let start = mix(self.key ^ (index as u64) << 32 ^ version);
        let length = usize::try_from(1 + start % BYTES_MAX).unwrap();
        content(start, length)
    }

    /// Writes the new content under another name, durably in one of two ways, and renames the file.
    fn replace(&mut self, index: usize, version: u64) -> io::Result<()> {
        let (path, _) = self.directory.as_ref().expect("the client is open");
        let [draft, name] = [format!("{index}.new"), index.to_string()].map(|name| path.join(name));
        let by_each_write = self.chance.percent(50);
        let flags = if by_each_write { libc::O_SYNC } else { 0 };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let mut file = options.custom_flags(flags).open(&draft)?;
        file.write_all(&self.content(index, version))?;
        if !by_each_write {
            file.sync_all()?;
        }
        fs::rename(draft, name)
    }

    fn check_file(&self, directory: &Path, index: usize) -> Result<u64, String> {
        let found = match fs::read(directory.join(index.to_string())) {
            Ok(content) => Some(content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{index}: {error}")),
        };
        let holds = |version: u64| {
            let expected = (version > 0).then(|| self.content(index, version));
            expected == found
        };
        let file = &self.files[index];
        let mut allowed = file.in_doubt.iter().rev().chain([&file.settled]).copied();
        allowed.find(|&version| holds(version)).ok_or_else(|| {
            let version = (0..=file.last).rev().find(|&version| holds(version));
            let length = found.as_ref().map(Vec::len);
            format!(
                "{index} holds version {version:?} ({length:?} bytes) instead of {} (in doubt: {:?})",
                file.settled, file.in_doubt
            )
        })
    }
}

impl Client for Replacer {
    fn name(&self) -> String {
        "the client that replaces files".to_owned()
    }

    fn open(&mut self, root: &Path) -> io::Result<()> {
        let path = root.join(DIRECTORY);
        let directory = File::open(&path)?;
        self.directory = Some((path, directory));
        Ok(())
    }

    fn step(&mut self) -> io::Result<()> {
        let index = usize::try_from(self.chance.within(0..FILES as u64)).unwrap();
        let file = &mut self.files[index];
        file.last += 1;
        file.in_doubt.push(file.last);
        let version = file.last;
        self.replace(index, version)?;
        let file = &mut self.files[index];
        file.settled = version;
        file.in_doubt.clear();
        if self.chance.percent(50) {
            let (_, directory) = self.directory.as_ref().expect("the client is open");
            directory.sync_all()?;
            self.saved();
        }
        Ok(())
    }

    fn close(&mut self) {
        self.directory = None;
    }

    fn saved(&mut self) {
        for file in &mut self.files {
            file.saved = file.settled;
        }
    }

    fn power_lost(&mut self) {
        for file in &mut self.files {
            file.settled = file.saved;
            file.in_doubt = (file.saved + 1..=file.last).collect();
        }
    }

    fn copy(&self) -> Box<dyn Client> {
        Box::new(Self {
            chance: self.chance.clone(),
            key: self.key,
            directory: None,
            files: self.files.clone(),
        })
    }

    fn check(&mut self, root: &Path) -> Result<(), String> {
        let directory = root.join(DIRECTORY);
        for index in 0..FILES {
            let version = self.check_file(&directory, index)?;
            let file = &mut self.files[index];
            file.settled = version;
            file.in_doubt.clear();
        }
        Ok(())
    }
}
