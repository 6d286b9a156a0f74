//! The queue of a mount for requests that wait for this node to serve. Each request asks here first: it runs, waits, or is
//! refused.
//!
//! A waiting request is *parked*: it lies in a list and uses no thread. The service says when this node serves
//! ([`FileService::when_serving`]). Then a thread of the mount runs the parked requests in the order of their arrival. Each
//! of them is admitted anew, so it may be parked again.
//!
//! Invariants:
//! - A parked request runs or is refused, once. [`StandbyQueue::close`] refuses all that are left.
//! - A change is parked, and runs, only in the tenure in which it was asked (rule R13): it would run on changes that the
//!   other node has made since. A node that follows refuses each change. An earlier process may have served until this one
//!   began, so each request that it had read belongs to the first tenure of this one.
//! - A parked change that no process has executed is noted in the memory of the mount, until it runs: the next process may
//!   park it again.
//! - A request of a killed program does not run: the program never gets the answer, and waits for the answer to end.
//! - A write-back that may bring bytes from before the time of the other node does not run ([`UnfinishedDrops`]).
//! - No lock is held while a request runs or the service is called, except when the service is told how many requests wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_driver::client::{FileService, Inside, RequestKind, Standing};
use lockstep_driver::threads;
use lockstep_types::Errno;
use lockstep_types::settings::Standby;
use parking_lot::Mutex;

use super::admitted::{Admitted, Passed, RequestRunner};
use super::in_flight_requests::InFlightRequests;
use super::parked_requests::{ParkedList, ParkedRequest};
use super::request_info::RequestClass;
use super::waiting_notice::WaitingNotice;
use crate::device::session_end::SessionEnd;
use crate::kernel_cache::file_pages::PageRead;
use crate::kernel_cache::unfinished_drops::UnfinishedDrops;
use crate::memory::mount_memory::{ChangeNote, MountMemory, NoteSlot};
use crate::worker::Worker;

/// The shortest time between two looks whether a program that waits was killed.
const LOOK_AT_PROGRAMS: Duration = Duration::from_millis(100);

/// The answer to a request that asks for admission.
pub(crate) enum AdmissionAnswer<'a> {
    /// The request may run.
    Inside(Admitted<'a>),
    /// The request must be parked ([`StandbyQueue::park`]), which passes until then.
    Waits(Passed<'a>),
    /// The request fails.
    Refused(Errno),
}

/// See the head of this file.
pub(crate) struct StandbyQueue {
    service: Arc<dyn FileService>,
    standby: Standby,
    /// Notes which changes are parked, and so not executed.
    memory: MountMemory,
    drops: Arc<UnfinishedDrops>,
    in_flight: InFlightRequests,
    runner: RequestRunner,
    /// The write-backs that were let in since the mount began.
    admitted_write_backs: AtomicU64,
    state: Mutex<ParkedList>,
    notice: WaitingNotice,
    /// Runs the parked requests.
    worker: Worker,
}

impl std::fmt::Debug for StandbyQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StandbyQueue").finish_non_exhaustive()
    }
}

impl StandbyQueue {
    /// The queue before a service, with the answer to programs while this node does not serve.
    pub fn new(
        service: Arc<dyn FileService>,
        standby: Standby,
        memory: MountMemory,
        drops: Arc<UnfinishedDrops>,
        session_end: Arc<SessionEnd>,
    ) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            memory,
            runner: RequestRunner::new(Arc::clone(&service), session_end),
            service,
            standby,
            drops,
            in_flight: InFlightRequests::default(),
            admitted_write_backs: AtomicU64::new(0),
            state: Mutex::default(),
            notice: WaitingNotice::default(),
            worker: Worker::start("fuse-standby")?,
        }))
    }

    /// The number of write-backs that were let in since the mount began.
    pub fn admitted_write_backs(&self) -> u64 {
        self.admitted_write_backs.load(Ordering::Relaxed)
    }

    /// Lets a request through that only counts references, or that needs nothing of the datastore; `None` if the mount is
    /// closed.
    pub fn pass(&self) -> Option<Passed<'_>> {
        let in_flight = self.in_flight.enter()?;
        Some(Passed::new(&self.runner, in_flight))
    }

    /// Asks for the admission of a request.
    pub fn enter(&self, class: RequestClass) -> AdmissionAnswer<'_> {
        let kind = class.kind;
        let Some(passed) = self.pass() else {
            return AdmissionAnswer::Refused(Errno::Io);
        };
        let standing = match self.service.enter(kind) {
            Ok(inside) if !class.may_run_in(inside.tenure()) => {
                return AdmissionAnswer::Refused(self.overtaken(class));
            }
            Ok(_) if kind == RequestKind::WriteBack && self.drops.may_hold_old_pages() => {
                return AdmissionAnswer::Refused(Errno::Io);
            }
            Ok(inside) => {
                if kind == RequestKind::WriteBack {
                    self.admitted_write_backs.fetch_add(1, Ordering::Relaxed);
                }
                return AdmissionAnswer::Inside(Admitted::new(inside, passed));
            }
            Err(standing) => standing,
        };
        // A write may have been deferred because this request was seen in the queue.
        self.service.flush_deferred_writes();
        match self.refusal(class, standing) {
            Some(errno) => AdmissionAnswer::Refused(errno),
            None => AdmissionAnswer::Waits(passed),
        }
    }

    /// Lets a request through that every node answers; `None` if the mount is closed. The second part is missing if this
    /// node does not serve.
    pub fn enter_anywhere(&self) -> Option<(Passed<'_>, Option<Inside>)> {
        let passed = self.pass()?;
        Some((passed, self.service.enter(RequestKind::Program).ok()))
    }

    /// The error of a request that is not admitted; `None` if the request waits.
    fn refusal(&self, class: RequestClass, standing: Standing) -> Option<Errno> {
        let is_following = standing == Standing::Following;
        if class.bond.is_bound() && (is_following || !class.may_run_in(self.service.tenure())) {
            return Some(self.overtaken(class));
        }
        match self.standby {
            // The node is likely to serve again soon: a restart stays unnoticed.
            _ if !is_following => None,
            Standby::Wait => None,
            Standby::Erofs | Standby::Eagain => Some(self.not_executed()),
        }
    }

    /// The error of a bound request when another node may have served since it was asked.
    fn overtaken(&self, class: RequestClass) -> Errno {
        match class.kind {
            // The outcome is not known (docs/adr/0012).
            _ if class.may_be_done() && self.standby == Standby::Eagain => Errno::Again,
            _ if class.may_be_done() => Errno::Io,
            // No program waits for the answer: the kernel tells the next `fsync`.
            RequestKind::WriteBack => Errno::Io,
            RequestKind::Program | RequestKind::SizeChange => self.not_executed(),
        }
    }

    /// The error of a request that was not executed.
    const fn not_executed(&self) -> Errno {
        match self.standby {
            Standby::Wait | Standby::Erofs => Errno::ReadOnly,
            Standby::Eagain => Errno::Again,
        }
    }

    /// Parks a request that waits.
    pub fn park(self: &Arc<Self>, mut request: ParkedRequest, passed: Passed<'_>) {
        request.note = self.note_parked(request.class);
        let added = self.state.lock().add(request, self.not_executed());
        drop(passed);
        if let Err((request, errno)) = added {
            return request.refuse(&self.memory, errno);
        }
        self.await_service();
        self.note_waiting();
        self.watch_programs();
        // The standing may have changed before the request was in the list.
        self.refuse_if_following();
    }

    /// Tells the service how many requests wait, and the log when programs begin to wait.
    fn note_waiting(&self) {
        let count = || self.state.lock().requests.len() as u64;
        let tell = |waiting| self.service.note_waiting(waiting);
        if self.notice.tell(count, tell) {
            let standing = self.service.standing();
            tracing::info!(
                ?standing,
                "standby: programs wait here until this node serves"
            );
        }
    }

    /// Watches the programs of the parked requests, on a thread of its own, as long as there are some.
    fn watch_programs(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.is_watched || state.requests.is_empty() {
                return;
            }
            state.is_watched = true;
        }
        let weak = Arc::downgrade(self);
        let watch = move || {
            let mut begin = Instant::now();
            while weak.upgrade().is_some_and(|queue| queue.release_killed()) {
                std::thread::sleep(pause_after(begin.elapsed()));
                begin = Instant::now();
            }
        };
        if let Err(error) = threads::spawn("fuse-killed", watch) {
            tracing::warn!(%error, "a program that waits cannot be killed");
            self.state.lock().is_watched = false;
        }
    }

    /// Ends the parked requests of killed programs. Returns whether others are left.
    fn release_killed(&self) -> bool {
        let killed = {
            let state = self.state.lock();
            let threads = state.requests.iter().map(|request| request.class.thread);
            threads.collect::<Vec<_>>()
        };
        // The lock is not held while the system is asked.
        let killed: Vec<_> = killed.into_iter().filter(|it| it.is_dying()).collect();
        let (ended, is_left) = {
            let mut state = self.state.lock();
            let ended = state.take_if(|request| {
                request.class.kind != RequestKind::WriteBack
                    && killed.contains(&request.class.thread)
            });
            state.is_watched = !state.requests.is_empty();
            (ended, state.is_watched)
        };
        for request in ended {
            request.refuse(&self.memory, Errno::Interrupted);
        }
        self.note_waiting();
        is_left
    }

    /// Notes that a change is not executed. Without a note the next process takes it for one that may be executed.
    fn note_parked(&self, class: RequestClass) -> Option<NoteSlot> {
        let change = class.bond.change().filter(|_| !class.may_be_done())?;
        match self.memory.note(change.unique, ChangeNote::Parked) {
            Ok(slot) => Some(slot),
            Err(error) => {
                tracing::warn!(%error, "a waiting request is not noted in the memory of the mount");
                None
            }
        }
    }

    /// The reads of pages that are parked, and have not been admitted.
    pub fn parked_page_reads(&self) -> Vec<PageRead> {
        let state = self.state.lock();
        let reads = state.requests.iter();
        reads
            .filter_map(|request| request.page_read.clone())
            .collect()
    }

    /// Asks the service for a message when this node serves, if requests wait for that.
    fn await_service(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.is_registered || state.requests.is_empty() {
                return;
            }
            state.is_registered = true;
        }
        let weak = Arc::downgrade(self);
        let job = move || {
            if let Some(queue) = weak.upgrade() {
                queue.state.lock().is_registered = false;
                queue.run_parked_soon();
            }
        };
        self.service.when_serving(Box::new(job));
    }

    /// Has a thread of the mount try all parked requests again.
    pub fn run_parked_soon(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let task = move || {
            if let Some(queue) = weak.upgrade() {
                queue.run_parked();
            }
        };
        self.worker.submit(Box::new(task));
    }

    fn run_parked(self: &Arc<Self>) {
        if self.service.serves() {
            self.notice.reset();
        }
        let batch = std::mem::take(&mut self.state.lock().requests);
        let mut waiting = VecDeque::new();
        for request in batch {
            let bytes = request.counted_bytes();
            let answer = if request.class.is_of_killed() {
                AdmissionAnswer::Refused(Errno::Interrupted)
            } else {
                self.enter(request.class)
            };
            match answer {
                AdmissionAnswer::Inside(admitted) => request.run(&self.memory, admitted),
                AdmissionAnswer::Refused(errno) => request.refuse(&self.memory, errno),
                AdmissionAnswer::Waits(_) => {
                    waiting.push_back(request);
                    continue;
                }
            }
            self.state.lock().bytes -= bytes;
        }
        self.put_back(waiting);
    }

    /// Puts requests in front of those that have arrived meanwhile.
    fn put_back(self: &Arc<Self>, mut waiting: VecDeque<ParkedRequest>) {
        {
            let mut state = self.state.lock();
            if !state.is_closed {
                waiting.append(&mut state.requests);
                std::mem::swap(&mut state.requests, &mut waiting);
            }
        }
        for request in waiting {
            request.refuse(&self.memory, Errno::Io);
        }
        self.await_service();
        self.note_waiting();
        self.watch_programs();
        self.refuse_if_following();
    }

    fn refuse_if_following(&self) {
        if self.service.standing() == Standing::Following {
            self.refuse_following();
        }
    }

    /// Refuses the parked requests that do not wait while the other node may serve.
    pub fn refuse_following(&self) {
        let refusal = |request: &ParkedRequest| self.refusal(request.class, Standing::Following);
        let refused = self
            .state
            .lock()
            .take_if(|request| refusal(request).is_some());
        for request in refused {
            let errno = refusal(&request).unwrap_or(Errno::Io);
            request.refuse(&self.memory, errno);
        }
        self.note_waiting();
    }

    /// Admits no further request, and refuses the parked ones. Returns when no thread hands a request to the service any
    /// more: an operation may still wait for its answer, but no request works on the store.
    pub fn close(&self) {
        self.service.closing();
        self.in_flight.close();
        let left = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.requests)
        };
        for request in left {
            request.refuse(&self.memory, Errno::Io);
        }
    }
}

/// The pause after a look that took `time`: however many programs wait, the looks take a tenth of a processor at most.
fn pause_after(time: Duration) -> Duration {
    LOOK_AT_PROGRAMS.max(time * 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_at_many_programs_leave_the_processor_to_others() {
        assert_eq!(pause_after(Duration::from_millis(1)), LOOK_AT_PROGRAMS);
        assert_eq!(pause_after(LOOK_AT_PROGRAMS), LOOK_AT_PROGRAMS * 9);
    }
}
