//! Numbered records in one file: the content of a record follows from its number.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::bytes::fill;

/// Size of a record.
const RECORD_BYTES: usize = 4096;
/// First seed of the records: it differs from the seeds of the demo's files.
const RECORD_SEED: u64 = 1 << 50;
/// Name of the file.
const FILE_NAME: &str = "records.dat";

/// The acknowledged records: all below a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenRecords {
    pub(crate) acknowledged: u64,
}

impl WrittenRecords {
    /// Compares every acknowledged record under `root` with its written content.
    pub(crate) fn check(self, root: &Path) -> Result<()> {
        let file = File::open(root.join(FILE_NAME)).context("cannot open the records")?;
        let mut found = [0; RECORD_BYTES];
        for number in 0..self.acknowledged {
            file.read_exact_at(&mut found, offset(number))
                .with_context(|| format!("record {number} was acknowledged and cannot be read"))?;
            ensure!(
                found == record(number),
                "record {number} was acknowledged and is not as written"
            );
        }
        Ok(())
    }
}

/// Opens the file of the records under `root`, and makes it if it is missing.
pub(crate) fn open(root: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    options.open(root.join(FILE_NAME))
}

/// Writes a record and makes it durable. A record that is there already stays as it is.
pub(crate) fn write(file: &File, number: u64) -> std::io::Result<()> {
    file.write_all_at(&record(number), offset(number))?;
    file.sync_data()
}

const fn offset(number: u64) -> u64 {
    number * RECORD_BYTES as u64
}

fn record(number: u64) -> [u8; RECORD_BYTES] {
    let mut content = [0; RECORD_BYTES];
    fill(RECORD_SEED + number, &mut content);
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_record_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let file = open(root.path()).unwrap();
        (0..3).for_each(|number| write(&file, number).unwrap());
        let records = WrittenRecords { acknowledged: 3 };
        records.check(root.path()).unwrap();
        file.write_all_at(&[0; 10], offset(1)).unwrap();
        let error = records.check(root.path()).unwrap_err().to_string();
        assert!(error.contains("record 1 "), "{error}");
    }
}
