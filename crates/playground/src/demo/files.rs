//! The demo's files: a tree of small ones and one large one, written and compared.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::bytes::fill;

/// The large file is written and read in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;
/// Small files have up to this size.
const SMALL_BYTES_MAX: u64 = 16 << 10;
/// First seed of the large file: it differs from the seeds of the small files.
const LARGE_SEED: u64 = 1 << 40;

/// The directory of the small files.
pub(super) const TREE: &str = "tree";

/// The set of files. The content of a file follows from its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemoFiles {
    directories: u64,
    per_directory: u64,
    large_pieces: u64,
}

impl DemoFiles {
    /// 2,000 small files and one of 256 MiB.
    pub(super) const fn standard() -> Self {
        Self {
            directories: 40,
            per_directory: 50,
            large_pieces: 256,
        }
    }

    pub(super) const fn directories(&self) -> u64 {
        self.directories
    }

    pub(super) const fn tree_files(&self) -> u64 {
        self.directories * self.per_directory
    }

    pub(super) const fn large_bytes(&self) -> u64 {
        self.large_pieces * PIECE_BYTES as u64
    }

    /// Writes the small files.
    pub(super) fn write_tree(&self, root: &Path) -> Result<()> {
        for directory in 0..self.directories {
            let path = root.join(format!("{TREE}/{directory:02}"));
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        for number in 0..self.tree_files() {
            let path = self.path(root, number);
            fs::write(&path, small_content(number))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Writes the large file and makes it durable.
    pub(super) fn write_large(&self, root: &Path) -> Result<()> {
        let path = large_path(root);
        let mut file = File::create(&path).context("cannot make the large file")?;
        let mut piece = vec![0; PIECE_BYTES];
        for number in 0..self.large_pieces {
            fill(LARGE_SEED + number, &mut piece);
            file.write_all(&piece)
                .context("cannot write the large file")?;
        }
        file.sync_all()
            .context("cannot make the large file durable")
    }

    /// Compares every file under `root` with its written content.
    pub(super) fn check(&self, root: &Path) -> Result<()> {
        for number in 0..self.tree_files() {
            let path = self.path(root, number);
            let found =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            ensure!(
                found == small_content(number),
                "{} is not as written",
                path.display()
            );
        }
        self.check_large(root)
    }

    fn check_large(&self, root: &Path) -> Result<()> {
        let path = large_path(root);
        let mut file = File::open(&path).context("cannot open the large file")?;
        let (mut found, mut expected) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        for number in 0..self.large_pieces {
            file.read_exact(&mut found)
                .context("cannot read the large file")?;
            fill(LARGE_SEED + number, &mut expected);
            ensure!(
                found == expected,
                "the large file is not as written at {number} MiB"
            );
        }
        let rest = file
            .read(&mut found)
            .context("cannot read the large file")?;
        ensure!(rest == 0, "the large file is longer than it was written");
        Ok(())
    }

    fn path(&self, root: &Path, number: u64) -> PathBuf {
        let (directory, file) = (number % self.directories, number / self.directories);
        root.join(format!("{TREE}/{directory:02}/{file:03}.dat"))
    }
}

fn large_path(root: &Path) -> PathBuf {
    root.join("large.dat")
}

/// A file that a program writes last before a loss of power, without a sync: its content.
pub(super) struct LastFile(Vec<u8>);

impl LastFile {
    /// Bytes of the file.
    pub(super) const BYTES: usize = 4 << 20;
    const NAME: &str = "written-before-the-loss";
    const SEED: u64 = 77;

    /// Writes the file.
    pub(super) fn write(root: &Path) -> Result<Self> {
        let mut content = vec![0; Self::BYTES];
        fill(Self::SEED, &mut content);
        fs::write(root.join(Self::NAME), &content).context("cannot write a file")?;
        Ok(Self(content))
    }

    /// Compares the file under `root` with what was written.
    pub(super) fn check(&self, root: &Path) -> Result<()> {
        let found = fs::read(root.join(Self::NAME)).context("cannot read the file written last")?;
        ensure!(found == self.0, "{} has other content", Self::NAME);
        Ok(())
    }
}

/// A file that the primary overwrites alone: its content before and after that.
pub(super) struct ChangedFile {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl ChangedFile {
    /// Bytes of the file.
    pub(super) const BYTES: usize = 32 << 20;
    const NAME: &str = "changed-alone";
    const SEEDS: [u64; 2] = [78, 79];

    /// Writes the file.
    pub(super) fn write(root: &Path) -> Result<Self> {
        let [before, after] = Self::SEEDS.map(Self::content);
        write_durably(&root.join(Self::NAME), &before)?;
        Ok(Self { before, after })
    }

    /// Overwrites the whole file.
    pub(super) fn change(&self, root: &Path) -> Result<()> {
        write_durably(&root.join(Self::NAME), &self.after)
    }

    /// Compares the file under `root` with the content before.
    pub(super) fn check(&self, root: &Path) -> Result<()> {
        let found = fs::read(root.join(Self::NAME)).context("cannot read the changed file")?;
        ensure!(
            found == self.before,
            "{} is not that of before the resync",
            Self::NAME
        );
        Ok(())
    }

    fn content(seed: u64) -> Vec<u8> {
        let mut content = vec![0; Self::BYTES];
        fill(seed, &mut content);
        content
    }
}

/// Writes a file of this content over one that may be there, without an empty file in between.
fn write_durably(path: &Path, content: &[u8]) -> Result<()> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    let opened = options.open(path);
    let mut file = opened.with_context(|| format!("cannot open {}", path.display()))?;
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .with_context(|| format!("cannot write {}", path.display()))
}

fn small_content(number: u64) -> Vec<u8> {
    let length = number.wrapping_mul(7919) % (SMALL_BYTES_MAX + 1);
    let mut content = vec![0; usize::try_from(length).unwrap_or(0)];
    fill(number, &mut content);
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: DemoFiles = DemoFiles {
        directories: 2,
        per_directory: 3,
        large_pieces: 2,
    };

    fn written() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        FEW.write_tree(root.path()).unwrap();
        FEW.write_large(root.path()).unwrap();
        root
    }

    #[test]
    fn files_are_found_as_written() {
        FEW.check(written().path()).unwrap();
    }

    #[test]
    fn a_file_that_is_overwritten_is_not_that_of_before() {
        let root = tempfile::tempdir().unwrap();
        let file = ChangedFile::write(root.path()).unwrap();
        file.check(root.path()).unwrap();
        file.change(root.path()).unwrap();
        assert!(file.check(root.path()).is_err());
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let root = written();
        let path = FEW.path(root.path(), 3);
        let mut content = fs::read(&path).unwrap();
        content[5] ^= 1;
        fs::write(&path, content).unwrap();
        assert!(FEW.check(root.path()).is_err());
    }

    #[test]
    fn a_short_or_long_file_is_noticed() {
        for length in [0, FEW.large_bytes() - 1, FEW.large_bytes() + 1] {
            let root = written();
            let file = File::options()
                .write(true)
                .open(large_path(root.path()))
                .unwrap();
            file.set_len(length).unwrap();
            assert!(FEW.check(root.path()).is_err(), "{length}");
        }
    }
}
