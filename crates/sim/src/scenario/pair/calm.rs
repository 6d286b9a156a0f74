//! The pair in hands that take one thing after the other: stopped in order, started by an operator who
//! looks what comes of it, given another store, compared.

use std::sync::Arc;

use lockstep_driver::Datastore;
use lockstep_verify::Report;
use parking_lot::Mutex;

use super::Pair;
use crate::disk::Disk;
use crate::history::Stop;
use crate::scenario::IN_SYNC_WITHIN;
use crate::scenario::faults::{Order, Then};
use crate::world::Side;

impl Pair {
    /// The disk of a node.
    pub const fn disk(&self, side: Side) -> &Disk {
        &side.of(&self.halves).disk
    }

    /// Stops a node in order, as at SIGTERM.
    pub fn stop_in_order(&mut self, side: Side) -> Result<(), String> {
        self.ask_to_stop(Order {
            side,
            cut: None,
            then: Then {
                is_away: true,
                ..Then::default()
            },
        });
        let until = self.now() + IN_SYNC_WITHIN;
        while self.half(side).lives() {
            if self.now() > until {
                return Err(format!("{side:?} does not stop in {IN_SYNC_WITHIN:?}"));
            }
            self.run_for(super::LOOK_EVERY)?;
        }
        Ok(())
    }

    /// Starts a node that may refuse to: then says why, and nothing lives on it.
    pub fn try_to_start(&mut self, side: Side) -> Result<Option<String>, String> {
        self.start(side);
        let until = self.now() + IN_SYNC_WITHIN;
        let has_decided = |pair: &mut Self| {
            pair.half(side).datastore().is_some() || pair.half(side).refused().is_some()
        };
        while !has_decided(self) {
            if !self.world.step(until) {
                return Err(format!("{side:?} neither starts nor refuses to"));
            }
        }
        let refused = self.half(side).refused();
        if refused.is_some() {
            self.stop(side, Stop::Process);
        }
        Ok(refused)
    }

    /// An operator gives a node that is stopped an empty store in place of the one it has.
    pub fn empty_the_store(&mut self, side: Side) {
        self.half(side).get_new_disk();
    }

    /// Lets the primary compare both nodes, as `lockstep verify` does.
    pub fn compare(&mut self) -> Result<Report, String> {
        let compared = self.let_it_do(Side::Primary, |datastore| datastore.compare(&mut |_| ()))?;
        compared.map_err(|failure| format!("the nodes cannot be compared: {}", failure.cause))
    }

    /// What the primary says went wrong last with its peer.
    pub fn reason(&self) -> Option<String> {
        let [primary, _] = self.datastores();
        primary?.status().reason
    }

    /// Lets the process of a node do something, to its end.
    fn let_it_do<T: Send + 'static>(
        &mut self,
        side: Side,
        body: impl FnOnce(&Arc<Datastore>) -> T + Send + 'static,
    ) -> Result<T, String> {
        let life = self.half(side).node.life();
        let lives = life.and_then(|life| Some((life.datastore()?, life.process)));
        let (datastore, process) = lives.ok_or_else(|| format!("{side:?} does not live"))?;
        let done = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&done);
        process.start(move || *slot.lock() = Some(body(&datastore)));
        let until = self.now() + IN_SYNC_WITHIN;
        while self.now() < until {
            self.run_for(super::LOOK_EVERY)?;
            if let Some(done) = done.lock().take() {
                return Ok(done);
            }
        }
        Err(format!("{side:?} does not get done in {IN_SYNC_WITHIN:?}"))
    }
}
