//! Explores every state of the model, in little memory: 8 bytes a state, and a stack.
//!
//! The exploration goes in rounds. Round *f* takes every path with at most *f* failures. A state is left at once if an
//! earlier round, or this one, has reached it with fewer failures: then it can do all that it can do now. So
//! the number of failures is no part of a state, and each round only walks again through the states of the earlier rounds.
//!
//! A state counts by 60 bits of its fingerprint. Two of 400 million states have the same bits with a probability of 7 %.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::limits::Limits;
use crate::world::{Action, World};

const SHARDS: usize = 256;
/// The bits of an entry that are no fingerprint: the fewest failures, and the last round that came here.
const MARKS: u64 = 15;
/// A thread with more states than these gives some of them to a thread without.
const SHARED_ABOVE: usize = 32;

/// A broken promise, and the path to it.
pub struct Broken {
    pub promise: &'static str,
    pub path: Vec<Action>,
}

/// The result of an exploration.
#[derive(Default)]
pub struct Found {
    pub states: usize,
    pub broken: Option<Broken>,
}

/// A promise, and the check of a state.
pub type Promise = (&'static str, fn(&World) -> bool);

/// A part of the states that were reached.
#[derive(Default)]
struct Shard {
    entries: Vec<u64>,
    count: usize,
}

impl Shard {
    /// Notes a state. Returns whether this round has to look at it, and whether no round has.
    fn visit(&mut self, fingerprint: u64, failures: u64, round: u64) -> (bool, bool) {
        if self.count * 4 >= self.entries.len() * 3 {
            self.grow();
        }
        let key = fingerprint & !MARKS | (MARKS + 1);
        let slot = self.slot(key);
        let entry = &mut self.entries[slot];
        let marks = failures << 2 | round;
        if *entry == 0 {
            *entry = key | marks;
            self.count += 1;
            return (true, true);
        }
        let (fewest, last) = (*entry >> 2 & 3, *entry & 3);
        let is_due = failures < fewest || failures == fewest && last != round;
        if is_due {
            *entry = key | marks;
        }
        (is_due, false)
    }

    fn slot(&self, key: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut slot = (key >> 4) as usize & mask;
        while self.entries[slot] != 0 && self.entries[slot] & !MARKS != key & !MARKS {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        let size = (self.entries.len() * 2).max(64);
        let old = std::mem::replace(&mut self.entries, vec![0; size]);
        for entry in old.into_iter().filter(|entry| *entry != 0) {
            let slot = self.slot(entry);
            self.entries[slot] = entry;
        }
    }
}

/// A state to look at, and the path to it.
struct Job {
    world: World,
    failures: u8,
    path: Vec<Action>,
}

/// An exploration under way.
struct Exploration<'a> {
    promises: &'a [Promise],
    shards: Vec<Mutex<Shard>>,
    /// States for threads that have none.
    pool: Mutex<Vec<Job>>,
    idle: AtomicUsize,
    is_over: AtomicBool,
    broken: Mutex<Option<Broken>>,
}

/// Explores all states, with a number of threads.
pub fn explore(limits: Limits, promises: &[Promise], threads: usize) -> Found {
    let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
    let exploration = Exploration {
        promises,
        shards,
        pool: Mutex::default(),
        idle: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        broken: Mutex::default(),
    };
    for round in 0..=limits.failures {
        let start = World::new(limits).canonical();
        exploration.visit(&start, 0, round);
        let job = Job {
            world: start,
            failures: 0,
            path: Vec::new(),
        };
        exploration.pool.lock().unwrap().push(job);
        exploration.idle.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| exploration.work(round, threads));
            }
        });
        if std::env::var_os("LOCKSTEP_MODEL_ROUNDS").is_some() {
            println!("{round} failures: {} states", exploration.count());
        }
    }
    Found {
        states: exploration.count(),
        broken: exploration.broken.into_inner().unwrap(),
    }
}

impl Exploration<'_> {
    fn count(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().unwrap().count)
            .sum()
    }

    fn visit(&self, world: &World, failures: u8, round: u8) -> (bool, bool) {
        let fingerprint = world.fingerprint();
        let shard = (fingerprint >> 56) as usize;
        let mut shard = self.shards[shard].lock().unwrap();
        shard.visit(fingerprint, u64::from(failures), u64::from(round))
    }

    fn work(&self, round: u8, threads: usize) {
        while let Some(job) = self.next_job(threads) {
            self.search(job, round);
        }
    }

    fn next_job(&self, threads: usize) -> Option<Job> {
        self.idle.fetch_add(1, Ordering::SeqCst);
        loop {
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            {
                let mut pool = self.pool.lock().unwrap();
                if let Some(job) = pool.pop() {
                    self.idle.fetch_sub(1, Ordering::SeqCst);
                    return Some(job);
                }
                if self.idle.load(Ordering::SeqCst) == threads {
                    return None;
                }
            }
            std::thread::yield_now();
        }
    }

    /// Looks at a state and at everything that may follow, depth first.
    fn search(&self, job: Job, round: u8) {
        let mut path = job.path;
        let mut actions = Vec::new();
        let mut stack = vec![(job.world, job.failures, path.len(), None)];
        while let Some((world, failures, depth, last)) = stack.pop() {
            path.truncate(depth);
            path.extend(last);
            actions.clear();
            world.actions(&mut actions);
            for action in actions.drain(..) {
                let after = failures + u8::from(action.is_failure());
                if after > round {
                    continue;
                }
                let mut next = world.clone();
                next.step(action);
                let next = next.canonical();
                let (is_due, is_new) = self.visit(&next, after, round);
                if is_new && let Some(promise) = self.broken_promise(&next) {
                    path.push(action);
                    self.report(promise, path);
                    return;
                }
                if is_due {
                    stack.push((next, after, path.len(), Some(action)));
                }
            }
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            if stack.len() > SHARED_ABOVE && self.idle.load(Ordering::Relaxed) > 0 {
                let (world, failures, depth, last) = stack.remove(0);
                let mut path = path[..depth].to_vec();
                path.extend(last);
                self.pool.lock().unwrap().push(Job {
                    world,
                    failures,
                    path,
                });
            }
        }
    }

    fn broken_promise(&self, world: &World) -> Option<&'static str> {
        let broken = self.promises.iter().find(|(_, holds)| !holds(world));
        broken.map(|(promise, _)| *promise)
    }

    fn report(&self, promise: &'static str, path: Vec<Action>) {
        *self.broken.lock().unwrap() = Some(Broken { promise, path });
        self.is_over.store(true, Ordering::Relaxed);
    }
}
