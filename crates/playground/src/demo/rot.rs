//! A bit that flips on the disk of the secondary: found, attributed to its side, and healed.
//!
//! The demo changes the byte in the file of the store, below the node. A disk that rots does the same, without a word to anyone.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::program::VerifyAnswer;

/// A byte in the middle of a block.
const PLACE: u64 = (100 << 20) + 1234;

/// A byte on a disk that has another value than the node has written.
pub(super) struct FlippedBit {
    file: File,
    written: u8,
}

impl FlippedBit {
    /// Flips a bit of the file of this length in `store`. No other file may have the length.
    pub(super) fn make(store: &Path, length: u64) -> Result<Self> {
        let path = file_of_length(store, length)?.context("the store has no such file")?;
        let options = OpenOptions::new().read(true).write(true).open(&path);
        let file = options.with_context(|| format!("cannot open {}", path.display()))?;
        let written = byte_of(&file)?;
        file.write_all_at(&[written ^ 1], PLACE)
            .and_then(|()| file.sync_data())
            .context("cannot flip a bit")?;
        Ok(Self { file, written })
    }

    /// The byte has the written value again.
    pub(super) fn check_healed(&self) -> Result<()> {
        ensure!(
            byte_of(&self.file)? == self.written,
            "the byte on the disk is still wrong"
        );
        Ok(())
    }
}

fn byte_of(file: &File) -> Result<u8> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, PLACE)
        .context("cannot read the byte on the disk")?;
    Ok(u8::from_be_bytes(byte))
}

fn file_of_length(directory: &Path, length: u64) -> Result<Option<PathBuf>> {
    let listed = fs::read_dir(directory);
    for entry in listed.with_context(|| format!("cannot list {}", directory.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir()
            && let Some(found) = file_of_length(&entry.path(), length)?
        {
            return Ok(Some(found));
        }
        if kind.is_file() && entry.metadata()?.len() == length {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// Exactly one place was wrong, on the secondary, and is healed.
pub(super) fn check_report(report: &VerifyAnswer) -> Result<()> {
    let found = &report.differences;
    ensure!(
        report.identical && report.differences_total == 1 && report.healed_total == 1,
        "{} differences were found, of which {} are healed: {found:?}",
        report.differences_total,
        report.healed_total
    );
    let side = found
        .first()
        .and_then(|difference| difference.get("blocks")?.get("wrong_on")?.as_str());
    ensure!(
        side == Some("secondary"),
        "the wrong side is called {side:?}"
    );
    Ok(())
}
