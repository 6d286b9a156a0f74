//! The programs of a test that makes one request after the other. The history has their requests like those of clients.

use std::sync::Arc;
use std::time::Duration;

use lockstep_types::settings::Role;
use lockstep_types::{Errno, Ino};

use super::ScriptedCluster;
use crate::history::Outcome;
use crate::op::Op;
use crate::scenario::clients::late_program::LateRequest;
use crate::scenario::clients::mount::Mount;
use crate::world;

impl ScriptedCluster {
    /// Returns a number for a new inode, of the node that serves.
    pub fn next_ino(&mut self) -> Result<Result<Ino, Errno>, String> {
        self.use_mount(Mount::next_ino)
    }

    /// Lets a program make a request at the node that serves, and waits for the answer.
    pub fn request(&mut self, program: u32, op: Op) -> Result<Outcome, String> {
        let side = self.nodes.machine(Role::Primary);
        let call = self.recorder.lock().invoked(side, program, op.clone());
        let (outcome, generation) = self.use_mount(move |mount| {
            let outcome = world::serving(|| mount.submit(&op));
            (outcome, mount.service().0.generation())
        })?;
        let mut recorder = self.recorder.lock();
        if outcome.is_ok() {
            recorder.acknowledged(side, generation, call);
        }
        recorder.answer(side, program, call, outcome.clone());
        Ok(outcome)
    }

    /// Lets a program make a request at the node that serves. The request stands still for a time, and the program is killed
    /// at once.
    pub fn leave(&mut self, program: u32, op: Op, stands_still: Duration) -> Result<(), String> {
        let side = self.nodes.machine(Role::Primary);
        let call = self.recorder.lock().invoked(side, program, op.clone());
        let recorder = Arc::clone(&self.recorder);
        self.use_mount(move |mount| {
            let inside = mount.enter().map_err(|_| "the node does not serve")?;
            let late = LateRequest {
                mount: mount.clone(),
                recorder,
                side,
                call,
                op,
                asked: inside.tenure(),
                stands_still: Some(stands_still),
                is_over: Arc::default(),
            };
            late.start();
            Ok(())
        })?
    }
}
