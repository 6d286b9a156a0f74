//! The admission of requests to the service: a request runs, waits for this node to serve, or is refused.
//!
//! A waiting request is *parked*: it lies in a list and uses no thread. The service says when this node serves
//! ([`FileService::when_serving`]). Then a thread of the mount runs the parked requests in the order of their arrival. Each
//! of them is admitted anew, so it may be parked again.
//!
//! Invariants:
//! - A parked request runs or is refused, once. [`Admissions::close`] refuses all that are left.
//! - A change is parked, and runs, only in the tenure in which it was asked (rule R13): it would run on what the other node
//!   has made since. A node that follows refuses each change. An earlier process may have served until this one began, so
//!   what that process had read belongs to the first tenure of this one.
//! - A parked change that no process has executed is noted in the memory of the mount, until it runs: the next process may
//!   park it again.
//! - A request of a killed program does not run: the program never gets the answer, and waits for the answer to end.
//! - A write-back that may bring bytes from before the time of the other node does not run ([`UnfinishedDrops`]).
//! - No lock is held while a request runs or the service is called, except when the service is told how many requests wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_driver::client::{FileService, Inside, RequestKind, Standing, Tenure};
use lockstep_driver::threads;
use lockstep_types::Errno;
use lockstep_types::settings::Standby;
use parking_lot::Mutex;

use super::caller_thread::CallerThread;
use super::request_gate::{InFlightGuard, RequestGate};
use super::tenure_bond::TenureBond;
use super::waiting_notice::WaitingNotice;
use crate::kernel_cache::file_pages::PageRead;
use crate::kernel_cache::unfinished_drops::UnfinishedDrops;
use crate::memory::mount_memory::{ChangeNote, MountMemory, NoteSlot};
use crate::worker::Worker;

/// Most bytes of parked writes of programs. Further ones are refused. The write-backs are not counted: the kernel itself
/// limits them (`init::BACKGROUND_MAX`).
const PARKED_BYTES_MAX: usize = 256 << 20;

/// The shortest time between two looks whether a program that waits was killed.
const LOOK_AT_PROGRAMS: Duration = Duration::from_millis(100);

/// What the admission of a request depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionWish {
    pub kind: RequestKind,
    /// The tenure in which this process has read the request.
    pub asked: Tenure,
    pub bond: TenureBond,
    /// The thread that waits for the answer.
    pub thread: CallerThread,
}

impl AdmissionWish {
    /// Whether the request may run in a tenure.
    fn may_run_in(self, tenure: Tenure) -> bool {
        self.bond.lets_run_in(tenure, self.asked)
    }

    /// Whether no program gets the answer. The kernel's own requests are for no single program.
    fn is_of_killed(self) -> bool {
        self.kind != RequestKind::WriteBack && self.thread.is_dying()
    }

    /// Whether an earlier process may have executed the request.
    fn may_be_done(self) -> bool {
        self.bond.change().is_some_and(|change| change.is_resent)
    }
}

/// The answer to a request that asks for admission.
pub(crate) enum AdmissionAnswer<'a> {
    /// The request may run.
    Inside(Admitted<'a>),
    /// The request must be parked ([`Admissions::park`]), with this guard.
    Waits(InFlightGuard<'a>),
    /// The request fails.
    Refused(Errno),
}

/// A request that may use the service until this is dropped. An operation that the request has begun may last longer.
pub(crate) struct Admitted<'a> {
    inside: Inside,
    _in_flight: InFlightGuard<'a>,
}

impl Admitted<'_> {
    /// The tenure in which the request runs.
    pub const fn tenure(&self) -> Tenure {
        self.inside.tenure()
    }
}

/// Answers a parked request: runs it, or refuses it.
type AnswerParked = Box<dyn FnOnce(Result<Admitted<'_>, Errno>) + Send>;

/// A request that waits.
pub(crate) struct ParkedRequest {
    pub wish: AdmissionWish,
    /// Bytes of data of the request in memory.
    pub bytes: usize,
    /// The note of a change that is not executed, which [`Admissions::park`] makes.
    pub note: Option<NoteSlot>,
    /// The pages that the kernel holds locked until the answer.
    pub page_read: Option<PageRead>,
    pub answer: AnswerParked,
}

/// The admission of one mount.
pub(crate) struct Admissions {
    service: Arc<dyn FileService>,
    standby: Standby,
    /// Notes which changes are parked, and so not executed.
    memory: MountMemory,
    drops: Arc<UnfinishedDrops>,
    gate: RequestGate,
    /// The write-backs that were let in since the mount began.
    admitted_write_backs: AtomicU64,
    state: Mutex<ParkedList>,
    notice: WaitingNotice,
    /// Runs the parked requests.
    worker: Worker,
}

#[derive(Default)]
struct ParkedList {
    requests: VecDeque<ParkedRequest>,
    /// Sum of the counted bytes, also of the requests that are running just now.
    bytes: usize,
    /// The service knows that requests wait.
    is_registered: bool,
    /// A thread watches the programs.
    is_watched: bool,
    is_closed: bool,
}

impl ParkedRequest {
    /// A request without data.
    pub fn new(wish: AdmissionWish, answer: AnswerParked) -> Self {
        Self {
            wish,
            bytes: 0,
            note: None,
            page_read: None,
            answer,
        }
    }

    const fn counted_bytes(&self) -> usize {
        match self.wish.kind {
            RequestKind::Program | RequestKind::SizeChange => self.bytes,
            RequestKind::WriteBack => 0,
        }
    }

    /// Runs the request. The note goes first: from then on the request may be executed.
    fn run(self, memory: &MountMemory, admitted: Admitted<'_>) {
        if let Some(slot) = self.note {
            memory.forget(slot);
        }
        (self.answer)(Ok(admitted));
    }

    /// Refuses the request. The note goes last: until the answer the request is one that was not executed.
    fn refuse(self, memory: &MountMemory, errno: Errno) {
        (self.answer)(Err(errno));
        if let Some(slot) = self.note {
            memory.forget(slot);
        }
    }
}

impl Admissions {
    /// The admission to a service, with the answer to programs while this node does not serve.
    pub fn new(
        service: Arc<dyn FileService>,
        standby: Standby,
        memory: MountMemory,
    ) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            memory,
            service,
            standby,
            drops: Arc::default(),
            gate: RequestGate::default(),
            admitted_write_backs: AtomicU64::new(0),
            state: Mutex::default(),
            notice: WaitingNotice::default(),
            worker: Worker::start("fuse-standby")?,
        }))
    }

    /// The drops of the kernel's caches that are under way.
    pub const fn drops(&self) -> &Arc<UnfinishedDrops> {
        &self.drops
    }

    /// The number of write-backs that were let in since the mount began.
    pub fn admitted_write_backs(&self) -> u64 {
        self.admitted_write_backs.load(Ordering::Relaxed)
    }

    /// Lets a request through that only counts references, or that needs nothing of the datastore; `None` if the mount is
    /// closed.
    pub fn pass(&self) -> Option<InFlightGuard<'_>> {
        self.gate.enter()
    }

    /// Asks for the admission of a request.
    pub fn enter(&self, wish: AdmissionWish) -> AdmissionAnswer<'_> {
        let kind = wish.kind;
        let Some(in_flight) = self.gate.enter() else {
            return AdmissionAnswer::Refused(Errno::Io);
        };
        let standing = match self.service.enter(kind) {
            Ok(inside) if !wish.may_run_in(inside.tenure()) => {
                return AdmissionAnswer::Refused(self.overtaken(wish));
            }
            Ok(_) if kind == RequestKind::WriteBack && self.drops.may_hold_old_pages() => {
                return AdmissionAnswer::Refused(Errno::Io);
            }
            Ok(inside) => {
                if kind == RequestKind::WriteBack {
                    self.admitted_write_backs.fetch_add(1, Ordering::Relaxed);
                }
                return AdmissionAnswer::Inside(Admitted {
                    inside,
                    _in_flight: in_flight,
                });
            }
            Err(standing) => standing,
        };
        // A write may have been deferred because this request was seen in the queue.
        self.service.flush_deferred_writes();
        match self.refusal(wish, standing) {
            Some(errno) => AdmissionAnswer::Refused(errno),
            None => AdmissionAnswer::Waits(in_flight),
        }
    }

    /// Lets a request through that every node answers; `None` if the mount is closed. The second part is missing if this
    /// node does not serve.
    pub fn enter_anywhere(&self) -> Option<(InFlightGuard<'_>, Option<Inside>)> {
        let in_flight = self.gate.enter()?;
        Some((in_flight, self.service.enter(RequestKind::Program).ok()))
    }

    /// The error of a request that is not admitted; `None` if the request waits.
    fn refusal(&self, wish: AdmissionWish, standing: Standing) -> Option<Errno> {
        let is_following = standing == Standing::Following;
        if wish.bond.is_bound() && (is_following || !wish.may_run_in(self.service.tenure())) {
            return Some(self.overtaken(wish));
        }
        match self.standby {
            // The node is likely to serve again soon: a restart stays unnoticed.
            _ if !is_following => None,
            Standby::Wait => None,
            Standby::Erofs | Standby::Eagain => Some(self.not_executed()),
        }
    }

    /// The error of a bound request when another node may have served since it was asked.
    fn overtaken(&self, wish: AdmissionWish) -> Errno {
        match wish.kind {
            // The outcome is not known (docs/adr/0012).
            _ if wish.may_be_done() && self.standby == Standby::Eagain => Errno::Again,
            _ if wish.may_be_done() => Errno::Io,
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
    pub fn park(self: &Arc<Self>, mut request: ParkedRequest, in_flight: InFlightGuard<'_>) {
        request.note = self.note_parked(request.wish);
        let added = self.state.lock().add(request, self.not_executed());
        drop(in_flight);
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
            while weak
                .upgrade()
                .is_some_and(|admissions| admissions.release_killed())
            {
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
            let wishes = state.requests.iter().map(|request| request.wish);
            wishes.map(|wish| wish.thread).collect::<Vec<_>>()
        };
        // The lock is not held while the system is asked.
        let killed: Vec<_> = killed.into_iter().filter(|it| it.is_dying()).collect();
        let (ended, is_left) = {
            let mut state = self.state.lock();
            let ended = state.take_if(|request| {
                request.wish.kind != RequestKind::WriteBack && killed.contains(&request.wish.thread)
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
    fn note_parked(&self, wish: AdmissionWish) -> Option<NoteSlot> {
        let change = wish.bond.change().filter(|_| !wish.may_be_done())?;
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
            if let Some(admissions) = weak.upgrade() {
                admissions.state.lock().is_registered = false;
                admissions.run_parked_soon();
            }
        };
        self.service.when_serving(Box::new(job));
    }

    /// Has a thread of the mount try all parked requests again.
    pub fn run_parked_soon(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let task = move || {
            if let Some(admissions) = weak.upgrade() {
                admissions.run_parked();
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
            let answer = if request.wish.is_of_killed() {
                AdmissionAnswer::Refused(Errno::Interrupted)
            } else {
                self.enter(request.wish)
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
        let refusal = |request: &ParkedRequest| self.refusal(request.wish, Standing::Following);
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
    /// more.
    pub fn close(&self) {
        self.gate.close();
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

impl ParkedList {
    /// Adds a request, or gives it back with the error of its answer, which is `no_room` if its bytes are too many.
    fn add(
        &mut self,
        request: ParkedRequest,
        no_room: Errno,
    ) -> Result<(), (ParkedRequest, Errno)> {
        if self.is_closed {
            return Err((request, Errno::Io));
        }
        let bytes = self.bytes.saturating_add(request.counted_bytes());
        if bytes > PARKED_BYTES_MAX && request.counted_bytes() > 0 {
            return Err((request, no_room));
        }
        self.bytes = bytes;
        self.requests.push_back(request);
        Ok(())
    }

    /// Takes some requests out, and gives their bytes back.
    fn take_if(&mut self, is_taken: impl Fn(&ParkedRequest) -> bool) -> VecDeque<ParkedRequest> {
        let all = std::mem::take(&mut self.requests).into_iter();
        let (taken, kept): (VecDeque<_>, VecDeque<_>) = all.partition(is_taken);
        self.requests = kept;
        self.bytes -= taken
            .iter()
            .map(ParkedRequest::counted_bytes)
            .sum::<usize>();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: RequestKind, bytes: usize) -> ParkedRequest {
        let wish = AdmissionWish {
            kind,
            asked: Tenure::FIRST,
            bond: TenureBond::Free,
            thread: CallerThread::default(),
        };
        ParkedRequest {
            bytes,
            ..ParkedRequest::new(wish, Box::new(|_| {}))
        }
    }

    #[test]
    fn the_bytes_of_parked_writes_are_limited() {
        let mut list = ParkedList::default();
        let mut add = |kind, bytes| {
            let added = list.add(request(kind, bytes), Errno::ReadOnly);
            added.map_err(|(_, errno)| errno)
        };
        assert_eq!(add(RequestKind::Program, PARKED_BYTES_MAX), Ok(()));
        assert_eq!(add(RequestKind::Program, 1), Err(Errno::ReadOnly));
        assert_eq!(add(RequestKind::Program, 0), Ok(()));
        assert_eq!(add(RequestKind::WriteBack, 1 << 20), Ok(()));
    }

    #[test]
    fn requests_that_are_taken_out_give_their_bytes_back() {
        let mut list = ParkedList::default();
        for (kind, bytes) in [
            (RequestKind::Program, PARKED_BYTES_MAX),
            (RequestKind::WriteBack, 7),
        ] {
            assert!(list.add(request(kind, bytes), Errno::ReadOnly).is_ok());
        }
        let taken = list.take_if(|request| request.wish.kind == RequestKind::Program);
        assert_eq!((taken.len(), list.requests.len(), list.bytes), (1, 1, 0));
        let one_more = request(RequestKind::Program, 1);
        assert!(list.add(one_more, Errno::ReadOnly).is_ok());
    }

    #[test]
    fn looks_at_many_programs_leave_the_processor_to_others() {
        assert_eq!(pause_after(Duration::from_millis(1)), LOOK_AT_PROGRAMS);
        assert_eq!(pause_after(LOOK_AT_PROGRAMS), LOOK_AT_PROGRAMS * 9);
    }

    #[test]
    fn a_closed_list_takes_nothing() {
        let mut list = ParkedList {
            is_closed: true,
            ..ParkedList::default()
        };
        let added = list.add(request(RequestKind::Program, 0), Errno::ReadOnly);
        assert_eq!(added.map_err(|(_, errno)| errno), Err(Errno::Io));
    }
}
