//! Admits one run of a job at a time: a look that finds the job due leaves it to the run under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the head of this file.
#[derive(Default)]
pub(crate) struct SingleJob(Arc<AtomicBool>);

/// A run of a job, until this is dropped.
pub(crate) struct JobRun(Arc<AtomicBool>);

impl SingleJob {
    /// Begins a run; `None` while another one is under way.
    pub fn begin(&self) -> Option<JobRun> {
        let is_free = !self.0.swap(true, Ordering::AcqRel);
        is_free.then(|| JobRun(Arc::clone(&self.0)))
    }
}

impl Drop for JobRun {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_begins_once_the_last_one_is_over() {
        let job = SingleJob::default();
        let run = job.begin().unwrap();
        assert!(job.begin().is_none());
        drop(run);
        assert!(job.begin().is_some());
    }
}
