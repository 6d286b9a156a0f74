//! A world of two nodes, their disks and the network between them, driven by one thread.
//!
//! The world decides what happens next: which fiber continues, or how far time advances until a
//! fiber can continue. The seed of the world decides every choice.

mod fibers;
mod kernel_caches;
mod network;
mod node;
mod process;
mod run_dir;
mod shutdown;
mod side;
mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fibers::Fibers;
pub use fibers::{Event, ProcessId, ThreadRole, Wait, is_in_fiber, serving, wait};
pub use kernel_caches::KernelCaches;
pub use network::{FrameObserver, FrameVerdict, Network};
pub use node::{Node, RunningNode, RunningSlot, Surroundings};
pub use process::{
    BYTES_IN_FLIGHT_MAX, Hang, Latch, Process, ROOM_LIMITS, SPILL_FILE_BYTES_MAX,
    SPILL_MEMORY_BYTES_MAX, Shared, mark_tables,
};
pub use run_dir::RunDir;
pub use shutdown::Shutdown;
pub use side::Side;
pub use witness::SimWitness;

use crate::random::Random;

/// Most steps of one world. No schedule needs as many.
const STEPS_MAX: u64 = 3_000_000;

/// The processes, the network, and the time.
pub struct World {
    /// The time, the random source, and the requested fibers.
    pub shared: Arc<Shared>,
    /// The network between the nodes.
    pub network: Arc<Network>,
    /// The witness that the nodes ask.
    pub witness: Arc<SimWitness>,
    fibers: Fibers,
    next_process: u64,
    running: BTreeMap<ProcessId, Arc<Process>>,
    dead: BTreeSet<ProcessId>,
    steps: u64,
}

impl Drop for World {
    fn drop(&mut self) {
        for process in std::mem::take(&mut self.running).into_values() {
            self.fibers.kill(process.id());
            process.drop_jobs();
        }
        drop(self.shared.take_spawned());
    }
}

impl World {
    /// Returns an empty world. A step of a thread lets other threads go first in `step_percent`
    /// percent of the cases.
    pub fn new(random: Random, step_percent: u64) -> Self {
        Self {
            shared: Arc::new(Shared::new(random, step_percent)),
            network: Arc::default(),
            witness: Arc::default(),
            fibers: Fibers::default(),
            next_process: 1,
            running: BTreeMap::new(),
            dead: BTreeSet::new(),
            steps: 0,
        }
    }

    /// Lets the wall clocks of all machines jump by some seconds.
    pub fn jump_wall_clocks(&self, secs: i64) {
        self.shared.jump_wall_clocks(secs);
    }

    /// Returns the time of the world.
    pub fn now(&self) -> Duration {
        self.shared.now()
    }

    /// Returns the number of steps so far.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns an error if the world has made more steps than any schedule needs.
    pub fn check_steps(&self) -> Result<(), String> {
        if self.steps > STEPS_MAX {
            return Err("too many steps: some thread repeats the same attempt forever".to_owned());
        }
        Ok(())
    }

    /// Creates a running process.
    pub fn spawn_process(&mut self) -> Arc<Process> {
        let id = ProcessId(self.next_process);
        self.next_process += 1;
        let process = Process::new(id, Arc::clone(&self.shared));
        self.running.insert(id, Arc::clone(&process));
        process
    }

    /// Ends a process at its present point.
    pub fn kill(&mut self, process: &Process) {
        process.die();
        self.dead.insert(process.id());
        self.fibers.kill(process.id());
        self.running.remove(&process.id());
        process.drop_jobs();
    }

    /// Lets one thread of a process stand still for a time, while all others go on: one of a kind, or any.
    pub fn hold_thread(&mut self, process: &Process, role: Option<ThreadRole>, time: Duration) {
        let drawn = self.shared.with_random(Random::any);
        let until = self.now() + time;
        self.fibers.hold(process.id(), role, drawn, until);
    }

    /// Returns whether a thread stands still.
    pub fn holds_a_thread(&self) -> bool {
        self.fibers.holds_one(self.now())
    }

    /// Makes one step: a fiber continues, or time advances until a fiber can continue, but not
    /// beyond `until`. Returns `false` if nothing happens before `until`.
    pub fn step(&mut self, until: Duration) -> bool {
        for (process, job) in self.shared.take_spawned() {
            if !self.dead.contains(&process) {
                self.fibers.add(process, job);
            }
        }
        let ready = self.fibers.ready(self.shared.now());
        if !ready.is_empty() {
            let chosen = self.shared.with_random(|random| *random.pick(&ready));
            self.fibers.resume(chosen);
        } else if let Some(due) = self
            .fibers
            .due(self.shared.now())
            .filter(|due| *due <= until)
        {
            self.shared.advance(due);
        } else {
            self.shared.advance(until);
            return false;
        }
        self.steps += 1;
        true
    }
}
