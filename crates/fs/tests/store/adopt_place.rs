//! Directories to be adopted and the stores beside them, and the comparison of the two.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_fs::adopt::{
    AdoptError, AdoptOptions, AdoptSummary, AdoptTarget, AdoptWatcher, AdoptionProgress,
    NotAdopted, Phase, Reason, SyncAfter, adopt,
};
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::store::{Access, AdoptWay};
use lockstep_fs::{Store, StoreError, StoreView};
use lockstep_model::Acl;
use lockstep_types::backing::Backing;
use lockstep_types::{Ino, NodeKind};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::export::is_root;
use crate::harness::{UUID, log_options, open_options};

const SPARSE: u64 = 8 << 20;

/// One inode with one of its names, as far as an adoption keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    mode: u32,
    owner: (u32, u32),
    pub links: u64,
    rdev: u32,
    /// Seconds and nanoseconds of the last change of content, and of anything.
    times: [(i64, i64); 2],
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The bytes of a file, or the target of a link.
    pub bytes: Vec<u8>,
}

pub type Listing = BTreeMap<PathBuf, Entry>;

fn xattrs_of(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0);
    let value = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        (name.to_vec(), value[..length].to_vec())
    };
    names.filter(|name| !name.is_empty()).map(value).collect()
}

/// The inodes in a directory.
pub fn listed(top: &Path) -> Listing {
    let mut found = Listing::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let stat = path.symlink_metadata().unwrap();
        let kind = NodeKind::from_mode(stat.mode()).unwrap();
        let bytes = match kind {
            NodeKind::File => fs::read(&path).unwrap(),
            NodeKind::Symlink => fs::read_link(&path).unwrap().as_os_str().as_bytes().into(),
            _ => Vec::new(),
        };
        if kind == NodeKind::Directory {
            left.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
        let entry = Entry {
            mode: stat.mode(),
            owner: (stat.uid(), stat.gid()),
            links: stat.nlink(),
            rdev: u32::try_from(stat.rdev()).unwrap(),
            times: [
                (stat.mtime(), stat.mtime_nsec()),
                (stat.ctime(), stat.ctime_nsec()),
            ],
            xattrs: xattrs_of(&path),
            bytes,
        };
        found.insert(path.strip_prefix(top).unwrap().to_owned(), entry);
    }
    found
}

/// The inodes in a store.
pub fn held(store: &Store) -> Listing {
    let tree = store.tree();
    let mut found = Listing::new();
    let mut left = vec![(PathBuf::new(), Ino::ROOT)];
    while let Some((path, ino)) = left.pop() {
        let attr = tree.getattr(ino).unwrap();
        let bytes = match attr.kind {
            NodeKind::File => {
                tree.check_content(ino).unwrap();
                let mut bytes = vec![0; usize::try_from(attr.size).unwrap()];
                assert_eq!(store.read(ino, 0, &mut bytes).unwrap() as u64, attr.size);
                bytes
            }
            NodeKind::Symlink => tree.readlink(ino).unwrap(),
            _ => Vec::new(),
        };
        if attr.kind == NodeKind::Directory {
            tree.readdir(ino, 0, &mut |_, entry| {
                assert_eq!(tree.lookup(ino, &entry.name).unwrap().ino, entry.ino);
                let name = std::ffi::OsStr::from_bytes(entry.name.as_bytes());
                left.push((path.join(name), entry.ino));
                ControlFlow::Continue(())
            })
            .unwrap();
        }
        let names = tree.listxattr(ino).unwrap();
        let xattrs = names.into_iter().map(|name| {
            let value = tree.getxattr(ino, &name).unwrap();
            (name, value)
        });
        let kind = match attr.kind {
            NodeKind::File => 0o100_000,
            NodeKind::Directory => 0o040_000,
            NodeKind::Symlink => 0o120_000,
            NodeKind::Fifo => 0o010_000,
            NodeKind::Socket => 0o140_000,
            NodeKind::CharDevice => 0o020_000,
            NodeKind::BlockDevice => 0o060_000,
        };
        let entry = Entry {
            mode: kind | attr.mode,
            owner: (attr.uid, attr.gid),
            links: attr.nlink.into(),
            rdev: attr.rdev,
            times: [attr.mtime, attr.ctime].map(|time| (time.secs, time.nanos.into())),
            xattrs: xattrs.collect(),
            bytes,
        };
        found.insert(path, entry);
    }
    found
}

/// Compares the inodes of a store with those that the directory had.
#[track_caller]
pub fn assert_held(store: &Store, expected: &Listing) {
    let found = held(store);
    let names = |listing: &Listing| listing.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(expected));
    for (path, entry) in &found {
        assert!(
            entry == &expected[path],
            "{}: {entry:?}\n{:?}",
            path.display(),
            expected[path]
        );
    }
}

/// Makes a directory with inodes of every kind, as far as this user may.
fn fill(top: &Path) {
    let odd = top.join(std::ffi::OsStr::from_bytes(b"dir\n\xfe"));
    fs::create_dir_all(odd.join("below/deep")).unwrap();
    fs::write(odd.join("file"), b"content").unwrap();
    fs::hard_link(odd.join("file"), top.join("a link")).unwrap();
    fs::hard_link(odd.join("file"), odd.join("below/z link")).unwrap();
    fs::write(top.join("empty"), b"").unwrap();
    fs::write(odd.join("below/deep/large"), vec![7; 300_000]).unwrap();
    let sparse = fs::File::create(odd.join("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"end", SPARSE - 3).unwrap();
    symlink("no/where at all", top.join("symlink")).unwrap();
    rustix::fs::mknodat(CWD, odd.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    fs::hard_link(odd.join("pipe"), top.join("pipe too")).unwrap();
    rustix::fs::mknodat(CWD, top.join("socket"), FileType::Socket, Mode::RUSR, 0).unwrap();
    let set = |path: &Path, name: &[u8], value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
    };
    set(&odd.join("file"), b"user.note", b"\0\xff");
    let list = Acl::named(7, 6, 4, 1).encode();
    set(&odd, b"system.posix_acl_default", &list);
    set(&odd.join("file"), b"system.posix_acl_access", &list);
    fs::set_permissions(odd.join("sparse"), fs::Permissions::from_mode(0o6751)).unwrap();
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o3770)).unwrap();
    if is_root() {
        let device = rustix::fs::makedev(8, 300);
        let kind = FileType::BlockDevice;
        rustix::fs::mknodat(CWD, top.join("disk"), kind, Mode::RUSR, device).unwrap();
        set(&top.join("symlink"), b"trusted.link", b"t");
        set(&odd.join("sparse"), b"security.capability", &CAPABILITY);
        rustix::fs::chownat(
            CWD,
            odd.join("below"),
            Some(rustix::fs::Uid::from_raw(1000)),
            Some(rustix::fs::Gid::from_raw(1001)),
            rustix::fs::AtFlags::empty(),
        )
        .unwrap();
    }
    let long_ago = Timespec {
        tv_sec: -5,
        tv_nsec: 123_456_789,
    };
    let times = Timestamps {
        last_access: long_ago,
        last_modification: long_ago,
    };
    for path in [odd.join("below/deep/large"), odd.join("below")] {
        rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }
}

/// `cap_net_raw=ep`, in the kernel's format.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Hears of an adoption, and stops it after some steps.
#[derive(Default)]
pub struct Watcher<'a> {
    pub steps: u64,
    pub stop_after: Option<u64>,
    pub reports: Vec<(String, Reason)>,
    /// Is called once, before the first file is taken.
    pub before_taking: Option<Box<dyn FnOnce() + 'a>>,
}

impl AdoptWatcher for Watcher<'_> {
    fn progress(&mut self, progress: &AdoptionProgress) -> ControlFlow<()> {
        self.steps += 1;
        if progress.phase == Phase::Taking
            && let Some(act) = self.before_taking.take()
        {
            act();
        }
        if self.stop_after.is_some_and(|most| self.steps > most) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn report(&mut self, not_adopted: &NotAdopted) {
        let NotAdopted { name, why } = not_adopted.clone();
        self.reports.push((name, why));
    }
}

/// A directory and a store beside it.
pub struct Place {
    _temp: tempfile::TempDir,
    pub source: PathBuf,
    pub store: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// In memory, where the many syncs of a test cost no time, if the memory can hold all attributes.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        let probe = tempfile::tempdir_in(memory);
        let is_able = probe.is_ok_and(|probe| {
            let flags = XattrFlags::empty();
            let list = Acl::named(7, 6, 4, 1).encode();
            let set = |name: &str, value: &[u8]| {
                rustix::fs::lsetxattr(probe.path(), name, value, flags).is_ok()
            };
            set("user.note", b"x") && set("system.posix_acl_default", &list)
        });
        if is_able {
            Self::within(memory)
        } else {
            Self::new()
        }
    }

    fn within(directory: &Path) -> Self {
        let temp = tempfile::tempdir_in(directory).unwrap();
        let (source, store) = (temp.path().join("source"), temp.path().join("store"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&store).unwrap();
        fill(&source);
        Self {
            _temp: temp,
            source,
            store,
        }
    }

    pub fn options(&self, way: Option<AdoptWay>) -> AdoptOptions {
        AdoptOptions {
            source: self.source.clone(),
            way,
            one_file_system: false,
            datastore: UUID,
            log: log_options(),
            sync_after: SyncAfter { bytes: 1, files: 1 },
        }
    }

    pub fn adopt(
        &self,
        way: Option<AdoptWay>,
        watcher: &mut Watcher<'_>,
    ) -> Result<AdoptSummary, AdoptError> {
        let files = Arc::new(OsBacking::open(&self.store).unwrap());
        let target = AdoptTarget::of_directory(files, &self.store).unwrap();
        adopt(&target, &self.options(way), watcher)
    }

    pub fn backing(&self) -> Arc<dyn Backing> {
        Arc::new(OsBacking::open(&self.store).unwrap())
    }

    pub fn open(&self) -> Result<Store, StoreError> {
        let opened = Store::open(self.backing(), &open_options(Access::Write));
        opened.map(|opened| opened.store)
    }

    /// The names of all inodes of the directory that are no directories.
    pub fn files_left(&self) -> Vec<PathBuf> {
        let left = listed(&self.source).into_iter();
        let files = left.filter(|(_, entry)| entry.mode & 0o170_000 != 0o040_000);
        files.map(|(path, _)| path).collect()
    }
}
