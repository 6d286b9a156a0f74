//! A process of a node, from its start until it stops, is killed, or its machine loses power.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_driver::{Alarm, Gate, GateAlarm, Host, Job, RoomLimits, SpillLimits};
use lockstep_fs::reserve::Withheld;
use lockstep_fs::store::MarkTableSizes;
use lockstep_types::Timestamp;
use lockstep_types::backing::Room;
use parking_lot::Mutex;

use super::fibers::{self, Event, ProcessId, Wait};
use crate::random::Random;

/// Share of a thread's yields after which the thread sleeps, in percent.
const PREEMPTED_PERCENT: u64 = 10;
/// The longest of these sleeps, in microseconds. It is longer than the time of a frame.
const PREEMPTED_MAX_US: u64 = 5000;

/// The work that a hanging disk stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hang {
    /// Flushes, and all other work on threads without an order.
    Flushes,
    /// That work, and the work of the courier thread.
    All,
}

/// The interval between two looks of a job that waits for a hanging disk.
const HANG_POLL: Duration = Duration::from_millis(10);

/// Most bytes in flight to the secondary: so few that clients reach the limit.
pub const BYTES_IN_FLIGHT_MAX: u64 = 32 << 10;

/// Most bytes of waiting writes in memory: so few that other writes wait on the disk.
pub const SPILL_MEMORY_BYTES_MAX: u64 = 4 << 10;

/// Most bytes of waiting writes on the disk: so few that clients wait for room. One write of the
/// largest size fits.
pub const SPILL_FILE_BYTES_MAX: u64 = 16 << 10;

/// The sizes of the tables of marks: so few slots for a column that some schedules fill one.
pub fn mark_tables() -> MarkTableSizes {
    MarkTableSizes {
        column_slots: 256,
        ..MarkTableSizes::default()
    }
}

/// Time between two barriers: so short that schedules have many, and long enough that marks gather.
pub const BARRIER_INTERVAL: Duration = Duration::from_millis(700);

/// The room on a disk that clients cannot use, and the room from which on no room is counted: so
/// little that clients fill a small disk.
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

/// The state that all processes of a world share with the world.
pub struct Shared {
    now_ns: AtomicU64,
    /// The requested fibers.
    spawned: Mutex<Vec<(ProcessId, Job)>>,
    random: Mutex<Random>,
    /// The source of random ids. It is separate, so that the ids do not shift other choices.
    ids: Mutex<Random>,
    /// Seconds by which the wall clocks of all machines have jumped.
    wall_jump: AtomicI64,
    /// Share of the steps that let other threads run first, in percent.
    step_percent: u64,
}

impl Shared {
    /// Returns the state of a new world.
    pub fn new(random: Random, step_percent: u64) -> Self {
        Self {
            now_ns: AtomicU64::new(0),
            spawned: Mutex::default(),
            ids: Mutex::new(random.clone()),
            random: Mutex::new(random),
            wall_jump: AtomicI64::new(0),
            step_percent,
        }
    }

    /// Lets the wall clocks of all machines jump by some seconds.
    pub fn jump_wall_clocks(&self, secs: i64) {
        self.wall_jump.fetch_add(secs, Ordering::Relaxed);
    }

    /// Returns the time of the world.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }

    /// Advances the time to `moment`.
    pub fn advance(&self, moment: Duration) {
        let moment = u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns.fetch_max(moment, Ordering::Relaxed);
    }

    /// Draws from the random source of the world.
    pub fn with_random<T>(&self, body: impl FnOnce(&mut Random) -> T) -> T {
        body(&mut self.random.lock())
    }

    /// Takes the fibers that were requested since the last call.
    pub fn take_spawned(&self) -> Vec<(ProcessId, Job)> {
        std::mem::take(&mut *self.spawned.lock())
    }

    /// Requests a fiber.
    pub fn spawn(&self, process: ProcessId, job: Job) {
        self.spawned.lock().push((process, job));
    }
}

/// A process.
pub struct Process {
    id: ProcessId,
    shared: Arc<Shared>,
    /// The difference between the monotonic clock of the process and the time of the world.
    clock_ahead: Duration,
    /// The excess of the rate of the monotonic clock, in thousandths.
    clock_excess: AtomicI64,
    dead: AtomicBool,
    stopped: AtomicBool,
    /// The work on other threads that does not begin, because the disk hangs.
    hang: Mutex<Option<Hang>>,
    courier: Mutex<Courier>,
    /// Number of jobs that are not done.
    jobs: AtomicU64,
}

#[derive(Default)]
struct Courier {
    queued: std::collections::VecDeque<Job>,
    running: bool,
}

impl Process {
    /// Returns a process that starts now.
    pub fn new(id: ProcessId, shared: Arc<Shared>) -> Arc<Self> {
        let clock_ahead = Duration::from_millis(shared.with_random(|random| random.below(100_000)));
        Arc::new(Self {
            id,
            shared,
            clock_ahead,
            clock_excess: AtomicI64::new(0),
            dead: AtomicBool::new(false),
            hang: Mutex::default(),
            stopped: AtomicBool::new(false),
            courier: Mutex::default(),
            jobs: AtomicU64::new(0),
        })
    }

    /// Returns the number of the process.
    pub const fn id(&self) -> ProcessId {
        self.id
    }

    /// Returns the shared state of its world.
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Makes the monotonic clock of the process run faster by some thousandths, or slower.
    pub fn set_clock_excess(&self, thousandths: i64) {
        self.clock_excess.store(thousandths, Ordering::Relaxed);
    }

    /// Returns the time of a monotonic clock that all processes of the machine share.
    pub fn machine_time(&self) -> Duration {
        let now = self.shared.now();
        let excess = self.clock_excess.load(Ordering::Relaxed);
        let changed = now / 1000 * u32::try_from(excess.unsigned_abs()).unwrap_or(0);
        if excess < 0 {
            now.saturating_sub(changed)
        } else {
            now + changed
        }
    }

    fn monotonic(&self) -> Duration {
        self.machine_time() + self.clock_ahead
    }

    /// Returns the time of the world at which the monotonic clock of the process will have gone on by `time`, or a moment later.
    fn world_time_after(&self, time: Duration) -> Duration {
        let excess = self.clock_excess.load(Ordering::Relaxed);
        if excess == 0 {
            return self.shared.now().saturating_add(time);
        }
        let rate = u128::try_from(1000 + excess).unwrap_or(1);
        // The clock moves in steps of a few hundred nanoseconds.
        let nanos = time.as_nanos().saturating_mul(1000) / rate.max(1) + 1000;
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.shared
            .now()
            .saturating_add(Duration::from_nanos(nanos))
    }

    /// Marks the process as dead: nothing that the process does has an effect any more.
    pub fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Returns whether the process is dead.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Stops the work on other threads, or lets the work continue.
    pub fn set_hang(&self, hang: Option<Hang>) {
        *self.hang.lock() = hang;
    }

    /// Returns whether the disk holds the work on other threads.
    pub fn is_hanging(&self) -> bool {
        self.hang.lock().is_some()
    }

    fn wait_while_hanging(&self, with: &[Hang]) {
        while self.hang.lock().is_some_and(|hang| with.contains(&hang)) {
            fibers::wait(Wait::Until(self.shared.now() + HANG_POLL));
        }
    }

    /// Drops the jobs that are not done, after the end of all fibers. A waiting job holds the
    /// process, and the process holds the job.
    pub fn drop_jobs(&self) {
        let jobs = std::mem::take(&mut self.courier.lock().queued);
        drop(jobs);
    }

    /// Ends the running fiber, if its process is dead.
    pub fn stop_if_dead(&self) {
        if self.is_dead() && fibers::is_in_fiber() {
            fibers::wait(Wait::Dead);
        }
    }

    /// Starts a fiber of this process.
    pub fn start(&self, body: impl FnOnce() + Send + 'static) {
        self.shared.spawn(self.id, Box::new(body));
    }

    /// Waits for an event, but at most until a time of the world.
    pub fn wait_for(&self, event: Arc<dyn Event>, limit: Option<Duration>) {
        fibers::wait(Wait::For(event, limit));
    }
}

/// The process as the host of its datastore. The datastore and its fibers share it.
pub struct ProcessHost(pub Arc<Process>);

impl ProcessHost {
    /// Counts a job. The job does not begin while the disk hangs in one of these ways.
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
        self.0.monotonic()
    }

    fn time_of_day(&self) -> Timestamp {
        // A wall clock jumps: any time is possible, but the seed decides.
        let jump = self.0.shared.with_random(|random| random.below(1_000_000));
        let nanos = u32::try_from(jump).unwrap_or(0);
        let seconds = 1_700_000_000 + self.0.shared.now().as_secs();
        Timestamp {
            secs: i64::try_from(seconds).unwrap_or(0)
                + self.0.shared.wall_jump.load(Ordering::Relaxed),
            nanos,
        }
    }

    fn random_id(&self) -> [u8; 16] {
        let shared = &self.0.shared;
        let drawn = shared.ids.lock().any();
        // Another world may have begun with the same seed.
        let moment = shared.now_ns.load(Ordering::Relaxed);
        let both = [drawn, moment].map(u64::to_be_bytes);
        *both.as_flattened().first_chunk().unwrap_or(&[0; 16])
    }

    fn alarm(&self) -> Arc<dyn Alarm> {
        Arc::new(GateAlarm::default())
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

    fn spill_limits(&self) -> SpillLimits {
        SpillLimits {
            memory_bytes: SPILL_MEMORY_BYTES_MAX,
            file_bytes: SPILL_FILE_BYTES_MAX,
            spare_bytes: 0,
        }
    }

    fn mark_tables(&self) -> MarkTableSizes {
        mark_tables()
    }

    fn barrier_interval(&self) -> Duration {
        BARRIER_INTERVAL
    }

    fn room_limits(&self) -> RoomLimits {
        ROOM_LIMITS
    }

    fn gate(&self) -> Arc<dyn Gate> {
        Arc::new(FiberGate {
            latch: Arc::default(),
            process: Arc::clone(&self.0),
        })
    }

    fn spawn(&self, job: Job) {
        if let Some(job) = self.counted(job, &[Hang::Flushes, Hang::All]) {
            self.0.shared.spawn(self.0.id, job);
        }
    }

    fn spawn_ordered(&self, job: Job) {
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
    fibers::set_thread_role(fibers::ThreadRole::Courier);
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

/// A gate between fibers of a process.
struct FiberGate {
    latch: Arc<Latch>,
    process: Arc<Process>,
}

/// An event that happens once.
#[derive(Default)]
pub struct Latch(AtomicBool);

impl Latch {
    /// Lets the event happen.
    pub fn open(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Event for Latch {
    fn has_happened(&self, _now: Duration) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Gate for FiberGate {
    fn open(&self) {
        self.latch.open();
    }

    fn wait_for(&self, limit: Option<Duration>) -> bool {
        if self.latch.has_happened(Duration::ZERO) {
            return true;
        }
        let end = limit.map(|limit| self.process.world_time_after(limit));
        self.process
            .wait_for(Arc::clone(&self.latch) as Arc<dyn Event>, end);
        self.latch.has_happened(Duration::ZERO)
    }
}
