//! One life of a node's process: from its start until it stops, is killed, or its machine loses
//! power.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_driver::{Gate, Host, Job, KeptLimits, RoomLimits};
use lockstep_fs::reserve::Withheld;
use lockstep_types::Timestamp;
use lockstep_types::backing::Room;
use parking_lot::Mutex;

use super::fibers::{self, Event, ProcessId, Wait};
use crate::random::Random;

/// How often in a hundred a thread that lets others go first does not go on for some time.
const PREEMPTED_PERCENT: u64 = 10;
/// That time at most, in microseconds: longer than frames take.
const PREEMPTED_MAX_US: u64 = 5000;

/// What a disk that hang keeps from being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// Flushes, and whatever else threads of no order do.
    Flushes,
    /// That, and what the courier does.
    All,
}

/// How often a job that waits for a hanging disk looks.
const HANG_POLL: Duration = Duration::from_millis(10);

/// Most bytes on their way to the secondary, so few that clients meet the limit.
pub const BYTES_IN_FLIGHT_MAX: u64 = 32 << 10;

/// Most bytes of writes that wait in memory, so few that others wait on the disk.
pub const KEPT_BYTES_MAX: u64 = 4 << 10;

/// Most bytes of the disk for those, so few that clients wait for room: one write as large as any.
pub const KEPT_FILE_BYTES_MAX: u64 = 16 << 10;

/// What is kept from clients on a disk, and from how much room on nothing is counted: so little that clients who have a
/// small disk fill it.
pub const ROOM_LIMITS: RoomLimits = RoomLimits {
    withheld: Withheld {
        reserve_bytes: 1 << 20,
        spare_bytes: 32 << 10,
        spare_files: 8,
    },
    ample: Room {
        bytes: 8 << 20,
        files: 1000,
    },
};

/// What all processes of a world share with who drives it.
pub struct Shared {
    now_ns: AtomicU64,
    /// Fibers to be started.
    spawned: Mutex<Vec<(ProcessId, Job)>>,
    random: Mutex<Random>,
    /// Of what nobody else may draw: apart from all else, so that it shifts nothing.
    ids: Mutex<Random>,
    /// How often in a hundred a step lets others go first.
    step_percent: u64,
}

impl Shared {
    /// A world at its beginning.
    pub fn new(random: Random, step_percent: u64) -> Self {
        Self {
            now_ns: AtomicU64::new(0),
            spawned: Mutex::default(),
            ids: Mutex::new(random.clone()),
            random: Mutex::new(random),
            step_percent,
        }
    }

    /// The world's time.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }

    /// Lets time pass until `moment`.
    pub fn advance(&self, moment: Duration) {
        let moment = u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns.fetch_max(moment, Ordering::Relaxed);
    }

    /// Draws from the world's random.
    pub fn with_random<T>(&self, body: impl FnOnce(&mut Random) -> T) -> T {
        body(&mut self.random.lock())
    }

    /// Fibers that were asked for since the last call.
    pub fn take_spawned(&self) -> Vec<(ProcessId, Job)> {
        std::mem::take(&mut *self.spawned.lock())
    }

    /// Asks for a fiber.
    pub fn spawn(&self, process: ProcessId, job: Job) {
        self.spawned.lock().push((process, job));
    }
}

/// One life of a process.
pub struct Process {
    id: ProcessId,
    shared: Arc<Shared>,
    /// Its monotonic clock began at some other value than the world's time.
    clock_ahead: Duration,
    dead: AtomicBool,
    stopped: AtomicBool,
    /// What of that which it hands to other threads is not begun.
    hang: Mutex<Option<Hang>>,
    courier: Mutex<Courier>,
    /// Jobs given and not yet done.
    jobs: AtomicU64,
}

#[derive(Default)]
struct Courier {
    queued: std::collections::VecDeque<Job>,
    running: bool,
}

impl Process {
    /// A process that begins to live now.
    pub fn new(id: ProcessId, shared: Arc<Shared>) -> Arc<Self> {
        let clock_ahead = Duration::from_millis(shared.with_random(|random| random.below(100_000)));
        Arc::new(Self {
            id,
            shared,
            clock_ahead,
            dead: AtomicBool::new(false),
            hang: Mutex::default(),
            stopped: AtomicBool::new(false),
            courier: Mutex::default(),
            jobs: AtomicU64::new(0),
        })
    }

    /// Which one.
    pub const fn id(&self) -> ProcessId {
        self.id
    }

    /// The world it lives in.
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// From now on nothing that it does counts.
    pub fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Whether it has died.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Lets what it hands to other threads wait, or go on.
    pub fn set_hang(&self, hang: Option<Hang>) {
        *self.hang.lock() = hang;
    }

    fn wait_while_hanging(&self, with: &[Hang]) {
        while self.hang.lock().is_some_and(|hang| with.contains(&hang)) {
            fibers::wait(Wait::Until(self.shared.now() + HANG_POLL));
        }
    }

    /// Lets go of what the process had still to do, when none of its fibers is left. What waits there
    /// holds the process, which holds what waits.
    pub fn drop_jobs(&self) {
        let jobs = std::mem::take(&mut self.courier.lock().queued);
        drop(jobs);
    }

    /// Ends the fiber that runs, if its process has died.
    pub fn stop_if_dead(&self) {
        if self.is_dead() && fibers::is_in_fiber() {
            fibers::wait(Wait::Dead);
        }
    }

    /// Starts a fiber of this process.
    pub fn start(&self, body: impl FnOnce() + Send + 'static) {
        self.shared.spawn(self.id, Box::new(body));
    }

    /// Waits for something, but not longer than until some moment of the world's time.
    pub fn wait_for(&self, event: Arc<dyn Event>, limit: Option<Duration>) {
        fibers::wait(Wait::For(event, limit));
    }
}

/// A host is shared by the datastore and its fibers; this is the process as they see it.
pub struct ProcessHost(pub Arc<Process>);

impl ProcessHost {
    /// Counts a job, which does not begin as long as the disk hang in one of these ways.
    fn counted(&self, job: Job, stopped_by: &'static [Hang]) -> Option<Job> {
        if self.0.stopped.load(Ordering::Relaxed) {
            return None;
        }
        self.0.jobs.fetch_add(1, Ordering::Relaxed);
        let process = Arc::clone(&self.0);
        Some(Box::new(move || {
            process.wait_while_hanging(stopped_by);
            job();
            process.jobs.fetch_sub(1, Ordering::Relaxed);
        }))
    }
}

impl Host for ProcessHost {
    fn now(&self) -> Duration {
        self.0.shared.now() + self.0.clock_ahead
    }

    fn time_of_day(&self) -> Timestamp {
        // Wall clocks jump: any time will do, as long as the seed decides.
        let jump = self.0.shared.with_random(|random| random.below(1_000_000));
        let nanos = u32::try_from(jump).unwrap_or(0);
        let seconds = 1_700_000_000 + self.0.shared.now().as_secs();
        Timestamp {
            secs: i64::try_from(seconds).unwrap_or(0),
            nanos,
        }
    }

    fn draw(&self) -> [u8; 16] {
        let shared = &self.0.shared;
        let drawn = shared.ids.lock().any();
        // Another world may have begun with the same luck.
        let moment = shared.now_ns.load(Ordering::Relaxed);
        let both = [drawn, moment].map(u64::to_be_bytes);
        *both.as_flattened().first_chunk().unwrap_or(&[0; 16])
    }

    fn sleep(&self, time: Duration) {
        fibers::wait(Wait::Until(self.0.shared.now() + time));
    }

    fn set_reading(&self, is_reading: bool) {
        fibers::set_thread_role(if is_reading {
            fibers::ThreadRole::Reading
        } else {
            fibers::ThreadRole::Other
        });
    }

    fn is_reading(&self) -> bool {
        fibers::thread_role() == fibers::ThreadRole::Reading
    }

    fn bytes_in_flight_max(&self) -> u64 {
        BYTES_IN_FLIGHT_MAX
    }

    fn kept_limits(&self) -> KeptLimits {
        KeptLimits {
            memory_bytes: KEPT_BYTES_MAX,
            file_bytes: KEPT_FILE_BYTES_MAX,
            spare_bytes: 0,
        }
    }

    fn room_limits(&self) -> RoomLimits {
        ROOM_LIMITS
    }

    fn gate(&self) -> Arc<dyn Gate> {
        Arc::new(FiberGate(Arc::default()))
    }

    fn spawn(&self, job: Job) {
        if let Some(job) = self.counted(job, &[Hang::Flushes, Hang::All]) {
            self.0.shared.spawn(self.0.id, job);
        }
    }

    fn in_order(&self, job: Job) {
        let Some(job) = self.counted(job, &[Hang::All]) else {
            return;
        };
        let begin = {
            let mut courier = self.0.courier.lock();
            courier.queued.push_back(job);
            !std::mem::replace(&mut courier.running, true)
        };
        if begin {
            let process = Arc::clone(&self.0);
            self.0.start(move || run_courier(&process));
        }
    }

    fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
        while self.0.jobs.load(Ordering::Relaxed) > 0 {
            fibers::wait(Wait::Until(self.0.shared.now() + Duration::from_millis(1)));
        }
    }

    fn step(&self) {
        let share = self.0.shared.step_percent;
        if fibers::is_in_fiber() && self.0.shared.with_random(|random| random.percent(share)) {
            let slept = self.0.shared.with_random(|random| {
                random
                    .percent(PREEMPTED_PERCENT)
                    .then(|| random.below(PREEMPTED_MAX_US))
            });
            fibers::wait(slept.map_or(Wait::Step, |slept| {
                Wait::Until(self.0.shared.now() + Duration::from_micros(slept))
            }));
        }
        self.0.stop_if_dead();
    }
}

fn run_courier(process: &Process) {
    loop {
        let job = {
            let mut courier = process.courier.lock();
            let job = courier.queued.pop_front();
            courier.running = job.is_some();
            job
        };
        match job {
            Some(job) => job(),
            None => return,
        }
    }
}

/// A gate between fibers.
struct FiberGate(Arc<Latch>);

/// Whether a gate is open.
#[derive(Default)]
pub struct Latch(AtomicBool);

impl Latch {
    /// Lets it have come.
    pub fn open(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Event for Latch {
    fn has_come(&self, _now: Duration) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Gate for FiberGate {
    fn open(&self) {
        self.0.open();
    }

    fn wait(&self) {
        if !self.0.has_come(Duration::ZERO) {
            fibers::wait(Wait::For(Arc::clone(&self.0) as Arc<dyn Event>, None));
        }
    }
}
