//! The pace of the jobs that read content beside clients: a resync, a comparison, and the comparison that follows a resync
//! (rule P19).
//!
//! A job asks for its turn before each piece of work. It waits while the limit for bytes or waiting clients say so, and holds no
//! lock meanwhile. The jobs of one session share their limits.
//!
//! Invariants: a wait ends with the connection of its job and with the session. A change of the configuration counts at once.

use std::sync::Arc;
use std::time::Duration;

use lockstep_types::ResyncWait;
use parking_lot::Mutex;

use super::byte_budget::ByteBudget;
use super::client_pause::ClientPause;
use crate::config::ResyncLimits;
use crate::engine::Engine;

/// A job is shown as waiting for this time after a wait.
const SHOWN: Duration = Duration::from_secs(1);

/// See the head of this file.
pub(super) struct ResyncPace {
    engine: Arc<Engine>,
    state: Mutex<PaceState>,
}

struct PaceState {
    /// Jobs that work now.
    jobs: usize,
    budget: ByteBudget,
    pause: ClientPause,
    /// The last wait, and its end.
    waited: Option<(ResyncWait, Duration)>,
}

impl ResyncPace {
    /// The pace of the jobs of one session.
    pub fn new(engine: Arc<Engine>) -> Self {
        let now = engine.host.now();
        let state = Mutex::new(PaceState {
            jobs: 0,
            budget: ByteBudget::new(now),
            pause: ClientPause::new(now),
            waited: None,
        });
        Self { engine, state }
    }

    /// A job begins to work, until the return value is dropped.
    pub fn begin_job(&self) -> PacedJob<'_> {
        let mut state = self.state.lock();
        state.jobs += 1;
        if state.jobs == 1 {
            // The operations of the time before do not count.
            self.engine.gate.waits.sample();
            state.pause = ClientPause::new(self.engine.host.now());
        }
        PacedJob(self)
    }

    /// The reason for which a job waits, or has waited within the last moment.
    pub fn waits_for(&self) -> Option<ResyncWait> {
        let now = self.engine.host.now();
        let waited = self.state.lock().waited;
        waited.and_then(|(why, until)| (now < until + SHOWN).then_some(why))
    }

    fn limits(&self) -> ResyncLimits {
        self.engine.config.current().policies.resync
    }

    /// The moment up to which a job waits, before it asks again; `None`: its next piece of work may begin.
    fn due(&self, limits: ResyncLimits) -> Option<Duration> {
        let now = self.engine.host.now();
        let waits = &self.engine.gate.waits;
        let mut state = self.state.lock();
        waits.ask(limits.pause_above);
        let due = if let Some(due) = state.budget.due(limits.bytes_per_second, now) {
            (ResyncWait::Limit, due)
        } else {
            let limit = limits.pause_above?;
            let due = state.pause.due(limit, now, || waits.sample())?;
            (ResyncWait::Clients, due)
        };
        state.waited = Some(due);
        Some(due.1)
    }
}

/// A job that works at this pace.
pub(super) struct PacedJob<'a>(&'a ResyncPace);

impl PacedJob<'_> {
    /// Whether the next piece of work may begin.
    pub fn is_turn(&self) -> bool {
        self.0.due(self.0.limits()).is_none()
    }

    /// Waits until the next piece of work may begin, or until the job is over.
    pub fn wait_for_turn(&self, is_over: impl Fn() -> bool) {
        let engine = &self.0.engine;
        while !is_over() {
            let limits = self.0.limits();
            let Some(due) = self.0.due(limits) else {
                return;
            };
            engine.wait_until(Some(due), || is_over() || self.0.limits() != limits);
        }
    }

    /// Notes that the job has read so many bytes.
    pub fn note_read(&self, bytes: u64) {
        self.0.state.lock().budget.spend(bytes);
    }
}

impl Drop for PacedJob<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.jobs -= 1;
        if state.jobs == 0 {
            self.0.engine.gate.waits.ask(None);
        }
    }
}
