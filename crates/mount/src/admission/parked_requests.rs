//! The requests that wait for this node to serve, and the limit of their bytes.

use std::collections::VecDeque;

use lockstep_driver::client::RequestKind;
use lockstep_types::Errno;

use super::admitted::Admitted;
use super::request_info::RequestClass;
use crate::kernel_cache::file_pages::PageRead;
use crate::memory::mount_memory::{MountMemory, NoteSlot};

/// Most bytes of parked writes of programs. Further ones are refused. The write-backs are not counted: the kernel itself
/// limits them (`init::BACKGROUND_MAX`).
const PARKED_BYTES_MAX: usize = 256 << 20;

/// Answers a parked request: runs it, or refuses it.
type AnswerParked = Box<dyn FnOnce(Result<Admitted<'_>, Errno>) + Send>;

/// A request that waits.
pub(crate) struct ParkedRequest {
    pub class: RequestClass,
    /// Bytes of data of the request in memory.
    pub bytes: usize,
    /// The note of a change that is not executed, which [`StandbyQueue::park`](super::standby_queue::StandbyQueue::park) makes.
    pub note: Option<NoteSlot>,
    /// The pages that the kernel holds locked until the answer.
    pub page_read: Option<PageRead>,
    pub answer: AnswerParked,
}

/// The requests of one mount that wait.
#[derive(Default)]
pub(crate) struct ParkedList {
    pub requests: VecDeque<ParkedRequest>,
    /// Sum of the counted bytes, also of the requests that are running just now.
    pub bytes: usize,
    /// The service knows that requests wait.
    pub is_registered: bool,
    /// A thread watches the programs.
    pub is_watched: bool,
    pub is_closed: bool,
}

impl ParkedRequest {
    /// A request without data.
    pub fn new(class: RequestClass, answer: AnswerParked) -> Self {
        Self {
            class,
            bytes: 0,
            note: None,
            page_read: None,
            answer,
        }
    }

    pub const fn counted_bytes(&self) -> usize {
        match self.class.kind {
            RequestKind::Program | RequestKind::SizeChange => self.bytes,
            RequestKind::WriteBack => 0,
        }
    }

    /// Runs the request. The note goes first: from then on the request may be executed.
    pub fn run(self, memory: &MountMemory, admitted: Admitted<'_>) {
        if let Some(slot) = self.note {
            memory.forget(slot);
        }
        (self.answer)(Ok(admitted));
    }

    /// Refuses the request. The note goes last: until the answer the request is one that was not executed.
    pub fn refuse(self, memory: &MountMemory, errno: Errno) {
        (self.answer)(Err(errno));
        if let Some(slot) = self.note {
            memory.forget(slot);
        }
    }
}

impl ParkedList {
    /// Adds a request, or gives it back with the error of its answer, which is `no_room` if its bytes are too many.
    pub fn add(
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
    pub fn take_if(
        &mut self,
        is_taken: impl Fn(&ParkedRequest) -> bool,
    ) -> VecDeque<ParkedRequest> {
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
    use lockstep_driver::client::Tenure;

    use super::super::caller_thread::CallerThread;
    use super::super::tenure_bond::TenureBond;
    use super::*;

    fn request(kind: RequestKind, bytes: usize) -> ParkedRequest {
        let class = RequestClass {
            kind,
            asked: Tenure::FIRST,
            bond: TenureBond::Free,
            thread: CallerThread::default(),
        };
        ParkedRequest {
            bytes,
            ..ParkedRequest::new(class, Box::new(|_| {}))
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
        let taken = list.take_if(|request| request.class.kind == RequestKind::Program);
        assert_eq!((taken.len(), list.requests.len(), list.bytes), (1, 1, 0));
        let one_more = request(RequestKind::Program, 1);
        assert!(list.add(one_more, Errno::ReadOnly).is_ok());
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
