//! What the machine of a node keeps outside of the node's disk, in `/run`: it outlives processes, and no loss
//! of power.

use std::io;
use std::sync::Arc;

use lockstep_fs::poison::MarkerStore;
use parking_lot::Mutex;

use super::process::Process;
use crate::disk::gone;

/// What lies there: nothing, or a mark that the disk has failed.
#[derive(Clone, Default)]
pub struct Runtime(Arc<Mutex<Option<Vec<u8>>>>);

impl Runtime {
    /// The machine went down.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }

    /// As a process has it, for as long as it lives; or an operator.
    pub fn of(&self, process: Option<&Arc<Process>>) -> Arc<dyn MarkerStore> {
        Arc::new(Inside {
            runtime: self.clone(),
            process: process.cloned(),
        })
    }
}

struct Inside {
    runtime: Runtime,
    process: Option<Arc<Process>>,
}

impl Inside {
    /// Whoever was killed finds its disk failing, and notes that nowhere.
    fn replace(&self, bytes: Option<Vec<u8>>) -> io::Result<()> {
        if self
            .process
            .as_ref()
            .is_some_and(|process| process.is_dead())
        {
            return Err(gone());
        }
        *self.runtime.0.lock() = bytes;
        Ok(())
    }
}

impl MarkerStore for Inside {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.runtime.0.lock().clone())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.replace(Some(bytes.to_vec()))
    }

    fn remove(&self) -> io::Result<()> {
        self.replace(None)
    }
}
