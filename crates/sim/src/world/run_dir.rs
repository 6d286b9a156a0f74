//! The simulated directory `/run` of a machine. Its content survives the end of a process. A power
//! loss clears it.

use std::io;
use std::sync::Arc;

use lockstep_driver::MACHINE_COUNT_BYTES;
use lockstep_fs::poison::MarkerStore;
use lockstep_types::backing::BackingTable;
use parking_lot::Mutex;

use super::process::Process;
use crate::disk::gone;

/// The content of the directory: a poison marker, or none, and the count of the sync with the name of its store.
#[derive(Clone)]
pub struct RunDir {
    marker: Arc<Mutex<Option<Vec<u8>>>>,
    count: Arc<Mutex<[u8; MACHINE_COUNT_BYTES]>>,
}

impl Default for RunDir {
    fn default() -> Self {
        Self {
            marker: Arc::default(),
            count: Arc::new(Mutex::new([0; MACHINE_COUNT_BYTES])),
        }
    }
}

impl RunDir {
    /// Clears the directory, because the machine lost power.
    pub fn clear(&self) {
        *self.marker.lock() = None;
        self.count.lock().fill(0);
    }

    /// Returns the table of the count as `process` uses it while the process is alive.
    pub fn count_table(&self, process: &Arc<Process>) -> Arc<dyn BackingTable> {
        Arc::new(CountTable {
            run_dir: self.clone(),
            process: Arc::clone(process),
        })
    }

    /// Returns the directory as `process` uses it while the process is alive, or as an operator
    /// uses it if `process` is `None`.
    pub fn handle(&self, process: Option<&Arc<Process>>) -> Arc<dyn MarkerStore> {
        Arc::new(RunDirHandle {
            run_dir: self.clone(),
            process: process.cloned(),
        })
    }
}

struct CountTable {
    run_dir: RunDir,
    process: Arc<Process>,
}

impl BackingTable for CountTable {
    fn len(&self) -> usize {
        MACHINE_COUNT_BYTES
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        let bytes = self.run_dir.count.lock();
        if let Some(found) = bytes.get(offset..offset + into.len()) {
            into.copy_from_slice(found);
        }
    }

    fn store(&self, offset: usize, data: &[u8]) {
        let mut bytes = self.run_dir.count.lock();
        let place = bytes.get_mut(offset..offset + data.len());
        if let Some(place) = place.filter(|_| !self.process.is_dead()) {
            place.copy_from_slice(data);
        }
    }
}

struct RunDirHandle {
    run_dir: RunDir,
    process: Option<Arc<Process>>,
}

impl RunDirHandle {
    /// Replaces the content, unless the process is dead: a killed process sees its disk fail and
    /// must not record that failure.
    fn replace(&self, bytes: Option<Vec<u8>>) -> io::Result<()> {
        if self
            .process
            .as_ref()
            .is_some_and(|process| process.is_dead())
        {
            return Err(gone());
        }
        *self.run_dir.marker.lock() = bytes;
        Ok(())
    }
}

impl MarkerStore for RunDirHandle {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.run_dir.marker.lock().clone())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.replace(Some(bytes.to_vec()))
    }

    fn remove(&self) -> io::Result<()> {
        self.replace(None)
    }
}
