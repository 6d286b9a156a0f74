//! Metadata operations that no client would ask for: well formed, with numbers, names and sizes at the edges of their types.

use lockstep_testbed::chance::Chance;
use lockstep_types::{
    AllocateMode, FileName, Ino, MetaOp, MetaRequest, NodeKind, RenameMode, XattrMode,
};

use crate::bytes::{number, random};
use crate::messages::{INOS, PeerState, ino, maybe, osn, small, time};

pub fn op(chance: &mut Chance, known: &PeerState) -> MetaOp {
    MetaOp {
        osn: if chance.percent(known.wildness) {
            osn(chance, known)
        } else {
            known.last.next()
        },
        time: time(chance),
        request: meta(chance),
    }
}

fn meta(chance: &mut Chance) -> MetaRequest {
    let target = if chance.percent(40) {
        Ino::new(chance.within(INOS..2 * INOS)).unwrap()
    } else {
        ino(chance)
    };
    let parent = if chance.percent(70) {
        Ino::ROOT
    } else {
        ino(chance)
    };
    match chance.within(0..17) {
        0..4 => creation(chance, parent, target),
        which @ 4..8 => of_names(chance, which, parent, target),
        which @ 8..12 => of_files(chance, which, target),
        which => of_attributes(chance, which, target),
    }
}

fn creation(chance: &mut Chance, parent: Ino, target: Ino) -> MetaRequest {
    MetaRequest::Create {
        parent,
        name: name(chance),
        ino: target,
        kind: *chance.pick(&[
            NodeKind::File,
            NodeKind::File,
            NodeKind::Directory,
            NodeKind::Symlink,
            NodeKind::Fifo,
            NodeKind::Socket,
            NodeKind::CharDevice,
            NodeKind::BlockDevice,
        ]),
        mode: small(chance),
        umask: small(chance),
        uid: small(chance),
        gid: small(chance),
        rdev: small(chance),
        target: random(chance, 10_000),
    }
}

fn of_names(chance: &mut Chance, which: u64, parent: Ino, target: Ino) -> MetaRequest {
    match which {
        4 => MetaRequest::Link {
            ino: target,
            parent,
            name: name(chance),
        },
        5 => MetaRequest::Unlink {
            parent,
            name: name(chance),
        },
        6 => MetaRequest::Rmdir {
            parent,
            name: name(chance),
        },
        _ => MetaRequest::Rename {
            parent,
            name: name(chance),
            new_parent: ino(chance),
            new_name: name(chance),
            mode: *chance.pick(&[
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
                RenameMode::Whiteout {
                    ino: target,
                    uid: 0,
                    gid: 0,
                },
            ]),
        },
    }
}

fn of_files(chance: &mut Chance, which: u64, target: Ino) -> MetaRequest {
    match which {
        8 => MetaRequest::SetAttr {
            ino: target,
            mode: maybe(chance, small),
            uid: maybe(chance, small),
            gid: maybe(chance, small),
            atime: maybe(chance, time),
            mtime: maybe(chance, time),
        },
        9 => MetaRequest::Truncate {
            ino: target,
            size: number(chance),
            drop_set_id: chance.percent(50),
        },
        _ => MetaRequest::Allocate {
            ino: target,
            offset: number(chance),
            length: length(chance),
            mode: *chance.pick(&[
                AllocateMode::Allocate,
                AllocateMode::AllocateKeepSize,
                AllocateMode::PunchHole,
                AllocateMode::ZeroRange,
                AllocateMode::ZeroRangeKeepSize,
            ]),
        },
    }
}

fn of_attributes(chance: &mut Chance, which: u64, target: Ino) -> MetaRequest {
    match which {
        12 => MetaRequest::DropPrivileges { ino: target },
        13 => MetaRequest::SetXattr {
            ino: target,
            name: xattr(chance),
            value: random(chance, 70_000),
            mode: *chance.pick(&[XattrMode::Any, XattrMode::Create, XattrMode::Replace]),
        },
        14 => MetaRequest::RemoveXattr {
            ino: target,
            name: xattr(chance),
        },
        15 => MetaRequest::ReapAll {
            inos: vec![target; usize::from(target.get().is_multiple_of(2)) * 200 + 1],
        },
        _ => MetaRequest::Reap { ino: target },
    }
}

/// A length that fills no disk, or one that no file can have.
fn length(chance: &mut Chance) -> u64 {
    match number(chance) {
        fills if (1 << 24..1 << 44).contains(&fills) => fills % (1 << 24),
        other => other,
    }
}

fn xattr(chance: &mut Chance) -> Vec<u8> {
    let names: [&[u8]; 5] = [
        b"user.a",
        b"user.b",
        b"system.posix_acl_access",
        b"system.posix_acl_default",
        b"security.capability",
    ];
    if chance.percent(90) {
        chance.pick(&names).to_vec()
    } else {
        random(chance, 300)
    }
}

/// There are few names, so that operations meet the same names.
fn name(chance: &mut Chance) -> FileName {
    if chance.percent(10) {
        let bytes = random(chance, 255);
        if let Ok(name) = FileName::new(&bytes[..bytes.len().min(255)]) {
            return name;
        }
    }
    FileName::new(format!("f{}", chance.within(0..12)).as_bytes()).unwrap()
}
