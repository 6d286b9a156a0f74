//! The mount of a node, as programs see it: requests go in, and the caller waits for the answers.

use std::ops::ControlFlow;
use std::sync::Arc;

use lockstep_driver::DatastoreHandle;
use lockstep_driver::client::{
    DirEntry, Done, FileService, Inside, RequestKind, Standing, Tenure, WaitingRequests,
    WriteOptions,
};
use lockstep_driver::report::{CommandFailure, VerifyMode};
use lockstep_types::{Attr, Errno, Ino};
use lockstep_verify::Report;
use parking_lot::Mutex;

use crate::history::{Answer, Entry, Outcome};
use crate::op::{Op, WriteOp};
use crate::scenario::nodes::sim_node::serves;
use crate::world::{self, Latch, Process, RunningNode, Shutdown, Wait};

/// An estimate for one write whether more requests wait: yes for every second write to a file. No
/// later request confirms the estimate.
#[derive(Debug)]
struct WaitingEstimate<'a>(&'a WriteOp);

impl WaitingRequests for WaitingEstimate<'_> {
    fn any(&self) -> bool {
        self.0.mark.get().is_multiple_of(2)
    }
}

/// The mount of a node, as a program sees it.
#[derive(Clone)]
pub struct Mount {
    process: Arc<Process>,
    /// The process's clean shutdown, which removes the mount.
    shutdown: Arc<Shutdown>,
    service: DatastoreHandle,
}

impl Mount {
    /// Returns the mount of a running node, if the node has opened its datastore.
    pub fn of(running: &RunningNode) -> Option<Self> {
        Some(Self {
            process: Arc::clone(&running.process),
            shutdown: Arc::clone(&running.shutdown),
            service: DatastoreHandle::new(running.datastore()?),
        })
    }

    /// Returns the process of the mount.
    pub const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Compares both nodes, as `lockstep verify` does.
    pub fn compare(&self) -> Result<Report, String> {
        let compared = self.service.0.compare(VerifyMode::Memory, &mut |_| ());
        compared.map_err(|failure| format!("the nodes cannot be compared: {}", failure.cause))
    }

    /// Compares the disks of both nodes with their sums, and heals what can be healed, as `lockstep verify --deep --repair` does.
    pub fn compare_disks(&self, repairs: bool) -> Result<Report, String> {
        let mode = if repairs {
            VerifyMode::Repair
        } else {
            VerifyMode::Disk
        };
        let compared = self.service.0.compare(mode, &mut |_| ());
        compared.map_err(|failure| format!("the disks cannot be compared: {}", failure.cause))
    }

    /// Compares both nodes by their sums, as `lockstep verify --fast` does.
    pub fn compare_sums(&self) -> Result<Report, String> {
        let compared = self.service.0.compare(VerifyMode::Sums, &mut |_| ());
        compared.map_err(|failure| format!("the nodes cannot be compared: {}", failure.cause))
    }

    /// Compares both nodes, and remembers the result for the status. Returns whether they are identical.
    pub fn verify(&self) -> Result<bool, String> {
        let verified = self.service.0.verify(VerifyMode::Memory, &mut |_| ());
        let failed = |failure: CommandFailure| failure.cause;
        verified.map(|report| report.identical).map_err(failed)
    }

    /// Returns a number for a new inode.
    pub fn next_ino(&self) -> Result<Ino, Errno> {
        self.call(DatastoreHandle::next_ino)
    }

    /// Returns the service of the node.
    pub const fn service(&self) -> &DatastoreHandle {
        &self.service
    }

    /// Returns whether a clean shutdown has removed the mount.
    pub fn is_unmounted(&self) -> bool {
        self.shutdown.is_unmounted()
    }

    /// Returns whether the node serves clients.
    pub fn serves(&self) -> bool {
        serves(Arc::clone(&self.service.0))
    }

    /// Returns the mount for what was asked in a tenure.
    #[must_use]
    pub(in crate::scenario) fn within(&self, tenure: Tenure) -> Self {
        Self {
            service: self.service.in_tenure(tenure),
            ..self.clone()
        }
    }

    /// Lets a request in, or returns why not.
    pub(in crate::scenario) fn enter(&self) -> Result<Inside, Standing> {
        self.service.enter(RequestKind::Program)
    }

    /// Submits an operation, and waits for the answer. The node must serve.
    pub fn submit(&self, op: &Op) -> Outcome {
        let inside = self.enter().map_err(|_| Errno::Io)?;
        self.within(inside.tenure()).submit_inside(op, inside)
    }

    /// Submits an operation that is inside, and waits for the answer.
    pub(in crate::scenario) fn submit_inside(&self, op: &Op, inside: Inside) -> Outcome {
        if !matches!(op, Op::Write(_)) {
            self.call(DatastoreHandle::flush_deferred_writes);
        }
        match op {
            Op::Change(request) => self
                .wait_for(inside, |service, done| {
                    service.change(request.clone(), done);
                })
                .map(|attr| attr.map_or(Answer::Done, Answer::Attr)),
            Op::Write(write) => self.write(write, inside),
            Op::Read {
                ino,
                offset,
                length,
            } => self.read(*ino, *offset, *length, inside),
            Op::Sync { ino } => self
                .wait_for(inside, |service, done| service.sync(*ino, done))
                .map(|()| Answer::Done),
            Op::Lookup { parent, name } => attr(self.call(|service| service.lookup(*parent, name))),
            Op::GetAttr { ino } => attr(self.call(|service| service.getattr(*ino))),
            Op::ReadDir { directory } => self.list(*directory),
            Op::GetXattr { ino, name } => {
                let value = self.call(|service| service.getxattr(*ino, name));
                value.map(Answer::Value)
            }
            Op::ReadLink { ino } => {
                let target = self.call(|service| service.readlink(*ino));
                target.map(Answer::Value)
            }
        }
    }

    /// Gives a request to the service.
    fn call<T>(&self, request: impl FnOnce(&DatastoreHandle) -> T) -> T {
        let _entering = self.shutdown.enter();
        request(&self.service)
    }

    /// Submits an operation that is inside, and waits until the service calls `done`.
    fn wait_for<T: Send + 'static>(
        &self,
        inside: Inside,
        submit: impl FnOnce(&DatastoreHandle, Done<T>),
    ) -> Result<T, Errno> {
        let answered = Arc::new(Latch::default());
        let answer = Arc::new(Mutex::new(None));
        let (latch, slot) = (Arc::clone(&answered), Arc::clone(&answer));
        let done = Box::new(move |result| {
            *slot.lock() = Some(result);
            latch.open();
        });
        self.call(|service| submit(service, done));
        drop(inside);
        self.process.wait_for(answered, None);
        let answer = answer.lock().take();
        answer.unwrap_or_else(|| unreachable!("the latch is opened with the answer in place"))
    }

    fn write(&self, write: &WriteOp, inside: Inside) -> Outcome {
        let options = WriteOptions {
            durable: write.durable,
            waiting: Some(&WaitingEstimate(write)),
            ..WriteOptions::default()
        };
        let data = write.bytes();
        let (ino, offset) = (write.ino, write.offset);
        let mut is_admitted = true;
        let written = self.wait_for(inside, |service, done| {
            let admitted = service.admit(ino, offset, &data, options);
            is_admitted = admitted.is_ok();
            match admitted {
                Ok(data) => service.write(ino, offset, data, options, done),
                Err(errno) => done(Err(errno)),
            }
        });
        if !is_admitted && self.shutdown.is_unmounted() {
            // The mount was removed while the write waited for room: the program never sees the
            // error.
            world::wait(Wait::Dead);
        }
        written.map(|()| Answer::Done)
    }

    fn read(&self, ino: Ino, offset: u64, length: u64, inside: Inside) -> Outcome {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let bytes = self.wait_for(inside, |service, done: Done<Vec<u8>>| {
            let copied = move |read: Result<&[u8], Errno>| done(read.map(<[u8]>::to_vec));
            service.read(ino, offset, length, Box::new(copied));
        });
        bytes.map(|bytes| Answer::read(ino, offset, &bytes))
    }

    fn list(&self, directory: Ino) -> Outcome {
        let mut entries = Vec::new();
        let mut each = |DirEntry {
                            name, ino, kind, ..
                        }| {
            entries.push(Entry { name, ino, kind });
            ControlFlow::Continue(())
        };
        self.call(|service| service.readdir(directory, 0, &mut each))?;
        Ok(Answer::Entries(entries))
    }
}

fn attr(found: Result<Attr, Errno>) -> Outcome {
    found.map(Answer::Attr)
}
