//! Stores exported as plain trees on a real disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_fs::boot::boot_id;
use lockstep_fs::export::{ExportError, HEADER, Lost, export};
use lockstep_fs::os_backing::OsBacking;
use lockstep_fs::store::{Access, MarkTableSizes, OpenOptions};
use lockstep_fs::{Store, StoreView};
use lockstep_intentlog::LogOptions;
use lockstep_model::Acl;
use lockstep_types::backing::Backing;
use lockstep_types::{
    AllocateMode, Errno, FileName, Ino, MetaOp, MetaRequest, NodeKind, Timestamp, XattrMode,
};

use crate::harness::{UUID, log_options, osn_and_time};

/// A store on a real disk, with functions to fill it.
pub struct Filler {
    pub dir: PathBuf,
    pub store: Store,
    count: u64,
}

const SPARSE: u64 = 64 << 20;

fn options() -> OpenOptions {
    OpenOptions {
        datastore: Some(UUID),
        boot: boot_id(),
        access: Access::Write,
        log: log_options(),
        marks: MarkTableSizes::of(64),
    }
}

impl Filler {
    pub fn new(dir: PathBuf) -> Self {
        fs::create_dir(&dir).unwrap();
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(&dir).unwrap());
        let log = LogOptions {
            segment_bytes: 1 << 20,
            ..log_options()
        };
        Store::create(&backing, UUID, &log).unwrap();
        let store = Store::open(backing, &options()).unwrap().store;
        Self {
            dir,
            store,
            count: 0,
        }
    }

    fn commit(&mut self, request: MetaRequest) {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        self.store.commit(&MetaOp { osn, time, request }).unwrap();
        if self.store.needs_checkpoint() {
            self.store.checkpoint().unwrap();
        }
    }

    pub fn make(&mut self, parent: Ino, name: &[u8], kind: NodeKind) -> Ino {
        let ino = self.store.next_ino().unwrap();
        self.commit(
            MetaRequest::creation(parent, FileName::new(name).unwrap(), ino, kind)
                .mode(0o750)
                .owner(1000, 1001)
                .rdev(0x0103)
                .target(match kind {
                    NodeKind::Symlink => b"no\xffwhere/at all".to_vec(),
                    _ => Vec::new(),
                })
                .request(),
        );
        ino
    }

    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        self.store.write(ino, offset, data, osn, time).unwrap();
    }

    fn set(&mut self, ino: Ino, mode: Option<u32>) {
        let time = |secs| Timestamp {
            secs,
            nanos: 123_456_789,
        };
        self.commit(MetaRequest::SetAttr {
            ino,
            mode,
            uid: None,
            gid: None,
            atime: Some(time(111)),
            mtime: Some(time(-222)),
        });
    }

    fn xattr(&mut self, ino: Ino, name: &[u8], value: Vec<u8>) {
        self.commit(MetaRequest::SetXattr {
            ino,
            name: name.to_vec(),
            value,
            mode: XattrMode::Any,
        });
    }

    /// Sets an attribute with a name that the store refuses now, as an earlier version has stored it.
    fn old_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8]) {
        self.count += 1;
        let (osn, time) = osn_and_time(self.count);
        let request = MetaRequest::SetXattr {
            ino,
            name: name.to_vec(),
            value: value.to_vec(),
            mode: XattrMode::Any,
        };
        self.store
            .intents()
            .log(&MetaOp { osn, time, request })
            .unwrap();
        self.store.intents().commit(osn).unwrap();
    }

    pub fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) {
        self.commit(MetaRequest::Link {
            ino,
            parent,
            name: FileName::new(name).unwrap(),
        });
    }

    /// Makes one inode of every kind.
    fn fill(&mut self) {
        let dir = self.make(Ino::ROOT, b"dir\n\xfe", NodeKind::Directory);
        let file = self.make(dir, b"file", NodeKind::File);
        self.write(file, 0, b"content");
        self.xattr(file, b"user.note", b"\0\xff".to_vec());
        self.xattr(file, b"security.capability", CAPABILITY.to_vec());
        self.set(file, Some(0o6755));
        let sparse = self.make(dir, b"sparse", NodeKind::File);
        self.write(sparse, SPARSE, b"end");
        self.commit(MetaRequest::Allocate {
            ino: sparse,
            offset: 0,
            length: 4096,
            mode: AllocateMode::PunchHole,
        });
        for (name, kind) in [
            (&b"link"[..], NodeKind::Symlink),
            (b"pipe", NodeKind::Fifo),
            (b"socket", NodeKind::Socket),
            (b"null", NodeKind::CharDevice),
        ] {
            let ino = self.make(dir, name, kind);
            self.set(ino, None);
            self.link(ino, Ino::ROOT, name);
        }
        self.link(file, Ino::ROOT, b".lockstep-export.0");
        self.link(file, Ino::ROOT, b"z third");
        self.xattr(dir, acl_name("default"), Acl::named(7, 5, 7, 0).encode());
        self.xattr(dir, acl_name("access"), Acl::named(7, 6, 4, 1).encode());
        self.make(dir, b"inherits", NodeKind::Directory);
        self.set(dir, Some(0o1771));
        self.set(Ino::ROOT, Some(0o2755));
    }
}

/// `cap_net_raw=ep`, in the kernel's format.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn acl_name(which: &str) -> &'static [u8] {
    match which {
        "default" => b"system.posix_acl_default",
        _ => b"system.posix_acl_access",
    }
}

fn getxattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn hashes(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if fs::metadata(&path).unwrap().len() < SPARSE {
                found.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// For exports to a destination that can hold everything.
fn expect_no_loss(lost: &Lost) {
    panic!("{lost:?}");
}

#[test]
fn everything_is_kept() {
    if !is_root() {
        return; // Owners and devices need root.
    }
    let temp = tempfile::tempdir().unwrap();
    let mut filler = Filler::new(temp.path().join("store"));
    filler.fill();
    let (dir, dest) = (filler.dir.clone(), temp.path().join("out"));
    // Not closed: the state after a kill.
    std::mem::forget(filler.store);
    let before = hashes(&dir);
    let manifest = temp.path().join("list");
    let summary = export(&dir, &dest, Some(&manifest), &mut expect_no_loss).unwrap();
    assert!(hashes(&dir) == before, "the store is as it was");
    assert_eq!(
        (summary.names, summary.directories, summary.files),
        (14, 3, 2)
    );
    check_tree(&dest);
    check_manifest(&dest, &fs::read_to_string(&manifest).unwrap());
}

fn check_tree(dest: &Path) {
    let dir = dest.join(std::ffi::OsStr::from_bytes(b"dir\n\xfe"));
    let stat = |path: &Path| fs::symlink_metadata(path).unwrap();
    let file = stat(&dir.join("file"));
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"content");
    assert_eq!(
        (file.mode() & 0o7777, file.uid(), file.gid()),
        (0o6755, 1000, 1001)
    );
    assert_eq!((file.atime(), file.atime_nsec()), (111, 123_456_789));
    assert_eq!((file.mtime(), file.mtime_nsec()), (-222, 123_456_789));
    assert_eq!(file.nlink(), 3);
    for other in ["z third", ".lockstep-export.0"] {
        assert_eq!(stat(&dest.join(other)).ino(), file.ino());
    }
    assert_eq!(getxattr(&dir.join("file"), "user.note").unwrap(), b"\0\xff");
    assert_eq!(
        getxattr(&dir.join("file"), "security.capability").unwrap(),
        CAPABILITY
    );
    let sparse = stat(&dir.join("sparse"));
    assert_eq!(sparse.len(), SPARSE + 3);
    assert!(sparse.blocks() < 1000, "holes are kept");
    let mut end = [0; 3];
    fs::File::open(dir.join("sparse"))
        .unwrap()
        .read_exact_at(&mut end, SPARSE)
        .unwrap();
    assert_eq!(&end, b"end");
    for name in ["link", "pipe", "socket", "null"] {
        let (one, two) = (stat(&dir.join(name)), stat(&dest.join(name)));
        assert_eq!(
            (one.ino(), one.nlink(), one.uid()),
            (two.ino(), 2, 1000),
            "{name}"
        );
        assert_eq!(
            (one.mtime(), one.mtime_nsec()),
            (-222, 123_456_789),
            "{name}"
        );
    }
    let target = fs::read_link(dir.join("link")).unwrap();
    assert_eq!(target.as_os_str().as_bytes(), b"no\xffwhere/at all");
    assert!(stat(&dir.join("pipe")).file_type().is_fifo());
    assert!(stat(&dir.join("socket")).file_type().is_socket());
    assert_eq!(stat(&dir.join("null")).rdev(), 0x0103);
    let (top, below) = (stat(dest), stat(&dir));
    assert_eq!((top.mode() & 0o7777, top.mtime()), (0o2755, -222));
    assert_eq!((below.mode() & 0o7777, below.mtime()), (0o1771, -222));
    let list = getxattr(&dir, "system.posix_acl_access").unwrap();
    assert_eq!(Acl::parse(&list).unwrap().mode(), 0o771);
    let inherited = getxattr(&dir.join("inherits"), "system.posix_acl_default");
    assert_eq!(inherited.unwrap(), Acl::named(7, 5, 7, 0).encode());
}

fn check_manifest(dest: &Path, text: &str) {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(HEADER));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 15);
    assert!(
        rows.iter()
            .all(|row| row.len() == HEADER.split('\t').count())
    );
    let row = |path: &str| rows.iter().find(|row| row[0] == path).unwrap();
    assert_eq!(row(".")[1..4], ["1", "d", "2755"]);
    let file = row("dir\\x0a\\xfe/file");
    let content = blake3::hash(b"content").to_hex();
    assert_eq!(file[2..7], ["f", "6755", "1000", "1001", "7"]);
    assert_eq!(file[7..9], ["111.123456789", "-222.123456789"]);
    assert_eq!(file[10..13], ["0:0", "3", content.as_str()]);
    assert_eq!(row("z third")[1..], file[1..]);
    assert_eq!(row("null")[10], "1:3");
    assert_eq!(row("link")[12], "no\\xffwhere/at all");
    let sparse = fs::File::open(dest.join(std::ffi::OsStr::from_bytes(b"dir\n\xfe/sparse")));
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(sparse.unwrap()).unwrap();
    assert_eq!(
        row("dir\\x0a\\xfe/sparse")[12],
        hasher.finalize().to_hex().as_str()
    );
}

/// More than an ext4 has room for in one attribute.
const BIG: usize = 8 << 10;

/// Runs `body` as root without the capabilities to give files away, to make devices, and to set attributes
/// for the system.
fn with_few_rights<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let missing = CapabilitySet::CHOWN
        | CapabilitySet::MKNOD
        | CapabilitySet::SYS_ADMIN
        | CapabilitySet::SETFCAP;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= missing;
            set_capabilities(None, sets).unwrap();
            body()
        });
        thread.join().unwrap()
    })
}

#[test]
fn what_the_destination_cannot_hold_is_told_and_the_rest_is_kept() {
    if !is_root() {
        return; // Without root nothing of this is kept.
    }
    let temp = tempfile::tempdir().unwrap();
    let mut filler = Filler::new(temp.path().join("store"));
    filler.fill();
    let last = filler.make(Ino::ROOT, b"last", NodeKind::File);
    filler.write(last, 0, b"reached");
    filler.xattr(last, b"user.big", vec![7; BIG]);
    filler.old_xattr(last, b"system.foo", b"from an earlier version");
    filler.xattr(Ino::ROOT, b"trusted.root", b"x".to_vec());
    filler.store.close().unwrap();
    let (target, manifest) = (temp.path().join("out"), temp.path().join("list"));
    let mut reports = Vec::new();
    let mut report = |lost: &Lost| reports.push(lost.clone());
    let exported = with_few_rights(|| export(&filler.dir, &target, Some(&manifest), &mut report));
    let summary = exported.unwrap();
    assert_eq!((summary.names, summary.missing), (13, 2));
    assert_eq!(summary.lost, reports.len() as u64);
    check_reports(&reports, &target);
    check_listed_reports(&reports, &fs::read_to_string(&manifest).unwrap());

    let dir = target.join(std::ffi::OsStr::from_bytes(b"dir\n\xfe"));
    assert_eq!(fs::read(target.join("last")).unwrap(), b"reached");
    let file = fs::metadata(dir.join("file")).unwrap();
    assert_eq!((file.uid(), file.nlink()), (0, 3));
    assert_eq!(
        file.mode() & 0o7777,
        0o755,
        "no set-id bits for another owner"
    );
    assert!(!dir.join("null").exists() && !target.join("null").exists());
    assert!(dir.join("pipe").exists() && target.join("pipe").exists());
}

fn check_reports(reports: &[Lost], dest: &Path) {
    let has = |name: &str, what: &str| {
        let found = reports
            .iter()
            .any(|lost| lost.name == name && lost.what == what);
        assert!(found, "{name}: {what}: {reports:#?}");
    };
    has("last", "extended attribute system.foo");
    has("last", "owner and set-id bits");
    has(".", "extended attribute trusted.root");
    // The first name of the file in byte order.
    has(
        ".lockstep-export.0",
        "extended attribute security.capability",
    );
    has("dir\\x0a\\xfe/null", "the file itself");
    has("null", "the file itself");
    has("dir\\x0a\\xfe/inherits", "owner and set-id bits");
    let mut big = vec![0; BIG];
    if rustix::fs::lgetxattr(dest.join("last"), "user.big", &mut big[..]).is_err() {
        has("last", "extended attribute user.big");
    }
}

fn check_listed_reports(reports: &[Lost], list: &str) {
    let lines = list.lines().filter(|line| line.starts_with("\\lost"));
    let expected = reports
        .iter()
        .map(|lost| format!("\\lost\t{}\t{}\t{}", lost.name, lost.what, lost.cause));
    assert!(lines.eq(expected), "{list}");
    let others = list.lines().filter(|line| !line.starts_with(['\\', '#']));
    assert_eq!(others.count(), 16);
}

#[test]
fn a_name_outside_the_namespaces_is_refused_but_an_old_one_is_no_damage() {
    let temp = tempfile::tempdir().unwrap();
    let mut filler = Filler::new(temp.path().join("store"));
    let ino = filler.make(Ino::ROOT, b"f", NodeKind::File);
    filler.old_xattr(ino, b"system.foo", b"old");
    let (dir, count) = (filler.dir.clone(), filler.count);
    // The state after a kill: the log is replayed.
    drop(filler.store);
    let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(&dir).unwrap());
    let store = Store::open(backing, &options()).unwrap().store;
    assert_eq!(store.tree().getxattr(ino, b"system.foo").unwrap(), b"old");
    for name in [&b"system.foo"[..], b"btrfs.compression", b"user"] {
        let (osn, time) = osn_and_time(count + 1);
        let (name, value) = (name.to_vec(), Vec::new());
        let remove = MetaRequest::RemoveXattr {
            ino,
            name: name.clone(),
        };
        let mode = XattrMode::Any;
        let set = MetaRequest::SetXattr {
            ino,
            name,
            value,
            mode,
        };
        for request in [remove, set] {
            let op = MetaOp { osn, time, request };
            for refused in [store.validate(&op).err(), store.commit(&op).err()] {
                let refused = refused.expect("outside the namespaces");
                assert_eq!(refused.errno(), Errno::NotSupported, "{op:?}");
            }
        }
    }
}

#[test]
fn a_tree_deeper_than_any_path_is_written_out() {
    let temp = tempfile::tempdir().unwrap();
    let mut filler = Filler::new(temp.path().join("store"));
    let mut at = Ino::ROOT;
    for _ in 0..1_200 {
        at = filler.make(at, b"deeper", NodeKind::Directory);
        filler.commit(MetaRequest::SetAttr {
            ino: at,
            mode: Some(0o700),
            uid: Some(rustix::process::geteuid().as_raw()),
            gid: Some(rustix::process::getegid().as_raw()),
            atime: None,
            mtime: None,
        });
    }
    filler.store.close().unwrap();
    let dest = temp.path().join("out");
    let summary = export(&filler.dir, &dest, None, &mut expect_no_loss);
    if is_root() {
        assert_eq!(summary.unwrap().directories, 1_201);
    }
}

#[test]
fn what_cannot_be_exported_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let filler = Filler::new(temp.path().join("store"));
    filler.store.close().unwrap();
    let (dir, out) = (filler.dir.clone(), temp.path().join("out"));
    let backing = OsBacking::open(&dir).unwrap();
    backing.lock().unwrap();
    let error = export(&dir, &out, None, &mut expect_no_loss).unwrap_err();
    assert!(matches!(error, ExportError::InUse { .. }), "{error}");
    drop(backing);

    fs::create_dir(&out).unwrap();
    fs::write(out.join("theirs"), "x").unwrap();
    for taken in [&out, &out.join("theirs")] {
        let error = export(&dir, taken, None, &mut expect_no_loss).unwrap_err();
        assert!(matches!(error, ExportError::NotEmpty { .. }), "{error}");
    }
    let error = export(&dir, &dir.join("inner"), None, &mut expect_no_loss).unwrap_err();
    assert!(matches!(error, ExportError::InsideStore { .. }), "{error}");
    assert!(!dir.join("inner").exists());
    let error = export(&out, &temp.path().join("new"), None, &mut expect_no_loss)
        .unwrap_err()
        .to_string();
    assert!(error.contains("holds no Lockstep store"), "{error}");
    assert!(!temp.path().join("new").exists(), "nothing is made in vain");
}

#[test]
fn damaged_content_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let mut filler = Filler::new(temp.path().join("store"));
    let ino = filler.make(Ino::ROOT, b"broken", NodeKind::File);
    filler.write(ino, 0, b"content");
    filler.store.close().unwrap();
    let content = filler.dir.join(lockstep_fs::paths::content_path(ino));
    fs::write(content, "con").unwrap();
    let error = export(
        &filler.dir,
        &temp.path().join("out"),
        None,
        &mut expect_no_loss,
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.starts_with("cannot read broken: content of inode"),
        "{error}"
    );
}

/// An export neither uses nor overwrites the list of an earlier export, or a part of one.
#[test]
fn what_is_there_is_kept_and_what_is_not_complete_is_called_so() {
    let temp = tempfile::tempdir().unwrap();
    let filler = Filler::new(temp.path().join("store"));
    let dir = filler.dir.clone();
    drop(filler);
    let (dest, list) = (temp.path().join("tree"), temp.path().join("list"));
    let run = || export(&dir, &dest, Some(&list), &mut expect_no_loss);
    fs::write(&list, "precious").unwrap();
    assert!(matches!(run(), Err(ExportError::ManifestExists { .. })));
    assert_eq!(fs::read_to_string(&list).unwrap(), "precious");
    fs::remove_file(&list).unwrap();
    let part = temp.path().join("tree.partial");
    fs::create_dir(&part).unwrap();
    assert!(matches!(run(), Err(ExportError::PartExists { .. })));
    assert!(!dest.exists() && !list.exists());
    fs::remove_dir(&part).unwrap();
    run().unwrap();
    assert!(dest.is_dir() && list.is_file() && !part.exists());
    assert!(!temp.path().join("list.partial").exists());
}
