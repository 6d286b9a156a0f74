//! A mount whose process ends in effect in the middle of one request, and the mount of the next process.
//!
//! Both processes are mounts of this one, over the same model. The first stops with the request parked, or before or after
//! its execution, and never answers.

use std::fs;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use lockstep_driver::client::{
    DirEntry, Done, FileService, Inside, ReadDone, RequestKind, Seek, Standing, Tenure, WriteData,
    WriteOptions,
};
use lockstep_mount::hold::{DescriptorHolder, DescriptorStore, HoldUntil, socket_path};
use lockstep_mount::{MountOptions, Unmounted, mount};
use lockstep_types::backing::Space;
use lockstep_types::settings::Standby;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest};
use parking_lot::{Condvar, Mutex};

use crate::model::ModelFs;

/// Where the first process stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPoint {
    /// The request is read, and not executed.
    BeforeExecution,
    /// The request is executed, and not answered.
    AfterExecution,
    /// The request waits, because it is undecided which node serves. The first request of any kind does.
    Parked,
}

/// A service whose process ends, in effect, in the middle of one request of a kind.
pub struct Interrupted {
    model: Arc<ModelFs>,
    kind: &'static str,
    point: StopPoint,
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Requests are answered.
    Serving,
    /// The next request of the kind is the last.
    Armed,
    /// The process does no more.
    Stopped,
    /// The mount is gone.
    Over,
}

impl Interrupted {
    fn new(model: Arc<ModelFs>, kind: &'static str, point: StopPoint) -> Arc<Self> {
        Arc::new(Self {
            model,
            kind,
            point,
            stage: Mutex::new(Stage::Serving),
            changed: Condvar::new(),
        })
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.changed.notify_all();
    }

    fn wait_for(&self, stage: Stage) {
        let mut now = self.stage.lock();
        while *now != stage {
            self.changed.wait(&mut now);
        }
    }

    /// Executes a request. Stops at the point, until the mount is gone, if it is a request of the kind.
    fn run<T>(&self, kind: &str, execute: impl FnOnce() -> T) -> T {
        self.stop(kind, StopPoint::BeforeExecution);
        let outcome = execute();
        self.stop(kind, StopPoint::AfterExecution);
        outcome
    }

    fn stop(&self, kind: &str, point: StopPoint) {
        if (kind, point) == (self.kind, self.point) && *self.stage.lock() == Stage::Armed {
            self.set(Stage::Stopped);
            self.wait_for(Stage::Over);
        }
    }
}

/// The kind of a change, as its name in the code.
fn kind_of(request: &MetaRequest) -> String {
    let text = format!("{request:?}");
    text.split(' ').next().unwrap().to_owned()
}

impl FileService for Interrupted {
    fn enter(&self, _kind: RequestKind) -> Result<Inside, Standing> {
        match self.standing() {
            Standing::Serving => Ok(Inside::ungated(Tenure::FIRST)),
            standing => Err(standing),
        }
    }

    fn standing(&self) -> Standing {
        if self.point == StopPoint::Parked && *self.stage.lock() != Stage::Serving {
            Standing::Undecided
        } else {
            Standing::Serving
        }
    }

    fn when_serving(&self, job: Box<dyn FnOnce() + Send>) {
        if self.standing() == Standing::Serving {
            return job();
        }
        self.set(Stage::Stopped);
        self.wait_for(Stage::Over);
    }

    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno> {
        self.run("lookup", || self.model.lookup(parent, name))
    }

    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno> {
        self.model.lookup_parent(directory)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.run("getattr", || self.model.getattr(ino))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.run("readlink", || self.model.readlink(ino))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.run("getxattr", || self.model.getxattr(ino, name))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        self.run("listxattr", || self.model.listxattr(ino))
    }

    fn readdir(
        &self,
        directory: Ino,
        after: u64,
        each: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        self.run("readdir", || self.model.readdir(directory, after, each))
    }

    fn space(&self) -> Result<Space, Errno> {
        self.run("space", || self.model.space())
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        self.run("seek", || self.model.seek(ino, offset, what))
    }

    // The model counts the references of both processes: the kernel returns those of the first to the second.
    fn opened(&self, ino: Ino) -> Result<(), Errno> {
        self.run("opened", || self.model.opened(ino))
    }

    fn closed(&self, ino: Ino) {
        self.run("closed", || self.model.closed(ino));
    }

    fn remembered(&self, ino: Ino, count: u64) {
        self.model.remembered(ino, count);
    }

    fn forgotten(&self, ino: Ino, count: u64) {
        self.model.forgotten(ino, count);
    }

    fn next_ino(&self) -> Result<Ino, Errno> {
        self.model.next_ino()
    }

    fn read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone) {
        let slot = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&slot);
        let fill = move |outcome: Result<&[u8], Errno>| {
            *keep.lock() = Some(outcome.map(<[u8]>::to_vec));
        };
        self.run("read", || {
            self.model.read(ino, offset, length, Box::new(fill));
        });
        let outcome = slot.lock().take().unwrap();
        done(outcome.as_deref().map_err(|errno| *errno));
    }

    fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: WriteData<'_>,
        options: WriteOptions<'_>,
        done: Done<()>,
    ) {
        let write = || take(|keep| self.model.write(ino, offset, data, options, keep));
        done(self.run("write", write));
    }

    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>) {
        let kind = kind_of(&request);
        done(self.run(&kind, || take(|keep| self.model.change(request, keep))));
    }

    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>) {
        let copy = || take(|keep| self.model.copy(from, to, length, keep));
        done(self.run("copy", copy));
    }

    fn sync(&self, ino: Ino, done: Done<()>) {
        done(self.run("sync", || take(|keep| self.model.sync(ino, keep))));
    }
}

/// Returns the outcome of a call of the model, which ends before the call returns.
fn take<T: Send + 'static>(call: impl FnOnce(Done<T>)) -> Result<T, Errno> {
    let slot = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&slot);
    call(Box::new(move |outcome| *keep.lock() = Some(outcome)));
    let outcome = slot.lock().take();
    outcome.expect("the model answers at once")
}

/// The service of a process that resumes a mount, and something that happens when the mount is resumed.
pub type NextProcess = (Arc<dyn FileService>, Box<dyn FnOnce()>);

/// Runs `act` on a mount whose process ends at its first request of a kind, once at each point. `prepare` runs before. The
/// next process serves the same model.
pub fn interrupt<T: Send>(
    kind: &'static str,
    prepare: impl Fn(&Path) -> T,
    act: impl Fn(&Path, T) + Sync,
) {
    for point in [StopPoint::BeforeExecution, StopPoint::AfterExecution] {
        interrupt_at((kind, point), &prepare, &act, |model| {
            let service = Interrupted::new(model, kind, point);
            (service, Box::new(|| ()))
        });
    }
}

/// The same at one point, with another process that resumes the mount.
pub fn interrupt_at<T: Send>(
    (kind, point): (&'static str, StopPoint),
    prepare: impl FnOnce(&Path) -> T,
    act: impl FnOnce(&Path, T) + Send,
    next: impl FnOnce(Arc<ModelFs>) -> NextProcess,
) {
    let model = Arc::new(ModelFs::default());
    let first = Interrupted::new(Arc::clone(&model), kind, point);
    with_holder(|directory, options| {
        let killed = mount(Arc::<Interrupted>::clone(&first), options).unwrap();
        let prepared = prepare(directory);
        first.set(Stage::Armed);
        thread::scope(|scope| {
            let program = scope.spawn(move || act(directory, prepared));
            first.wait_for(Stage::Stopped);
            let (service, meanwhile) = next(model);
            let second = mount(service, options).unwrap();
            meanwhile();
            let outcome = program.join();
            let unmounted = second.unmount().unwrap();
            first.set(Stage::Over);
            drop(killed);
            assert!(
                outcome.is_ok(),
                "{kind}, {point:?}: the program saw an error"
            );
            assert_eq!(unmounted, Unmounted::Clean, "{kind}, {point:?}");
        });
    });
}

/// Ends a holder, also when a test fails.
struct HolderEnd(PathBuf);

impl Drop for HolderEnd {
    fn drop(&mut self) {
        let ended = DescriptorHolder::end(&self.0);
        assert!(ended.is_ok() || thread::panicking(), "{ended:?}");
    }
}

/// Runs something with a mount directory, and options for mounts that a holder keeps. The thread of such a mount reads no
/// request while the service has one.
fn with_holder(run: impl FnOnce(&Path, &MountOptions)) {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("mount");
    fs::create_dir(&directory).unwrap();
    let control = place.path().join("a.sock");
    let holder = DescriptorHolder::open(&socket_path(&control), HoldUntil::Stopped).unwrap();
    let (_going_on, stop) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let held = scope.spawn(move || holder.run(stop.as_fd()));
        let mut options = MountOptions::new(&directory, "model");
        options.standby = Standby::Wait;
        options.descriptors = Arc::new(DescriptorStore::find(&control));
        options.threads = 1;
        let end = HolderEnd(socket_path(&control));
        run(&directory, &options);
        drop(end);
        held.join().unwrap().unwrap();
    });
}
