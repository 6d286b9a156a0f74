//! A world of two nodes, their disks and the network between them, driven by one thread.
//!
//! The world decides what happens next: which fiber goes on, or that time passes until one can. All
//! its choices come from its seed.

mod fibers;
mod leaving;
mod network;
mod node;
mod process;
mod runtime;
mod side;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fibers::Fibers;
pub use fibers::{Event, Wait, is_inside, serving, wait};
pub use leaving::Leaving;
pub use network::{FrameObserver, Network, OnFrame};
use node::Births;
pub use node::{Life, Living, Node};
pub use process::{
    BYTES_IN_FLIGHT_MAX, Hang, KEPT_BYTES_MAX, KEPT_FILE_BYTES_MAX, Opened, Process, ProcessId,
    ROOM, Shared,
};
pub use runtime::Runtime;
pub use side::Side;

use crate::random::Random;

/// Everything there is.
pub struct World {
    /// Time, chance, and what was asked for.
    pub shared: Arc<Shared>,
    /// Between the nodes.
    pub network: Arc<Network>,
    fibers: Fibers,
    births: Births,
    living: BTreeMap<ProcessId, Arc<Process>>,
    dead: BTreeSet<ProcessId>,
}

impl Drop for World {
    fn drop(&mut self) {
        for process in std::mem::take(&mut self.living).into_values() {
            self.fibers.kill(process.id());
            process.forget_jobs();
        }
        drop(self.shared.take_spawned());
    }
}

impl World {
    /// An empty world.
    pub fn new(chance: Random, step_percent: u64) -> Self {
        Self {
            shared: Arc::new(Shared::new(chance, step_percent)),
            network: Arc::default(),
            fibers: Fibers::default(),
            births: Births::default(),
            living: BTreeMap::new(),
            dead: BTreeSet::new(),
        }
    }

    /// A process that lives from now on.
    pub fn give_birth(&mut self) -> Arc<Process> {
        let process = self.births.next(&self.shared);
        self.living.insert(process.id(), Arc::clone(&process));
        process
    }

    /// Ends a process where it is.
    pub fn kill(&mut self, process: &Process) {
        process.die();
        self.dead.insert(process.id());
        self.fibers.kill(process.id());
        self.living.remove(&process.id());
        process.forget_jobs();
    }

    /// One step: a fiber goes on, or time passes until one can, but not beyond `until`. False when
    /// nothing happens before that.
    pub fn step(&mut self, until: Duration) -> bool {
        for (process, job) in self.shared.take_spawned() {
            if !self.dead.contains(&process) {
                self.fibers.add(process, job);
            }
        }
        let ready = self.fibers.ready(self.shared.now());
        if !ready.is_empty() {
            let chosen = self.shared.draw(|chance| *chance.pick(&ready));
            self.fibers.resume(chosen);
            return true;
        }
        match self.fibers.due() {
            Some(due) if due <= until => self.shared.advance(due),
            _ => {
                self.shared.advance(until);
                return false;
            }
        }
        true
    }
}
