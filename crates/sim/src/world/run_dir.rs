//! The simulated directory `/run` of a machine. Its content survives the end of a process. A power
//! loss clears it.

use std::io;
use std::sync::Arc;

use lockstep_fs::poison::MarkerStore;
use parking_lot::Mutex;

use super::process::Process;
use crate::disk::gone;

/// The content of the directory: nothing, or a poison marker.
#[derive(Clone, Default)]
pub struct RunDir(Arc<Mutex<Option<Vec<u8>>>>);

impl RunDir {
    /// Clears the directory, because the machine lost power.
    pub fn clear(&self) {
        *self.0.lock() = None;
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
        *self.run_dir.0.lock() = bytes;
        Ok(())
    }
}

impl MarkerStore for RunDirHandle {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.run_dir.0.lock().clone())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.replace(Some(bytes.to_vec()))
    }

    fn remove(&self) -> io::Result<()> {
        self.replace(None)
    }
}
