//! Permissions that a file system has to check itself: each caller makes the same calls on a mount and on an ext4,
//! and must get the same answers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "model/callers.rs"]
mod callers;
#[path = "model/ext4.rs"]
mod ext4;
#[path = "model/fs.rs"]
mod model;
#[path = "model/mounted.rs"]
mod mounted;

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use callers::Caller;
use ext4::Ext4;
use mounted::{Fixture, NOBODY};
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, XattrFlags, copy_file_range, fallocate, lgetxattr,
    llistxattr, lremovexattr, lsetxattr, mknodat,
};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// A group of some callers.
const GROUP: u32 = 77;

/// An ACL that permission bits cannot express: user 5 may read and write.
const ACL: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 5, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255,
    255, 16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
];

/// `cap_net_raw=ep`, in the kernel's format.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

const NAMES: [&str; 16] = [
    "user.a",
    "user.",
    "trusted.a",
    "trusted.",
    "security.a",
    "security.capability",
    "system.posix_acl_access",
    "system.posix_acl_default",
    "system.foo",
    "system.posix_acl",
    "system.",
    "btrfs.compression",
    "os2.a",
    "USER.a",
    "user",
    "plain",
];

const KINDS: [&str; 10] = [
    "private", "shared", "own", "dir", "own_dir", "sticky", "link", "pipe", "socket", "device",
];

fn callers() -> Vec<(&'static str, Caller)> {
    let root = Caller::root_without(CapabilitySet::empty());
    let nobody = Caller::user(NOBODY, NOBODY);
    vec![
        ("root", root),
        (
            "root without CAP_SYS_ADMIN",
            Caller::root_without(CapabilitySet::SYS_ADMIN),
        ),
        (
            "root without CAP_SETFCAP",
            Caller::root_without(CapabilitySet::SETFCAP),
        ),
        (
            "root without capabilities",
            root.with(CapabilitySet::empty()),
        ),
        ("nobody", nobody),
        ("nobody with CAP_FOWNER", nobody.with(CapabilitySet::FOWNER)),
        (
            "nobody with CAP_SYS_ADMIN",
            nobody.with(CapabilitySet::SYS_ADMIN),
        ),
    ]
}

/// Makes one inode of each kind with rules of its own. The ones named `own` belong to the user `nobody`.
fn make_kinds(root: &Path) {
    let mode = |name: &str, mode| {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for (name, bits) in [("private", 0o600), ("shared", 0o666), ("own", 0o600)] {
        File::create(root.join(name)).unwrap();
        mode(name, bits);
    }
    for (name, bits) in [("dir", 0o700), ("own_dir", 0o700), ("sticky", 0o1777)] {
        fs::create_dir(root.join(name)).unwrap();
        mode(name, bits);
    }
    symlink("nowhere", root.join("link")).unwrap();
    for (name, kind) in [
        ("pipe", FileType::Fifo),
        ("socket", FileType::Socket),
        ("device", FileType::CharacterDevice),
    ] {
        mknodat(CWD, root.join(name), kind, Mode::empty(), 0x0103).unwrap();
        mode(name, 0o666);
    }
    for name in ["own", "own_dir"] {
        chown(root.join(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

fn value(name: &str) -> &'static [u8] {
    match name {
        "security.capability" => &CAPABILITY,
        acl if acl.starts_with("system.posix_acl_") => &ACL,
        _ => b"value",
    }
}

fn listed(path: &Path) -> String {
    let mut names = [0; 4096];
    match llistxattr(path, &mut names[..]) {
        Ok(length) => {
            let mut names: Vec<_> = names[..length].split(|byte| *byte == 0).collect();
            names.sort_unstable();
            format!("{}", names.join(&b' ').escape_ascii())
        }
        Err(errno) => errno.to_string(),
    }
}

/// Makes every call with every name on every kind of inode, and appends the answers. Attributes with the other names
/// exist meanwhile, set by root.
fn try_names(root: &Path, answers: &mut String) {
    for kind in KINDS {
        let path = root.join(kind);
        for name in NAMES {
            let mut found = [0; 100];
            let before = lgetxattr(&path, name, &mut found[..]);
            let before = before.map(|length| found[..length].escape_ascii().to_string());
            let before = before.map_err(Errno::raw_os_error);
            let set =
                |flags| lsetxattr(&path, name, value(name), flags).map_err(Errno::raw_os_error);
            let (again, replaced) = (XattrFlags::CREATE, XattrFlags::REPLACE);
            let (set, again, replaced) = (set(XattrFlags::empty()), set(again), set(replaced));
            let list = listed(&path);
            let removed = lremovexattr(&path, name).map_err(Errno::raw_os_error);
            writeln!(
                answers,
                "{kind} {name}: get {before:?} set {set:?} create {again:?} replace {replaced:?} \
                 list {list} remove {removed:?}"
            )
            .unwrap();
        }
    }
}

/// Gives every inode the attributes that root can give it.
fn give_all(root: &Path) {
    for kind in KINDS {
        for name in NAMES {
            // Some kinds cannot have every name.
            let _ = lsetxattr(root.join(kind), name, value(name), XattrFlags::empty());
        }
    }
}

/// Removes all attributes.
fn take_all(root: &Path) {
    for kind in KINDS {
        for name in NAMES {
            let _ = lremovexattr(root.join(kind), name);
        }
    }
}

fn answers_about_names(root: &Path) -> Vec<String> {
    make_kinds(root);
    let mut answers = Vec::new();
    for (who, caller) in callers() {
        for given in [false, true] {
            if given {
                give_all(root);
            } else {
                take_all(root);
            }
            let mut lines = format!("{who}, attributes there before: {given}\n");
            caller.run(|| try_names(root, &mut lines));
            let about = |line: &str| format!("{who}, {given}: {line}");
            answers.extend(lines.lines().map(about));
        }
    }
    answers
}

fn assert_same(here: &[String], ext4: &[String]) {
    assert_eq!(here.len(), ext4.len());
    let differ = |(here, ext4): (&String, &String)| {
        (here != ext4).then(|| format!("here: {here}\next4: {ext4}\n"))
    };
    let differences: Vec<_> = here.iter().zip(ext4).filter_map(differ).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn extended_attributes_are_governed_as_on_ext4() {
    let Some(mount) = Fixture::new() else { return };
    let ext4 = Ext4::new();
    let here = answers_about_names(&mount.path(""));
    let expected = "nobody, false: own user.a: get Err(61) set Ok(()) create Err(17)";
    assert!(
        here.iter().any(|line| line.starts_with(expected)),
        "{here:#?}"
    );
    assert_same(&here, &answers_about_names(&ext4.root()));
}

/// A user may be root in its own user namespace.
#[test]
fn capabilities_in_a_user_namespace_grant_nothing() {
    let Some(mount) = Fixture::new() else { return };
    let ext4 = Ext4::new();
    let script = |root: &Path| {
        let file = root.join("f");
        fs::write(&file, "content").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
        lsetxattr(&file, "trusted.a", b"x", XattrFlags::empty()).unwrap();
        let mut command = Command::new("setpriv");
        let user = format!("--reuid={NOBODY}");
        command.args([&user, "--regid=65534", "--clear-groups"]);
        command.args(["unshare", "--user", "--map-root-user", "sh", "-ec"]);
        command.arg("fallocate -p -l 4096 f; getfattr -m - f; stat -c %a f");
        let output = command.current_dir(root).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    fs::set_permissions(ext4.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let there = script(&ext4.root());
    if there.0 != Some(0) {
        eprintln!("skipped: users may make no user namespaces");
        return;
    }
    assert_eq!(there.1, "777\n");
    assert_eq!(script(&mount.path("")), there);
}

/// A way to change the content of a file.
type Change = fn(&Path, &File) -> rustix::io::Result<()>;

fn writable(path: &Path) -> rustix::io::Result<File> {
    let opened = OpenOptions::new().write(true).open(path);
    opened.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn allocate(path: &Path, flags: FallocateFlags) -> rustix::io::Result<()> {
    fallocate(writable(path)?, flags, 0, 4096)
}

/// Every way to change content. The second argument is the source of a copy.
const CHANGES: [(&str, Change); 10] = [
    ("write", |path, _| {
        let written = writable(path)?.write_all_at(b"x", 0);
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }),
    ("truncate on open", |path, _| {
        let opened = OpenOptions::new().write(true).truncate(true).open(path);
        opened
            .map(drop)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }),
    ("ftruncate", |path, _| {
        rustix::fs::ftruncate(writable(path)?, 10)
    }),
    ("allocate", |path, _| {
        allocate(path, FallocateFlags::empty())
    }),
    ("keep size", |path, _| {
        allocate(path, FallocateFlags::KEEP_SIZE)
    }),
    ("punch", |path, _| {
        allocate(path, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
    }),
    ("zero", |path, _| allocate(path, FallocateFlags::ZERO_RANGE)),
    ("zero, keep size", |path, _| {
        allocate(path, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE)
    }),
    ("copy", |path, from| {
        let (mut at, mut to) = (0, 0);
        let target = writable(path)?;
        copy_file_range(from.as_fd(), Some(&mut at), &target, Some(&mut to), 4).map(drop)
    }),
    ("chown to itself", |path, _| {
        let gid = rustix::fs::stat(path)?.st_gid;
        rustix::fs::chown(path, None, Some(rustix::process::Gid::from_raw(gid)))
    }),
];

const MODES: [u32; 8] = [
    0o4666, 0o4777, 0o2666, 0o2676, 0o2777, 0o6666, 0o6676, 0o7666,
];

fn changers() -> Vec<(&'static str, Caller)> {
    let nobody = Caller::user(NOBODY, NOBODY);
    vec![
        ("root", Caller::root_without(CapabilitySet::empty())),
        (
            "root without CAP_FSETID",
            Caller::root_without(CapabilitySet::FSETID),
        ),
        ("nobody", nobody),
        ("nobody, in the group", Caller::user(NOBODY, GROUP)),
        ("nobody, in the group besides", nobody.and_group(GROUP)),
        ("nobody with CAP_FSETID", nobody.with(CapabilitySet::FSETID)),
        ("the owner", Caller::user(1234, NOBODY)),
        ("the owner, in the group", Caller::user(1234, GROUP)),
    ]
}

/// The permission bits after each change, by each caller, of each file with set-id bits.
fn bits_after_changes(root: &Path) -> Vec<String> {
    fs::set_permissions(root, fs::Permissions::from_mode(0o777)).unwrap();
    let (source, path) = (root.join("source"), root.join("file"));
    fs::write(&source, "from").unwrap();
    let source = File::open(&source).unwrap();
    let mut answers = Vec::new();
    for (who, caller) in changers() {
        for mode in MODES {
            for (change, run) in CHANGES {
                fs::write(&path, "content").unwrap();
                chown(&path, Some(1234), Some(GROUP)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                let outcome = caller.run(|| run(&path, &source));
                let after = fs::metadata(&path).unwrap().mode() & 0o7777;
                answers.push(format!(
                    "{who}: {change} of {mode:o}: {outcome:?}, {after:o}"
                ));
                fs::remove_file(&path).unwrap();
            }
        }
    }
    answers
}

#[test]
fn set_id_bits_fall_as_on_ext4() {
    let Some(mount) = Fixture::new() else { return };
    let ext4 = Ext4::new();
    let here = bits_after_changes(&mount.path(""));
    assert!(
        here.contains(&"nobody: punch of 2666: Ok(()), 666".to_owned()),
        "{here:#?}"
    );
    assert_same(&here, &bits_after_changes(&ext4.root()));
}
