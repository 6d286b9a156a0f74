//! The steps of a test, in a form that shrinks. A step names inodes by small numbers. The test picks the inodes when
//! the step runs.

use lockstep_model::{Acl, Model};
use lockstep_types::{
    AllocateMode, FileName, Ino, InodeFlags, MetaRequest, NameRemoval, NodeKind, RenameMode,
    Timestamp, XattrMode, limits,
};
use proptest::prelude::*;

/// One step of a test.
#[derive(Clone, Debug)]
pub enum Step {
    Meta(Change),
    Write {
        file: u8,
        offset: u16,
        length: u16,
        fill: u8,
    },
    Checkpoint,
    Garbage,
    /// A clean shutdown, then a start.
    Restart,
    /// A kill, then a start.
    Kill,
}

/// A metadata operation whose inodes are not picked yet.
#[derive(Clone, Debug)]
pub enum Change {
    Names(Names),
    Attributes(Attributes),
    Content(Content),
}

/// A change of names, or the freeing of an inode without a name.
#[derive(Clone, Debug)]
pub enum Names {
    Create {
        dir: u8,
        name: u8,
        kind: NodeKind,
        mode: u32,
        umask: u32,
        owner: u32,
    },
    Link {
        ino: u8,
        dir: u8,
        name: u8,
    },
    Unlink {
        dir: u8,
        name: u8,
    },
    Rmdir {
        dir: u8,
        name: u8,
    },
    Rename {
        from: (u8, u8),
        to: (u8, u8),
        mode: RenameMode,
    },
    Reap {
        ino: u8,
    },
    ReapAll {
        orphan: u8,
        any: u8,
    },
    /// The removal takes the inode into the trash.
    IntoTrash(Box<Names>),
    Restore {
        ino: u8,
        dir: u8,
        name: u8,
    },
    Drop {
        ino: u8,
        any: u8,
    },
}

/// A change of attributes, extended ones among them.
#[derive(Clone, Debug)]
pub enum Attributes {
    SetAttr {
        ino: u8,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        time: Option<u8>,
    },
    DropPrivileges {
        ino: u8,
    },
    SetXattr {
        ino: u8,
        name: u8,
        value: u8,
        mode: XattrMode,
    },
    RemoveXattr {
        ino: u8,
        name: u8,
    },
    SetFlags {
        ino: u8,
        flags: u8,
    },
}

/// A change of the size or the allocated space of a file.
#[derive(Clone, Debug)]
pub enum Content {
    Truncate {
        file: u8,
        size: u64,
        drop_set_id: bool,
    },
    Allocate {
        file: u8,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    },
}

const NAMES: [&[u8]; 5] = [b"a", b"bb", b"\xff\n\t", b"d", &[b'x'; 255]];
const XATTRS: [&[u8]; 5] = [
    b"user.one",
    b"user.\xfe",
    b"security.capability",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
];

fn file_name(number: u8) -> FileName {
    FileName::new(NAMES[usize::from(number) % NAMES.len()]).unwrap()
}

fn xattr(name: u8, value: u8) -> (Vec<u8>, Vec<u8>) {
    let name = XATTRS[usize::from(name) % XATTRS.len()];
    let value = match value % 6 {
        _ if !name.starts_with(b"system.") => vec![value; usize::from(value)],
        0 => Acl::minimal(7, 5, 1).encode(),
        1 => Acl::empty().encode(),
        2 => vec![2, 0],
        3 => Acl::named(6, 7, 4, 0).encode(),
        _ => Acl::named(7, 3, 7, 5).encode(),
    };
    (name.to_vec(), value)
}

/// Inodes that steps may name: all inodes that ever existed.
pub struct Known {
    pub inos: Vec<Ino>,
}

impl Known {
    fn any(&self, pick: u8) -> Ino {
        self.inos[usize::from(pick) % self.inos.len()]
    }

    /// Mostly an inode for which `fits` is true.
    fn mostly(&self, pick: u8, fits: impl Fn(Ino) -> bool) -> Ino {
        let fitting: Vec<_> = self.inos.iter().copied().filter(|ino| fits(*ino)).collect();
        if pick >= 240 || fitting.is_empty() {
            return self.any(pick);
        }
        fitting[usize::from(pick) % fitting.len()]
    }

    fn dir(&self, model: &Model, pick: u8) -> Ino {
        self.mostly(pick, |ino| model.names(ino).is_ok())
    }

    /// A file in most cases.
    pub fn file(&self, model: &Model, pick: u8) -> Ino {
        self.mostly(pick, |ino| model.content(ino).is_ok())
    }

    fn in_trash(&self, model: &Model, pick: u8) -> Ino {
        self.mostly(pick, |ino| {
            model.node(ino).is_ok() && model.is_in_trash(ino)
        })
    }

    fn orphan(&self, model: &Model, pick: u8) -> Ino {
        self.mostly(pick, |ino| model.node(ino).is_ok() && model.is_orphan(ino))
    }
}

impl Change {
    /// The request, on a file system in the state of `model`.
    pub fn request(
        &self,
        known: &Known,
        model: &Model,
        fresh: impl FnOnce() -> Ino,
    ) -> MetaRequest {
        match self {
            Self::Names(change) => change.request(known, model, fresh),
            Self::Attributes(change) => change.request(known),
            Self::Content(change) => change.request(known, model),
        }
    }
}

impl Names {
    fn request(&self, known: &Known, model: &Model, fresh: impl FnOnce() -> Ino) -> MetaRequest {
        let dir = |pick: u8| known.dir(model, pick);
        if let Self::IntoTrash(names) = self {
            let request = names.request(known, model, fresh);
            return match NameRemoval::of(&request) {
                Some(removal) => MetaRequest::IntoTrash { removal },
                None => request,
            };
        }
        match *self {
            Self::IntoTrash(_) => unreachable!("handled before"),
            Self::Restore {
                ino,
                dir: parent,
                name,
            } => MetaRequest::TrashRestore {
                ino: known.in_trash(model, ino),
                parent: dir(parent),
                name: file_name(name),
            },
            Self::Drop { ino, any } => MetaRequest::TrashDrop {
                inos: vec![known.in_trash(model, ino), known.any(any)],
            },
            Self::Create {
                dir: parent,
                name,
                kind,
                mode,
                umask,
                owner,
            } => MetaRequest::creation(dir(parent), file_name(name), fresh(), kind)
                .mode(mode)
                .umask(umask)
                .owner(owner, owner + 1)
                .rdev(0x0105)
                .target(if kind == NodeKind::Symlink {
                    vec![name; name.into()]
                } else {
                    vec![]
                })
                .request(),
            Self::Link {
                ino,
                dir: parent,
                name,
            } => MetaRequest::Link {
                ino: known.file(model, ino),
                parent: dir(parent),
                name: file_name(name),
            },
            Self::Unlink { dir: parent, name } => MetaRequest::Unlink {
                parent: dir(parent),
                name: file_name(name),
            },
            Self::Rmdir { dir: parent, name } => MetaRequest::Rmdir {
                parent: dir(parent),
                name: file_name(name),
            },
            Self::Rename { from, to, mode } => MetaRequest::Rename {
                parent: dir(from.0),
                name: file_name(from.1),
                new_parent: dir(to.0),
                new_name: file_name(to.1),
                mode: match mode {
                    RenameMode::Whiteout { uid, gid, .. } => RenameMode::Whiteout {
                        ino: fresh(),
                        uid,
                        gid,
                    },
                    mode => mode,
                },
            },
            Self::Reap { ino } => MetaRequest::Reap {
                ino: known.orphan(model, ino),
            },
            Self::ReapAll { orphan, any } => MetaRequest::ReapAll {
                inos: vec![known.orphan(model, orphan), known.any(any)],
            },
        }
    }
}

impl Attributes {
    fn request(&self, known: &Known) -> MetaRequest {
        match *self {
            Self::SetAttr {
                ino,
                mode,
                uid,
                gid,
                time,
            } => MetaRequest::SetAttr {
                ino: known.any(ino),
                mode,
                uid,
                gid,
                atime: time.map(|secs| Timestamp {
                    secs: i64::from(secs) - 99,
                    nanos: 5,
                }),
                mtime: time
                    .filter(|secs| secs % 2 == 0)
                    .map(|_| Timestamp { secs: -7, nanos: 1 }),
            },
            Self::DropPrivileges { ino } => MetaRequest::DropPrivileges {
                ino: known.any(ino),
            },
            Self::SetXattr {
                ino,
                name,
                value,
                mode,
            } => {
                let (name, value) = xattr(name, value);
                MetaRequest::SetXattr {
                    ino: known.any(ino),
                    name,
                    value,
                    mode,
                }
            }
            Self::RemoveXattr { ino, name } => MetaRequest::RemoveXattr {
                ino: known.any(ino),
                name: xattr(name, 0).0,
            },
            Self::SetFlags { ino, flags } => MetaRequest::SetFlags {
                ino: known.any(ino),
                flags: InodeFlags::from_bits(flags),
            },
        }
    }
}

impl Content {
    fn request(&self, known: &Known, model: &Model) -> MetaRequest {
        let file = |pick: u8| known.file(model, pick);
        match *self {
            Self::Truncate {
                file: ino,
                size,
                drop_set_id,
            } => MetaRequest::Truncate {
                ino: file(ino),
                size,
                drop_set_id,
            },
            Self::Allocate {
                file: ino,
                offset,
                length,
                mode,
            } => MetaRequest::Allocate {
                ino: file(ino),
                offset,
                length,
                mode,
            },
        }
    }
}

fn kind() -> impl Strategy<Value = NodeKind> {
    prop_oneof![
        6 => Just(NodeKind::File),
        5 => Just(NodeKind::Directory),
        1 => Just(NodeKind::Symlink),
        1 => Just(NodeKind::Fifo),
        1 => Just(NodeKind::CharDevice),
    ]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![9 => 0..20_000u64, 1 => Just(limits::FILE_BYTES_MAX + 1), 1 => Just(u64::MAX)]
}

fn rename_mode() -> impl Strategy<Value = RenameMode> {
    use RenameMode::{Exchange, NoReplace, Replace, Whiteout};
    // The inode is picked when the step runs.
    let whiteout = Whiteout {
        ino: Ino::ROOT,
        uid: 1,
        gid: 2,
    };
    prop_oneof![3 => Just(Replace), 1 => Just(NoReplace), 2 => Just(Exchange), 1 => Just(whiteout)]
}

fn allocate_mode() -> impl Strategy<Value = AllocateMode> {
    prop::sample::select(vec![
        AllocateMode::Allocate,
        AllocateMode::AllocateKeepSize,
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange,
        AllocateMode::ZeroRangeKeepSize,
    ])
}

fn xattr_mode() -> impl Strategy<Value = XattrMode> {
    use XattrMode::{Any, Create, Replace};
    prop::sample::select(vec![Any, Any, Create, Replace])
}

fn mode() -> impl Strategy<Value = u32> {
    0..0o10_000u32
}

fn names() -> impl Strategy<Value = Names> {
    let place = || (any::<u8>(), 0..5u8);
    let create = (any::<u8>(), 0..5u8, kind(), mode(), 0..0o1000u32, 0..3u32).prop_map(
        |(dir, name, kind, mode, umask, owner)| Names::Create {
            dir,
            name,
            kind,
            mode,
            umask,
            owner,
        },
    );
    let link = (any::<u8>(), place());
    let link = link.prop_map(|(ino, (dir, name))| Names::Link { ino, dir, name });
    let rename = (place(), place(), rename_mode());
    let rename = rename.prop_map(|(from, to, mode)| Names::Rename { from, to, mode });
    let restore = (any::<u8>(), place());
    let restore = restore.prop_map(|(ino, (dir, name))| Names::Restore { ino, dir, name });
    let unlink = place().prop_map(|(dir, name)| Names::Unlink { dir, name });
    let rmdir = place().prop_map(|(dir, name)| Names::Rmdir { dir, name });
    let removal = prop_oneof![3 => unlink, 2 => rmdir, 5 => rename];
    let maybe_into_trash = (removal, any::<bool>()).prop_map(|(names, keeps)| {
        if keeps {
            Names::IntoTrash(Box::new(names))
        } else {
            names
        }
    });
    prop_oneof![
        8 => create,
        2 => link,
        10 => maybe_into_trash,
        2 => restore,
        1 => any::<(u8, u8)>().prop_map(|(ino, any)| Names::Drop { ino, any }),
        2 => any::<u8>().prop_map(|ino| Names::Reap { ino }),
        1 => any::<(u8, u8)>().prop_map(|(orphan, any)| Names::ReapAll { orphan, any }),
    ]
}

fn flags() -> impl Strategy<Value = u8> {
    prop_oneof![2 => Just(0), 1 => 0..16u8]
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let maybe = || prop::option::of(0..5u32);
    let set_attr = (
        any::<u8>(),
        prop::option::of(mode()),
        maybe(),
        maybe(),
        any::<Option<u8>>(),
    );
    let set_attr = set_attr.prop_map(|(ino, mode, uid, gid, time)| Attributes::SetAttr {
        ino,
        mode,
        uid,
        gid,
        time,
    });
    let set_xattr = (any::<u8>(), any::<u8>(), any::<u8>(), xattr_mode());
    let set_xattr = set_xattr.prop_map(|(ino, name, value, mode)| Attributes::SetXattr {
        ino,
        name,
        value,
        mode,
    });
    let remove = (any::<u8>(), any::<u8>());
    prop_oneof![
        3 => set_attr,
        3 => set_xattr,
        1 => remove.prop_map(|(ino, name)| Attributes::RemoveXattr { ino, name }),
        1 => any::<u8>().prop_map(|ino| Attributes::DropPrivileges { ino }),
        // Most flags are taken away again soon, so that most operations succeed.
        3 => (any::<u8>(), flags()).prop_map(|(ino, flags)| Attributes::SetFlags { ino, flags }),
    ]
}

fn content() -> impl Strategy<Value = Content> {
    let truncate = (any::<u8>(), size(), any::<bool>());
    let truncate = truncate.prop_map(|(file, size, drop_set_id)| Content::Truncate {
        file,
        size,
        drop_set_id,
    });
    let allocate = (any::<u8>(), size(), size(), allocate_mode());
    let allocate = allocate.prop_map(|(file, offset, length, mode)| Content::Allocate {
        file,
        offset,
        length,
        mode,
    });
    prop_oneof![truncate, allocate]
}

/// A metadata operation.
pub fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        5 => names().prop_map(Change::Names),
        2 => attributes().prop_map(Change::Attributes),
        1 => content().prop_map(Change::Content),
    ]
}

/// A write.
fn write() -> impl Strategy<Value = Step> {
    let write = (any::<u8>(), 0..20_000u16, 1..9_000u16, any::<u8>());
    write.prop_map(|(file, offset, length, fill)| Step::Write {
        file,
        offset,
        length,
        fill,
    })
}

/// Any step. About `restarts` of 100 steps restart the store.
pub fn step(restarts: u32) -> impl Strategy<Value = Step> {
    let restart = prop_oneof![1 => Just(Step::Restart), 2 => Just(Step::Kill)];
    prop_oneof![
        75 => change().prop_map(Step::Meta),
        20 => write(),
        4 => Just(Step::Checkpoint),
        1 => Just(Step::Garbage),
        restarts => restart,
    ]
}
