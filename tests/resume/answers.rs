//! Each kind of request, executed by a process that ends before it answers: the next process gets the request again,
//! executes it a second time, and the program sees what one execution gives.
//!
//! Both processes are mounts of this one, over the same model. The first executes the request and never answers.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use lockstep_driver::client::{DirEntry, Done, FileService, ReadDone, Seek, WriteOptions};
use lockstep_types::backing::Space;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest};
use lockstepfs::fuse::{MountOptions, Unmounted, mount};
use lockstepfs::hold::{DescriptorHolder, DescriptorStore, HoldUntil, socket_path};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags, copy_file_range,
    fallocate, getxattr, mknodat, removexattr, renameat_with, setxattr,
};

use crate::model::ModelFs;

/// A service whose process ends, in effect, when it has executed one request of a kind.
pub struct Interrupted {
    model: Arc<ModelFs>,
    kind: &'static str,
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Requests are answered.
    Serving,
    /// The next request of the kind is the last.
    Armed,
    /// The request is executed.
    Executed,
    /// The mount is gone.
    Over,
}

impl Interrupted {
    fn new(model: Arc<ModelFs>, kind: &'static str) -> Arc<Self> {
        Arc::new(Self {
            model,
            kind,
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

    /// Does not return before the mount is gone if a request of the kind was executed.
    fn executed(&self, kind: &str) {
        if kind == self.kind && *self.stage.lock() == Stage::Armed {
            self.set(Stage::Executed);
            self.wait_for(Stage::Over);
        }
    }

    fn done<T>(&self, kind: &str, answer: T, done: impl FnOnce(T)) {
        self.executed(kind);
        done(answer);
    }
}

/// The kind of a change, as its name in the code.
fn kind_of(request: &MetaRequest) -> String {
    let text = format!("{request:?}");
    text.split(' ').next().unwrap().to_owned()
}

impl FileService for Interrupted {
    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno> {
        let found = self.model.lookup(parent, name);
        self.executed("lookup");
        found
    }

    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno> {
        self.model.lookup_parent(directory)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        let found = self.model.getattr(ino);
        self.executed("getattr");
        found
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let found = self.model.readlink(ino);
        self.executed("readlink");
        found
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let found = self.model.getxattr(ino, name);
        self.executed("getxattr");
        found
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let found = self.model.listxattr(ino);
        self.executed("listxattr");
        found
    }

    fn readdir(
        &self,
        directory: Ino,
        after: u64,
        each: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let listed = self.model.readdir(directory, after, each);
        self.executed("readdir");
        listed
    }

    fn space(&self) -> Result<Space, Errno> {
        self.executed("space");
        self.model.space()
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let found = self.model.seek(ino, offset, what);
        self.executed("seek");
        found
    }

    // The references of a killed process are lost, so the model gets none.
    fn opened(&self, _ino: Ino) -> Result<(), Errno> {
        self.executed("opened");
        Ok(())
    }

    fn closed(&self, _ino: Ino) {
        self.executed("closed");
    }

    fn remembered(&self, _ino: Ino, _count: u64) {}

    fn forgotten(&self, _ino: Ino, _count: u64) {}

    fn next_ino(&self) -> Result<Ino, Errno> {
        self.model.next_ino()
    }

    fn read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone) {
        let answer = |outcome: Result<&[u8], Errno>| {
            self.executed("read");
            let bytes = outcome.map(<[u8]>::to_vec);
            done(bytes.as_deref().map_err(|errno| *errno));
        };
        let slot = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&slot);
        let fill = move |outcome: Result<&[u8], Errno>| {
            *keep.lock() = Some(outcome.map(<[u8]>::to_vec));
        };
        self.model.read(ino, offset, length, Box::new(fill));
        let outcome = slot.lock().take().unwrap();
        answer(outcome.as_deref().map_err(|errno| *errno));
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], options: WriteOptions<'_>, done: Done<()>) {
        let outcome = take(|keep| self.model.write(ino, offset, data, options, keep));
        self.done("write", outcome, done);
    }

    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>) {
        let kind = kind_of(&request);
        let outcome = take(|keep| self.model.change(request, keep));
        self.done(&kind, outcome, done);
    }

    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>) {
        let outcome = take(|keep| self.model.copy(from, to, length, keep));
        self.done("copy", outcome, done);
    }

    fn sync(&self, ino: Ino, done: Done<()>) {
        let outcome = take(|keep| self.model.sync(ino, keep));
        self.done("sync", outcome, done);
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

/// The service of the process that resumes the mount, and what happens once that process has the mount.
pub type NextProcess = (Arc<dyn FileService>, Box<dyn FnOnce()>);

/// Runs `act` on a mount whose process ends after the execution of its first request of a kind. `prepare` runs before.
fn interrupt<T: Send>(
    kind: &'static str,
    prepare: impl FnOnce(&Path) -> T,
    act: impl FnOnce(&Path, T) + Send,
) {
    interrupt_before(kind, prepare, act, |model| {
        let service = Interrupted::new(model, kind);
        (service, Box::new(|| ()))
    });
}

/// The same, with another process that resumes the mount.
pub fn interrupt_before<T: Send>(
    kind: &'static str,
    prepare: impl FnOnce(&Path) -> T,
    act: impl FnOnce(&Path, T) + Send,
    next: impl FnOnce(Arc<ModelFs>) -> NextProcess,
) {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("mount");
    fs::create_dir(&directory).unwrap();
    let control = place.path().join("a.sock");
    let holder = DescriptorHolder::open(&socket_path(&control), HoldUntil::Told).unwrap();
    let (_going_on, stop) = UnixStream::pair().unwrap();
    let model = Arc::new(ModelFs::default());
    thread::scope(|scope| {
        let held = scope.spawn(move || holder.run(&stop));
        let mut options = MountOptions::new(&directory, "model");
        options.descriptors = Arc::new(DescriptorStore::find(&control));
        // The thread of the first mount reads nothing after the request.
        options.threads = 1;
        let first = Interrupted::new(Arc::clone(&model), kind);
        let killed = mount(Arc::<Interrupted>::clone(&first), &options).unwrap();
        let prepared = prepare(&directory);
        first.set(Stage::Armed);
        let root = directory.as_path();
        let program = scope.spawn(move || act(root, prepared));
        first.wait_for(Stage::Executed);
        let (service, meanwhile) = next(model);
        let second = mount(service, &options).unwrap();
        meanwhile();
        let outcome = program.join();
        let unmounted = second.unmount().unwrap();
        first.set(Stage::Over);
        drop(killed);
        DescriptorHolder::end(&socket_path(&control)).unwrap();
        held.join().unwrap().unwrap();
        assert!(outcome.is_ok(), "{kind}: the program saw an error");
        assert_eq!(unmounted, Unmounted::Clean, "{kind}");
    });
}

pub fn file(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    options.truncate(false).open(path).unwrap()
}

/// Changes that make names.
pub fn names_that_are_made() {
    interrupt("Create", drop_path, |dir, ()| {
        drop(File::create_new(dir.join("new")).unwrap());
        assert!(File::create_new(dir.join("new")).is_err());
    });
    interrupt("Create", drop_path, |dir, ()| {
        fs::create_dir(dir.join("new")).unwrap();
        assert!(fs::metadata(dir.join("new")).unwrap().is_dir());
    });
    interrupt("Create", drop_path, |dir, ()| {
        mknodat(CWD, dir.join("new"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    });
    interrupt("Create", drop_path, |dir, ()| {
        let device = rustix::fs::makedev(1, 3);
        let mode = Mode::RUSR;
        mknodat(
            CWD,
            dir.join("new"),
            FileType::CharacterDevice,
            mode,
            device,
        )
        .unwrap();
        assert_eq!(fs::metadata(dir.join("new")).unwrap().rdev(), device);
    });
    interrupt("Create", drop_path, |dir, ()| {
        symlink("to", dir.join("new")).unwrap();
        assert_eq!(fs::read_link(dir.join("new")).unwrap(), Path::new("to"));
    });
    interrupt(
        "Link",
        |dir| drop(file(&dir.join("a"))),
        |dir, ()| {
            fs::hard_link(dir.join("a"), dir.join("b")).unwrap();
            assert_eq!(fs::metadata(dir.join("a")).unwrap().nlink(), 2);
        },
    );
}

fn drop_path(_: &Path) {}

/// An access list: the owner reads and writes, user 1 reads, the others nothing.
const ACL: &[u8] = &[
    2, 0, 0, 0, //
    1, 0, 6, 0, 255, 255, 255, 255, // the owner
    2, 0, 4, 0, 1, 0, 0, 0, // user 1
    4, 0, 4, 0, 255, 255, 255, 255, // the group
    16, 0, 4, 0, 255, 255, 255, 255, // the mask
    32, 0, 0, 0, 255, 255, 255, 255, // the others
];

/// `O_SYNC` of Linux.
#[expect(clippy::cast_possible_wrap, reason = "the flag fits")]
const O_SYNC: i32 = OFlags::SYNC.bits() as i32;

/// Changes that remove and move names.
pub fn names_that_go() {
    let one = |dir: &Path| drop(file(&dir.join("a")));
    let two = |dir: &Path| {
        fs::write(dir.join("a"), "a").unwrap();
        fs::write(dir.join("b"), "b").unwrap();
    };
    interrupt("Unlink", one, |dir, ()| {
        fs::remove_file(dir.join("a")).unwrap();
        assert!(!dir.join("a").exists());
    });
    interrupt(
        "Rmdir",
        |dir| fs::create_dir(dir.join("a")).unwrap(),
        |dir, ()| fs::remove_dir(dir.join("a")).unwrap(),
    );
    interrupt("Rename", one, |dir, ()| {
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        assert!(dir.join("b").exists());
    });
    interrupt("Rename", one, |dir, ()| {
        let flags = RenameFlags::NOREPLACE;
        renameat_with(CWD, dir.join("a"), CWD, dir.join("b"), flags).unwrap();
    });
    interrupt("Rename", two, |dir, ()| {
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"a");
    });
    let directories = |dir: &Path| {
        fs::create_dir(dir.join("a")).unwrap();
        fs::create_dir(dir.join("b")).unwrap();
        fs::write(dir.join("a/in"), "a").unwrap();
    };
    interrupt("Rename", directories, |dir, ()| {
        fs::rename(dir.join("a"), dir.join("b")).unwrap();
        assert!(dir.join("b/in").exists() && !dir.join("a").exists());
    });
    interrupt("Rename", two, |dir, ()| {
        let flags = RenameFlags::EXCHANGE;
        renameat_with(CWD, dir.join("a"), CWD, dir.join("b"), flags).unwrap();
        assert_eq!(fs::read(dir.join("a")).unwrap(), b"b");
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"a");
    });
}

/// Changes of attributes.
pub fn changes_of_attributes() {
    let one = |dir: &Path| file(&dir.join("a"));
    let marked = |dir: &Path| {
        let file = file(&dir.join("a"));
        setxattr(dir.join("a"), "user.x", b"old", XattrFlags::empty()).unwrap();
        file
    };
    interrupt("SetXattr", one, |dir, _| {
        setxattr(dir.join("a"), "user.x", b"new", XattrFlags::CREATE).unwrap();
    });
    interrupt("SetXattr", marked, |dir, _| {
        setxattr(dir.join("a"), "user.x", b"new", XattrFlags::REPLACE).unwrap();
    });
    interrupt("SetXattr", marked, |dir, _| {
        setxattr(dir.join("a"), "user.x", b"new", XattrFlags::empty()).unwrap();
    });
    interrupt("SetXattr", one, |dir, _| {
        setxattr(
            dir.join("a"),
            "system.posix_acl_access",
            ACL,
            XattrFlags::empty(),
        )
        .unwrap();
        let mut found = [0; 64];
        let length = getxattr(dir.join("a"), "system.posix_acl_access", &mut found).unwrap();
        assert_eq!(&found[..length], ACL);
    });
    interrupt("RemoveXattr", marked, |dir, _| {
        removexattr(dir.join("a"), "user.x").unwrap();
    });
    interrupt("SetAttr", one, |dir, file| {
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(dir.join("a"), mode).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    });
    interrupt("SetAttr", one, |_, file| {
        let time = UNIX_EPOCH + Duration::from_secs(7);
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
        assert_eq!(file.metadata().unwrap().mtime(), 7);
    });
    interrupt("SetAttr", one, |dir, file| {
        chown(dir.join("a"), Some(1), Some(2)).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (1, 2));
    });
}

/// Changes of content.
pub fn changes_of_files() {
    let one = |dir: &Path| file(&dir.join("a"));
    interrupt("Truncate", one, |_, file| {
        file.set_len(5).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5);
    });
    interrupt("Allocate", one, |_, file| {
        fallocate(&file, FallocateFlags::empty(), 0, 9).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 9);
    });
    for (flags, length) in [
        (FallocateFlags::KEEP_SIZE, 6),
        (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 6),
        (FallocateFlags::ZERO_RANGE, 9),
        (FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 6),
    ] {
        let six = |dir: &Path| {
            fs::write(dir.join("a"), "before").unwrap();
            file(&dir.join("a"))
        };
        interrupt("Allocate", six, move |dir, file| {
            fallocate(&file, flags, 3, 6).unwrap();
            let zeroed = !flags.difference(FallocateFlags::KEEP_SIZE).is_empty();
            let expected: &[u8] = if zeroed { b"bef\0\0\0" } else { b"before" };
            let found = fs::read(dir.join("a")).unwrap();
            assert_eq!((found.len(), &found[..6]), (length, expected));
        });
    }
    interrupt("write", one, |_, file| {
        file.write_all_at(b"bytes", 3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8);
    });
    let synchronous = |dir: &Path| {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).custom_flags(O_SYNC);
        options.open(dir.join("a")).unwrap()
    };
    interrupt("write", synchronous, |_, file| {
        file.write_all_at(b"bytes", 3).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8);
    });
    let log = |dir: &Path| {
        let mut log = OpenOptions::new();
        let mut log = log.append(true).create(true).open(dir.join("a")).unwrap();
        log.write_all(b"one").unwrap();
        log
    };
    interrupt("write", log, |dir, mut log| {
        log.write_all(b"two").unwrap();
        assert_eq!(fs::read(dir.join("a")).unwrap(), b"onetwo");
    });
    interrupt("sync", one, |_, file| file.sync_all().unwrap());
    interrupt("sync", drop_path, |dir, ()| {
        File::open(dir).unwrap().sync_all().unwrap();
    });
    let pair = |dir: &Path| {
        fs::write(dir.join("a"), "copied").unwrap();
        (file(&dir.join("a")), file(&dir.join("b")))
    };
    interrupt("copy", pair, |dir, (from, to)| {
        let copied = copy_file_range(from.as_fd(), None, to.as_fd(), None, 6);
        assert_eq!(copied.unwrap(), 6);
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"copied");
    });
}

/// Requests that change nothing.
pub fn questions() {
    let one = |dir: &Path| {
        fs::write(dir.join("a"), "content").unwrap();
        file(&dir.join("a"))
    };
    interrupt("lookup", drop_path, |dir, ()| {
        assert!(!dir.join("new").exists());
    });
    interrupt("getattr", one, |_, file| {
        // A write makes the kernel ask for the attributes.
        file.write_all_at(b"C", 0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 7);
    });
    interrupt(
        "readlink",
        |dir| symlink("to", dir.join("l")).unwrap(),
        |dir, ()| assert_eq!(fs::read_link(dir.join("l")).unwrap(), Path::new("to")),
    );
    let marked = |dir: &Path| {
        drop(file(&dir.join("a")));
        setxattr(dir.join("a"), "user.x", b"old", XattrFlags::empty()).unwrap();
    };
    interrupt("getxattr", marked, |dir, ()| {
        let mut value = [0; 3];
        assert_eq!(getxattr(dir.join("a"), "user.x", &mut value).unwrap(), 3);
    });
    interrupt("listxattr", marked, |dir, ()| {
        let mut names = [0; 64];
        assert_eq!(rustix::fs::listxattr(dir.join("a"), &mut names).unwrap(), 7);
    });
    interrupt("readdir", one, |dir, _| {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
    });
    interrupt("space", drop_path, |dir, ()| {
        assert!(rustix::fs::statvfs(dir).unwrap().f_blocks > 0);
    });
    interrupt("seek", one, |_, file| {
        assert_eq!(
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(),
            7
        );
    });
    interrupt("read", one, |_, file| {
        let mut bytes = [0; 7];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"content");
    });
    interrupt("opened", one, |dir, _| {
        drop(File::open(dir.join("a")).unwrap());
    });
    interrupt("closed", one, |dir, _| {
        drop(File::open(dir.join("a")).unwrap());
    });
}
