//! Programs of every kind on the primary's mount that go on through failovers without an error.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{assert_identical, await_in_sync, fail_over};
use lockstep_testbed::{Pair, await_that};

use crate::programs::{Body, PROGRAMS, Place, Tree};

/// Rounds of each program between two failovers.
const ROUNDS: u64 = 5;

/// A program in a directory of its own.
struct Running {
    name: &'static str,
    place: Arc<Place>,
    thread: JoinHandle<Tree>,
}

impl Running {
    fn start(root: &Path, name: &'static str, body: Body) -> Self {
        let place = Arc::new(Place::new(root.join(name)));
        let own = Arc::clone(&place);
        Self {
            name,
            place,
            thread: thread::spawn(move || own.run(body)),
        }
    }

    fn await_progress(&self) {
        let wanted = self.place.rounds() + ROUNDS;
        await_that(&format!("{} to go on", self.name), || {
            assert!(!self.thread.is_finished(), "{} has ended", self.name);
            self.place.rounds() >= wanted
        });
    }

    /// Lets the program end, and returns what it has left.
    fn finish(self) -> (&'static str, Tree) {
        self.place.stop.store(true, Ordering::SeqCst);
        await_that(&format!("the end of {}", self.name), || {
            self.thread.is_finished()
        });
        println!("{}: {} refusals", self.name, self.place.refusals());
        (self.name, self.thread.join().expect(self.name))
    }
}

fn start_programs(root: &Path, takes_part: impl Fn(&str) -> bool) -> Vec<Running> {
    let taking_part = PROGRAMS.into_iter().filter(|(name, _)| takes_part(name));
    let running = taking_part.map(|(name, body)| Running::start(root, name, body));
    running.collect()
}

fn assert_left(root: &Path, (name, left): &(&'static str, Tree)) {
    for (path, content) in left {
        let found = fs::read(root.join(name).join(path)).unwrap();
        assert!(found == *content, "{name}/{path} has other content");
    }
}

/// The programs run on A. The role goes to B and back at other moments of their work each time.
pub fn programs_go_on(pair: &mut Pair, rounds: u64, takes_part: impl Fn(&str) -> bool) {
    let (on_a, on_b) = (pair.node(A).mount(), pair.node(B).mount());
    let programs = start_programs(&on_a, takes_part);
    for round in 0..rounds {
        programs.iter().for_each(Running::await_progress);
        await_in_sync(pair, A, 2 * round + 1);
        fail_over(pair, A, 2 * round + 1);
        fs::write(on_b.join(format!("of B {round}")), "b").unwrap();
        await_in_sync(pair, B, 2 * round + 2);
        fail_over(pair, B, 2 * round + 2);
    }
    programs.iter().for_each(Running::await_progress);
    let left: Vec<_> = programs.into_iter().map(Running::finish).collect();
    for it in &left {
        assert_left(&on_a, it);
    }
    await_in_sync(pair, A, 2 * rounds + 1);
    assert_identical(pair.node(A));
    fail_over(pair, A, 2 * rounds + 1);
    for it in &left {
        assert_left(&on_b, it);
    }
}
