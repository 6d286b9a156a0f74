//! A program that writes numbered records one after the other and counts the acknowledged ones.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::bytes::fill;

/// Size of a record; its content follows from its number.
const RECORD_BYTES: usize = 4096;
/// First seed of the records: it differs from the seeds of the files.
const RECORD_SEED: u64 = 1 << 50;
/// Pause between two records, so that minutes of writing do not fill the disk.
const RECORD_INTERVAL: Duration = Duration::from_millis(1);
/// Name of the file.
const FILE_NAME: &str = "records.dat";

/// The acknowledged records: all below a number.
#[derive(Debug)]
pub(super) struct WrittenRecords {
    acknowledged: u64,
}

impl WrittenRecords {
    pub(super) const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Compares every acknowledged record under `root` with its written content.
    pub(super) fn check(&self, root: &Path) -> Result<()> {
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

/// State that the writing thread shares.
#[derive(Debug, Default)]
struct WriterProgress {
    acknowledged: AtomicU64,
    longest_wait_us: AtomicU64,
    stop: AtomicBool,
}

/// The writing thread.
pub(super) struct RecordWriter {
    progress: Arc<WriterProgress>,
    thread: JoinHandle<Result<()>>,
}

impl RecordWriter {
    pub(super) fn start(root: &Path) -> Result<Self> {
        let file = File::create_new(root.join(FILE_NAME)).context("cannot make the records")?;
        let progress = Arc::new(WriterProgress::default());
        let shared = Arc::clone(&progress);
        let thread = std::thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || write_records(&file, &shared))?;
        Ok(Self { progress, thread })
    }

    /// The number of records that are acknowledged so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.progress.acknowledged.load(Ordering::Acquire)
    }

    /// The longest time from a write to its acknowledgement so far.
    pub(super) fn longest_wait(&self) -> Duration {
        Duration::from_micros(self.progress.longest_wait_us.load(Ordering::Relaxed))
    }

    /// Stops writing; an error if a write has failed.
    pub(super) fn finish(self) -> Result<WrittenRecords> {
        self.progress.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the program that writes records has panicked"))??;
        Ok(WrittenRecords {
            acknowledged: self.progress.acknowledged.load(Ordering::Acquire),
        })
    }
}

fn write_records(file: &File, progress: &WriterProgress) -> Result<()> {
    let mut number = 0;
    while !progress.stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        file.write_all_at(&record(number), offset(number))
            .with_context(|| format!("writing record {number} failed"))?;
        let waited = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        number += 1;
        progress.acknowledged.store(number, Ordering::Release);
        progress
            .longest_wait_us
            .fetch_max(waited, Ordering::Relaxed);
        std::thread::sleep(RECORD_INTERVAL);
    }
    Ok(())
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

    fn written(root: &Path) -> WrittenRecords {
        let writer = RecordWriter::start(root).unwrap();
        while writer.acknowledged() < 3 {
            std::thread::yield_now();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn acknowledged_records_are_found() {
        let root = tempfile::tempdir().unwrap();
        let records = written(root.path());
        assert!(records.acknowledged() >= 3);
        records.check(root.path()).unwrap();
    }

    #[test]
    fn a_lost_record_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let records = written(root.path());
        let file = File::options()
            .write(true)
            .open(root.path().join(FILE_NAME))
            .unwrap();
        file.write_all_at(&[0; 10], offset(1)).unwrap();
        assert!(
            records
                .check(root.path())
                .unwrap_err()
                .to_string()
                .contains("record 1 ")
        );
    }
}
