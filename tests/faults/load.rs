//! A pair of nodes under load: clients that keep account, and programs that check themselves.
//!
//! Invariant: whoever takes the primary away does it here, for then errors are no failures.

#![allow(dead_code)] // not every test uses all of it

use crate::chance::Chance;
use crate::check::{self, Ending};
use crate::nodes::{Ground, Pair, Settings, Which, await_that};
use crate::programs::Programs;
use crate::writers::Writers;

/// What the primary logs when the connection is lost while in sync.
const PAUSED: &str = "state=\"synced and disconnected, acknowledgements paused\"";
/// What the primary logs when it goes on alone.
const OUT_OF_SYNC: &str = "state=\"out of sync\"";

/// Everything that runs in a test.
pub struct Load {
    pub writers: Writers,
    pub pair: Pair,
    programs: Option<Programs>,
    /// Whether the programs have had their mount taken from them.
    bereft: bool,
    /// How often the primary had gone on alone when the first load came: it has to, until the
    /// nodes have been made equal for the first time.
    alone_at_start: usize,
}

impl Load {
    /// Starts nodes and clients, and waits until both are at work.
    pub fn start(settings: Settings, chance: &mut Chance) -> Self {
        Self::start_on(settings, chance, [Ground::default(), Ground::default()])
    }

    /// The same, with primary and secondary on these grounds.
    pub fn start_on(settings: Settings, chance: &mut Chance, grounds: [Ground; 2]) -> Self {
        let mut pair = Pair::prepare(settings, grounds);
        pair.start();
        let load = Self {
            writers: Writers::start(&pair.mount(), settings.durability == "always", chance),
            alone_at_start: pair.primary.logged().matches(OUT_OF_SYNC).count(),
            pair,
            programs: None,
            bereft: false,
        };
        load.writers.await_progress();
        load
    }

    /// Starts programs besides the clients; they run until the next check.
    pub fn start_programs(&mut self, chance: &mut Chance) {
        let (mount, outside) = (self.pair.mount(), self.pair.outside("programs"));
        self.programs = Some(Programs::start(&mount, &outside, chance));
        self.bereft = false;
    }

    /// From now on the primary refuses, or is not there: errors are no failures. What the programs
    /// have found up to here is one.
    pub fn primary_goes(&mut self) {
        if let Some(programs) = &mut self.programs
            && !self.bereft
        {
            programs.look();
        }
        self.bereft = true;
        self.writers.primary_goes();
    }

    /// SIGKILL of a node. Of the mount of a primary the kernel still remembers the root, as after
    /// any `ls -l`: it is dead all the same when the node starts again.
    pub fn kill(&mut self, which: Which) {
        if which == Which::Primary {
            self.primary_goes();
            // Fails where the primary has not mounted yet since it was killed last.
            let _ = std::fs::metadata(self.pair.mount());
        }
        self.pair.node_mut(which).kill();
    }

    /// Ends the programs and compares everything; the clients go on afterwards.
    pub fn check(&mut self, chance: &mut Chance) {
        let ending = *chance.pick(&[Ending::Stopped, Ending::Killed]);
        self.check_with(ending, || ());
    }

    /// The same, with both nodes down in this way while something else is done.
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
            Some(programs) if self.bereft => programs.finish_bereft().unwrap(),
            Some(programs) => programs.finish(),
            None => {}
        }
        // Not before: one that waits for a node for ever can end only when that has.
        self.programs = None;
    }

    /// Whether the primary has gone on alone since the load came.
    pub fn was_out_of_sync(&self) -> bool {
        self.pair.primary.logged().matches(OUT_OF_SYNC).count() > self.alone_at_start
    }

    /// Flips bits in what passes until the primary has lost a connection by it. A single one may
    /// hit what TLS has everybody ignore, the version in the head of a record.
    pub fn corrupt(&self, chance: &mut Chance) {
        let lost = || self.pair.primary.logged().matches(PAUSED).count();
        let before = lost();
        await_that("a connection to be lost", || {
            let pieces = 1 + u32::try_from(chance.within(0..3)).unwrap();
            self.pair.network.corrupt(pieces);
            lost() > before
        });
    }
}

impl Drop for Load {
    /// The nodes first: programs and clients may wait for them.
    fn drop(&mut self) {
        self.pair.end();
        self.programs = None;
    }
}
