//! The parts that the benchmarks of a store share.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use lockstep_fs::Store;
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::store::{Access, MarkTableSizes, OpenOptions};
use lockstep_intentlog::LogOptions;
use lockstep_types::backing::Backing;
use lockstep_types::{BootId, DatastoreUuid, Generation, Osn, Timestamp};
use tempfile::TempDir;

/// A directory that goes at the end of a benchmark: in the directory that the command line names, or in that of temporary files.
///
/// # Errors
/// No directory can be made there.
pub fn temporary_directory() -> Result<TempDir, Box<dyn Error>> {
    // Cargo adds options of its own.
    let place = std::env::args().skip(1).find(|it| !it.starts_with("--"));
    Ok(match &place {
        Some(place) => tempfile::tempdir_in(place)?,
        None => tempfile::tempdir()?,
    })
}

/// An empty store in a directory, open for use.
///
/// # Errors
/// The disk fails.
pub fn new_store(place: &Path) -> Result<Store, Box<dyn Error>> {
    let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(place)?);
    let uuid = DatastoreUuid::from_bytes([7; 16]);
    Store::create(&backing, uuid, &LogOptions::default())?;
    let options = OpenOptions {
        datastore: None,
        boot: BootId::from_bytes([1; 16]),
        access: Access::Write,
        log: LogOptions::default(),
        marks: MarkTableSizes::default(),
    };
    Ok(Store::open(backing, &options)?.store)
}

/// The number and the time of an operation.
pub fn stamp(sequence: u64) -> (Osn, Timestamp) {
    let osn = Osn {
        generation: Generation::FIRST,
        sequence,
    };
    (osn, Timestamp { secs: 1, nanos: 0 })
}

/// The median of the times of all rounds.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}
