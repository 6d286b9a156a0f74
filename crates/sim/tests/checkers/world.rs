//! A world that is right by construction: every operation acts at one moment between its invocation and its
//! return, on one right file system. Nodes crash, power fails, disks fail.

use lockstep_sim::check::Dump;
use lockstep_sim::history::{CallId, History, NodeEvent, Outcome, Stop};
use lockstep_sim::random::Random;
use lockstep_sim::workload::{Generator, Op, Options, Source};
use lockstep_sim::world::Side;
use lockstep_types::{Errno, Ino};

use crate::fs::{Bug, Fs};

/// The faults of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// No faults.
    None,
    /// Processes crash.
    Crashes,
    /// Machines lose power too, and disks fail.
    All,
}

/// An operation in progress.
struct InProgress {
    client: u32,
    id: CallId,
    op: Op,
    outcome: Option<Outcome>,
}

struct World {
    random: Random,
    generator: Generator,
    clients: u32,
    history: History,
    always: bool,
    fs: Fs,
    in_progress: Vec<InProgress>,
    /// Metadata operations that a crash left in doubt.
    in_doubt: Vec<Op>,
    poisoned: bool,
    /// Upper limit of the remaining faults.
    faults_left: u64,
    clock: u64,
    next_ino: u64,
}

/// The results of a run.
pub struct Run {
    pub history: History,
    pub last: Dump,
}

/// Runs a world of `operations` operations.
pub fn run(seed: u64, operations: usize, faults: Faults) -> Run {
    run_wrong(seed, operations, faults, None)
}

/// Runs a world with a deliberate fault.
pub fn run_wrong(seed: u64, operations: usize, faults: Faults, bug: Option<Bug>) -> Run {
    let mut random = Random::new(seed);
    let options = Options {
        clients: 1 + u32::try_from(random.below(6)).unwrap(),
        file_bytes_max: *random.pick(&[8 << 10, 64 << 10]),
        ..Options::default()
    };
    let always = random.percent(20);
    let mut world = World {
        generator: Generator::new(options.clone(), random.fork()),
        random,
        clients: options.clients,
        history: History::new(always),
        always,
        fs: Fs::default(),
        in_progress: Vec::new(),
        in_doubt: Vec::new(),
        poisoned: false,
        faults_left: 0,
        clock: 0,
        next_ino: 2,
    };
    world.fs.bug = bug;
    world.faults_left = world.random.below(6);
    world.live(operations, faults);
    Run {
        last: world.fs.dump(),
        history: world.history,
    }
}

impl World {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn live(&mut self, operations: usize, faults: Faults) {
        let mut invoked = 0;
        while invoked < operations {
            match self.random.below(1000) {
                0..350 => invoked += usize::from(self.invoke()),
                350..650 => self.act(),
                650..950 => self.answer(),
                950..970 => self.fs.reap(),
                970..985 => self.settle_doubt(),
                _ if self.random.percent(70) || self.faults_left == 0 => {}
                _ => {
                    self.faults_left -= 1;
                    self.fault(faults);
                }
            }
        }
        while self
            .in_progress
            .iter()
            .any(|running| running.outcome.is_none())
        {
            self.act();
        }
        while !self.in_progress.is_empty() && self.random.percent(95) {
            self.answer();
        }
    }

    /// A client without an operation in progress invokes one.
    fn invoke(&mut self) -> bool {
        let client = u32::try_from(self.random.below(u64::from(self.clients))).unwrap();
        if self
            .in_progress
            .iter()
            .any(|running| running.client == client)
        {
            return false;
        }
        let op = self
            .generator
            .next(client, Ino::new(self.next_ino).unwrap())
            .unwrap();
        self.next_ino += u64::from(op.makes().is_some());
        let at = self.tick();
        let id = self.history.invoked(client, op.clone(), at);
        self.in_progress.push(InProgress {
            client,
            id,
            op,
            outcome: None,
        });
        true
    }

    fn pick_in_progress(&mut self, acted: bool) -> Option<usize> {
        let fits = |running: &InProgress| running.outcome.is_some() == acted;
        let fitting: Vec<_> = (0..self.in_progress.len())
            .filter(|index| fits(&self.in_progress[*index]))
            .collect();
        (!fitting.is_empty()).then(|| *self.random.pick(&fitting))
    }

    /// An operation acts.
    fn act(&mut self) {
        let Some(index) = self.pick_in_progress(false) else {
            return;
        };
        let op = self.in_progress[index].op.clone();
        let outcome = self.outcome(&op);
        self.in_progress[index].outcome = Some(outcome);
    }

    fn outcome(&mut self, op: &Op) -> Outcome {
        let syncs = match op {
            Op::Sync { .. } => true,
            Op::Write(write) => write.durable || self.always,
            Op::Change(_) => self.always,
            _ => false,
        };
        let changes = matches!(op, Op::Write(_) | Op::Change(_));
        // A poisoned store mostly refuses changes. Some changes may still be in progress.
        if self.poisoned && (syncs || changes && self.random.percent(90)) {
            return Err(Errno::Io);
        }
        if self.random.below(300) == 0 {
            return self.fail(op);
        }
        let outcome = match self.fs.bug.filter(|_| self.random.percent(3)) {
            Some(bug) => self.apply_wrongly(op, bug),
            None => self.fs.apply(op),
        };
        if self.always && outcome.is_ok() && matches!(op, Op::Write(_) | Op::Change(_)) {
            self.sync_after(op);
        }
        outcome
    }

    fn apply_wrongly(&mut self, op: &Op, bug: Bug) -> Outcome {
        match (op, bug) {
            (
                Op::Read {
                    ino,
                    offset,
                    length,
                },
                Bug::StaleRead,
            ) => {
                let old = self.fs.read_old(*ino, *offset, *length);
                old.map_or_else(|| self.fs.apply(op), Ok)
            }
            (Op::Change(_), Bug::Twice) => {
                self.in_doubt.push(op.clone());
                self.fs.apply(op)
            }
            (Op::Write(write), Bug::HalfWrite) => {
                let end = write.offset + self.random.below(write.length + 1);
                self.fs.write(write, end)
            }
            _ => self.fs.apply(op),
        }
    }

    /// Makes every answered operation durable.
    fn sync_after(&mut self, op: &Op) {
        let inos = match op {
            Op::Write(write) => [Some(write.ino), None],
            Op::Change(
                lockstep_types::MetaRequest::Truncate { ino, .. }
                | lockstep_types::MetaRequest::Allocate { ino, .. },
            ) => [Some(*ino), None],
            _ => [Some(Ino::ROOT), None],
        };
        if !self.poisoned {
            for ino in inos.into_iter().flatten() {
                self.fs.apply(&Op::Sync { ino }).unwrap();
            }
        }
    }

    /// The disk fails during an operation, which may have acted. A write may have acted in part.
    fn fail(&mut self, op: &Op) -> Outcome {
        if let Op::Write(write) = op {
            let end = write.offset + self.random.below(write.length + 1);
            let _ = self.fs.write(write, end);
            return Err(*self.random.pick(&[Errno::Io, Errno::NoSpace]));
        }
        if self.random.percent(50) && matches!(op, Op::Change(_)) {
            let _ = self.fs.apply(op);
            return Err(Errno::Io);
        }
        Err(*self.random.pick(&[Errno::Io, Errno::NoSpace]))
    }

    /// An operation that has acted returns.
    fn answer(&mut self) {
        let Some(index) = self.pick_in_progress(true) else {
            return;
        };
        let running = self.in_progress.swap_remove(index);
        let outcome = running.outcome.unwrap();
        let at = self.tick();
        self.history.returned(running.id, outcome.clone(), at);
        self.generator
            .observe(running.client, &running.op, &outcome);
    }

    /// An operation in doubt happens, or never happens.
    fn settle_doubt(&mut self) {
        if let Some(op) = self.in_doubt.pop()
            && self.random.percent(50)
        {
            let _ = self.fs.apply(&op);
        }
    }

    fn node(&mut self, node: Side, event: NodeEvent) {
        let at = self.tick();
        self.history.node(node, event, at);
    }

    fn fault(&mut self, faults: Faults) {
        match (faults, self.random.below(8)) {
            (Faults::None, _) => {}
            (_, 0..3) => self.stop_primary(Stop::Process),
            (_, 3) => self.node(Side::B, NodeEvent::Crashed(Stop::Process)),
            (Faults::All, 4..6) => self.stop_primary(Stop::Power),
            (Faults::All, 6) => self.node(Side::B, NodeEvent::Crashed(Stop::Power)),
            (Faults::All, 7) => {
                self.node(Side::A, NodeEvent::FlushFailed);
                self.fs.lose_content(&mut self.random);
                self.poisoned = true;
            }
            _ => {}
        }
    }

    fn stop_primary(&mut self, stop: Stop) {
        for running in std::mem::take(&mut self.in_progress) {
            if running.outcome.is_some() {
                continue;
            }
            match &running.op {
                Op::Write(write) => {
                    let end = write.offset + self.random.below(write.length + 1);
                    let _ = self.fs.write(write, end);
                }
                Op::Change(_) if stop == Stop::Process => self.in_doubt.push(running.op),
                _ => {}
            }
        }
        self.node(Side::A, NodeEvent::Crashed(stop));
        if stop == Stop::Power {
            self.in_doubt.clear();
        }
        let loses = self.fs.bug == Some(Bug::CrashLoses);
        if stop == Stop::Power || self.poisoned || loses {
            self.fs.lose_all(&mut self.random);
        }
        self.poisoned = false;
        self.node(Side::A, NodeEvent::Started);
        self.node(Side::A, NodeEvent::Serves);
    }
}
