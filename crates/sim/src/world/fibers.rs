//! Fibers: the threads of the simulated processes. One thread runs one fiber at a time.
//!
//! A fiber runs until it waits. Then the world decides which fiber continues. So the world chooses
//! the order of everything, and the same choices give the same run. A fiber of a dead process is
//! never resumed: its stack is unwound, as if the fiber had stopped at its last wait.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// The size of a stack, enough for a checkpoint of the metadata store. Only the used part takes
/// memory.
const STACK_BYTES: usize = 1 << 20;
/// Most stacks that are kept for the next fibers.
const STACKS_KEPT_MAX: usize = 64;

/// The number of a process. No two processes of a world have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// The kind of thread that a fiber stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRole {
    /// A thread whose kind makes no difference.
    Other,
    /// A thread that serves a client.
    Serving,
    /// A thread that reads from the peer.
    Reading,
    /// The thread that asks the witness.
    Asking,
    /// The courier thread.
    Courier,
    /// A thread that dials the other node, until it reads from that node.
    Dialing,
    /// A thread that meets a node which has dialled this one, until it reads from that node.
    Meeting,
}

impl ThreadRole {
    /// Whether such a thread must not wait until the other node reads.
    pub const fn must_not_wait_for_room(self) -> bool {
        !matches!(self, Self::Other | Self::Dialing | Self::Meeting)
    }
}

/// An event that a fiber can wait for.
pub trait Event: Send + Sync {
    /// Returns whether the event has happened, at `now`.
    fn has_happened(&self, now: Duration) -> bool;

    /// Returns the time when the event happens by itself, if it is known.
    fn due(&self) -> Option<Duration> {
        None
    }
}

/// The reason why a fiber waits.
pub enum Wait {
    /// To let other fibers run first.
    Step,
    /// Until a time of the world.
    Until(Duration),
    /// For an event, but at most until a time of the world.
    For(Arc<dyn Event>, Option<Duration>),
    /// Forever, because the process is dead.
    Dead,
}

impl Wait {
    fn is_over(&self, now: Duration) -> bool {
        match self {
            Self::Step => true,
            Self::Until(moment) => *moment <= now,
            Self::For(event, limit) => {
                event.has_happened(now) || limit.is_some_and(|limit| limit <= now)
            }
            Self::Dead => false,
        }
    }

    /// Returns the next time at which the wait may be over.
    fn due(&self) -> Option<Duration> {
        match self {
            Self::Step | Self::Dead => None,
            Self::Until(moment) => Some(*moment),
            Self::For(event, limit) => [event.due(), *limit].into_iter().flatten().min(),
        }
    }
}

type Switch = Yielder<(), Wait>;

thread_local! {
    static CURRENT: Cell<Option<NonNull<Switch>>> = const { Cell::new(None) };
    static THREAD_ROLE: Cell<ThreadRole> = const { Cell::new(ThreadRole::Other) };
    /// The stack of a fiber is being unwound.
    static ENDING: Cell<bool> = const { Cell::new(false) };
}

/// The panic that unwinds a stack again, where code around foreign code has caught the first
/// unwinding and continued.
struct Unwind;

/// Waits, inside a fiber.
///
/// # Panics
/// Outside of fibers.
pub fn wait(reason: Wait) {
    let Some(switch) = CURRENT.get() else {
        assert!(ENDING.get(), "only fibers wait");
        resume_unwind(Box::new(Unwind));
    };
    // SAFETY: each time a fiber is resumed, the fiber sets `CURRENT` to the switch on its own
    // stack. This code runs on that stack.
    let switch = unsafe { switch.as_ref() };
    let role = THREAD_ROLE.get();
    switch.suspend(reason);
    CURRENT.set(Some(NonNull::from(switch)));
    THREAD_ROLE.set(role);
}

/// Runs `body` as a thread that serves a client does.
pub fn serving<T>(body: impl FnOnce() -> T) -> T {
    let before = THREAD_ROLE.replace(ThreadRole::Serving);
    let outcome = body();
    THREAD_ROLE.set(before);
    outcome
}

/// Returns the kind of the running fiber.
pub fn thread_role() -> ThreadRole {
    THREAD_ROLE.get()
}

/// Sets the kind of the running fiber.
pub fn set_thread_role(role: ThreadRole) {
    THREAD_ROLE.set(role);
}

/// Returns whether this code runs inside a fiber.
pub fn is_in_fiber() -> bool {
    CURRENT.get().is_some() || ENDING.get()
}

struct Fiber {
    process: ProcessId,
    coroutine: Coroutine<(), Wait, (), DefaultStack>,
    wait: Wait,
    /// The kind of thread at the last wait.
    role: ThreadRole,
    /// The fiber stands still until this time of the world, also if its wait is over before.
    held_until: Duration,
}

impl Fiber {
    fn is_ready(&self, now: Duration) -> bool {
        self.held_until <= now && self.wait.is_over(now)
    }

    /// Returns the next time at which the fiber may be ready.
    fn due(&self, now: Duration) -> Option<Duration> {
        if self.held_until > now {
            Some(self.held_until)
        } else {
            self.wait.due()
        }
    }
}

/// All fibers of a world.
#[derive(Default)]
pub struct Fibers {
    alive: BTreeMap<u64, Fiber>,
    next: u64,
    stacks: Vec<DefaultStack>,
}

impl Fibers {
    /// Adds a fiber of a process, ready to run.
    pub fn add(&mut self, process: ProcessId, body: Box<dyn FnOnce() + Send>) {
        let stack = self.stacks.pop().unwrap_or_else(new_stack);
        let coroutine = Coroutine::with_stack(stack, move |switch: &Switch, ()| {
            CURRENT.set(Some(NonNull::from(switch)));
            THREAD_ROLE.set(ThreadRole::Other);
            body();
        });
        let fiber = Fiber {
            process,
            coroutine,
            wait: Wait::Step,
            role: ThreadRole::Other,
            held_until: Duration::ZERO,
        };
        self.alive.insert(self.next, fiber);
        self.next += 1;
    }

    /// Returns the fibers that can continue at `now`, oldest first.
    pub fn ready(&self, now: Duration) -> Vec<u64> {
        let ready = self.alive.iter().filter(|(_, f)| f.is_ready(now));
        ready.map(|(number, _)| *number).collect()
    }

    /// Returns the next time at which a fiber can continue.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        self.alive.values().filter_map(|f| f.due(now)).min()
    }

    /// Lets one fiber of a process stand still until a time: one of the kind `role`, or any. `drawn` chooses the fiber.
    pub fn hold(
        &mut self,
        process: ProcessId,
        role: Option<ThreadRole>,
        drawn: u64,
        until: Duration,
    ) {
        let is_meant = |fiber: &&mut Fiber| {
            fiber.process == process && role.is_none_or(|role| fiber.role == role)
        };
        let mut meant: Vec<&mut Fiber> = self.alive.values_mut().filter(is_meant).collect();
        let count = meant.len().max(1) as u64;
        let place = usize::try_from(drawn % count).unwrap_or(0);
        if let Some(fiber) = meant.get_mut(place) {
            fiber.held_until = until.max(fiber.held_until);
        }
    }

    /// Returns whether a fiber stands still at `now`.
    pub fn holds_one(&self, now: Duration) -> bool {
        self.alive.values().any(|fiber| fiber.held_until > now)
    }

    /// Lets a fiber run until it waits again or ends.
    pub fn resume(&mut self, number: u64) {
        let Some(fiber) = self.alive.get_mut(&number) else {
            return;
        };
        let outcome = fiber.coroutine.resume(());
        CURRENT.set(None);
        fiber.role = THREAD_ROLE.get();
        match outcome {
            CoroutineResult::Yield(wait) => fiber.wait = wait,
            CoroutineResult::Return(()) => self.remove_finished(number),
        }
    }

    fn remove_finished(&mut self, number: u64) {
        if let Some(fiber) = self.alive.remove(&number) {
            self.keep_stack(fiber);
        }
    }

    /// Keeps the stack of an ended fiber for another fiber.
    fn keep_stack(&mut self, fiber: Fiber) {
        if self.stacks.len() < STACKS_KEPT_MAX {
            self.stacks.push(fiber.coroutine.into_stack());
        }
    }

    /// Ends all fibers of a process at their last waits.
    pub fn kill(&mut self, process: ProcessId) {
        let of_process = self.alive.iter().filter(|(_, f)| f.process == process);
        let numbers: Vec<u64> = of_process.map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some(mut fiber) = self.alive.remove(&number) {
                end(&mut fiber);
                self.keep_stack(fiber);
            }
        }
    }
}

/// Unwinds the stack of a fiber.
fn end(fiber: &mut Fiber) {
    ENDING.set(true);
    let ended = catch_unwind(AssertUnwindSafe(|| fiber.coroutine.force_unwind()));
    ENDING.set(false);
    if let Err(panic) = ended
        && !panic.is::<Unwind>()
    {
        resume_unwind(panic);
    }
}

fn new_stack() -> DefaultStack {
    match DefaultStack::new(STACK_BYTES) {
        Ok(stack) => stack,
        Err(error) => panic!("no memory for the stack of a fiber: {error}"),
    }
}
