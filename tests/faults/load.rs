//! A pair of nodes under load: clients that keep account, and programs that check themselves.
//!
//! Invariant: the primary is taken away only through this type, because errors are no failures from then on.

#![allow(dead_code)] // not every test uses all of it

use lockstep_testbed::chance::Chance;
use lockstep_testbed::{NodeEnvironment, OUT_OF_SYNC, Pair, Settings, Which, await_that};

use crate::check::{self, Ending};
use crate::programs::Programs;
use crate::writers::Writers;

/// The log text of a primary that loses the connection while in sync.
pub const PAUSED: &str = "state=\"synced and disconnected, acknowledgements paused\"";

/// The nodes, the clients and the programs of a test.
pub struct Load {
    pub writers: Writers,
    pub pair: Pair,
    programs: Option<Programs>,
    /// Whether the programs have lost their mount.
    mount_lost: bool,
    /// How often the primary had continued alone before the first load: it does so until the nodes are equal for the
    /// first time.
    alone_at_start: usize,
}

impl Load {
    /// Starts nodes and clients, and waits until both are at work.
    pub fn start(settings: Settings, chance: &mut Chance) -> Self {
        Self::start_on(
            settings,
            chance,
            [NodeEnvironment::default(), NodeEnvironment::default()],
        )
    }

    /// Starts nodes and clients, with primary and secondary on these environments.
    pub fn start_on(
        settings: Settings,
        chance: &mut Chance,
        environments: [NodeEnvironment; 2],
    ) -> Self {
        let mut pair = Pair::prepare(settings, environments);
        pair.start();
        let load = Self {
            writers: Writers::start(&pair.mount(), settings.durability == "always", chance),
            alone_at_start: pair.primary.times_logged(OUT_OF_SYNC),
            pair,
            programs: None,
            mount_lost: false,
        };
        load.writers.await_progress();
        load
    }

    /// Starts the programs; they run until the next check.
    pub fn start_programs(&mut self, chance: &mut Chance) {
        let (mount, outside) = (self.pair.mount(), self.pair.outside("programs"));
        self.programs = Some(Programs::start(&mount, &outside, chance));
        self.mount_lost = false;
    }

    /// From now on the primary is absent or refuses operations: errors are no failures. A fault that the programs
    /// have found earlier is a failure.
    pub fn primary_goes(&mut self) {
        if let Some(programs) = &mut self.programs
            && !self.mount_lost
        {
            programs.look();
        }
        self.mount_lost = true;
        self.writers.primary_goes();
    }

    /// Kills a node with SIGKILL. The kernel remembers the root of the primary's mount, as after any `ls -l`. The
    /// mount is dead all the same when the node starts again.
    pub fn kill(&mut self, which: Which) {
        if which == Which::Primary {
            self.primary_goes();
            // Fails if the primary has not mounted since its last kill.
            let _ = std::fs::metadata(self.pair.mount());
        }
        self.pair.node_mut(which).kill();
    }

    /// Ends the programs and compares everything; the clients continue afterwards.
    pub fn check(&mut self, chance: &mut Chance) {
        let ending = *chance.pick(&[Ending::Stopped, Ending::Killed]);
        self.check_with(ending, || ());
    }

    /// Checks with both nodes down by this ending, and calls `while_down` meanwhile.
    pub fn check_with(&mut self, ending: Ending, while_down: impl FnOnce()) {
        self.pair.await_in_sync();
        self.writers.primary_is_back();
        self.writers.await_progress();
        self.end_programs();
        check::check(&mut self.pair, &self.writers, ending, while_down);
        self.writers.await_progress();
    }

    /// Ends the programs; none may have found a fault.
    pub fn end_programs(&mut self) {
        match &mut self.programs {
            Some(programs) if self.mount_lost => programs.finish_without_mount().unwrap(),
            Some(programs) => programs.finish(),
            None => {}
        }
        // Dropped last: a program that waits forever for a node can end only after the node.
        self.programs = None;
    }

    /// Whether the primary has continued alone since the first load.
    pub fn was_out_of_sync(&self) -> bool {
        self.pair.primary.times_logged(OUT_OF_SYNC) > self.alone_at_start
    }

    /// Flips bits until the primary has lost a connection. A single bit may hit the version in the head of a TLS
    /// record, which every peer ignores.
    pub fn corrupt(&self, chance: &mut Chance) {
        let lost = || self.pair.primary.times_logged(PAUSED);
        let before = lost();
        await_that("a connection to be lost", || {
            let pieces = 1 + u32::try_from(chance.within(0..3)).unwrap();
            self.pair.network.corrupt(pieces);
            lost() > before
        });
    }
}

impl Drop for Load {
    /// Ends the nodes first: programs and clients may wait for them.
    fn drop(&mut self) {
        self.pair.end();
        self.programs = None;
    }
}
