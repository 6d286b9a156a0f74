//! Who may keep set-id bits on a file that changes.
//!
//! The kernel leaves these rules to the file system (`FUSE_HANDLE_KILLPRIV_V2`) and says, for a
//! write, whether the writer may keep them. For the other changes fuser 0.18 does not pass on what
//! the kernel says, so the caller's rights are read from `/proc`, and only when the file has such
//! bits at all. Capabilities of files (`security.capability`) the kernel removes by itself.

use std::fs;

use fuser::Request;
use lockstep_types::{Attr, Errno, Ino, MetaRequest, NodeKind};

use crate::client::FileService;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// Bit of `CAP_FSETID` in a capability set.
const CAP_FSETID: u64 = 1 << 4;

/// The process that asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
}

/// What `/proc` says about it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rights {
    keeps_set_id: bool,
    groups: Vec<u32>,
}

impl Caller {
    /// Who sent `request`.
    pub fn of(request: &Request) -> Self {
        Self {
            uid: request.uid(),
            gid: request.gid(),
            pid: request.pid(),
        }
    }

    /// Whether it is root.
    pub fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Whether it must lose the set-id bits that `attr` has, by changing the content.
    pub fn drops_set_id(self, attr: &Attr) -> bool {
        has_set_id(attr) && !self.rights().keeps_set_id
    }

    /// Permission bits of a file after this caller gave it another owner; `None` if unchanged.
    pub fn mode_after_chown(self, attr: &Attr) -> Option<u32> {
        if !has_set_id(attr) {
            return None;
        }
        let keeps_group_bit = attr.mode & GROUP_EXECUTE == 0 && self.may_set_gid(attr);
        let dropped = if keeps_group_bit {
            SET_UID
        } else {
            SET_UID | SET_GID
        };
        Some(attr.mode & !dropped)
    }

    /// Whether it may have a set-group-id bit on the file: a member of its group, or privileged.
    pub fn may_set_gid(self, attr: &Attr) -> bool {
        let rights = self.rights();
        rights.keeps_set_id || self.gid == attr.gid || rights.groups.contains(&attr.gid)
    }

    /// A process that cannot be looked at (another PID namespace) is judged by its user alone.
    fn rights(self) -> Rights {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid));
        status.map_or_else(
            |_| Rights {
                keeps_set_id: self.is_root(),
                groups: Vec::new(),
            },
            |status| Rights::parse(&status),
        )
    }
}

impl Rights {
    fn parse(status: &str) -> Self {
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let effective = field("CapEff:").and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        let groups = field("Groups:").unwrap_or_default().split_whitespace();
        Self {
            keeps_set_id: effective.is_some_and(|set| set & CAP_FSETID != 0),
            groups: groups.filter_map(|group| group.parse().ok()).collect(),
        }
    }
}

/// Whether a file has set-id bits that count; on directories they mean something else.
pub(super) fn has_set_id(attr: &Attr) -> bool {
    attr.kind != NodeKind::Directory && attr.mode & (SET_UID | SET_GID) != 0
}

/// The change that must come before `caller` changes the content of `ino`, if any must.
pub(super) fn drop_before(
    service: &dyn FileService,
    caller: Caller,
    ino: Ino,
) -> Result<Option<MetaRequest>, Errno> {
    let drops = caller.drops_set_id(&service.getattr(ino)?);
    Ok(drops.then_some(MetaRequest::DropPrivileges { ino }))
}

/// Permission bits of a file after `caller` gave it an access ACL; `None` if unchanged.
pub(super) fn mode_after_acl(caller: Caller, attr: &Attr) -> Option<u32> {
    let drops = attr.mode & SET_GID != 0 && !caller.may_set_gid(attr);
    drops.then_some(attr.mode & !SET_GID)
}

#[cfg(test)]
mod tests {
    use lockstep_types::Timestamp;

    use super::*;

    fn file(mode: u32) -> Attr {
        Attr {
            ino: Ino::ROOT.next(),
            kind: NodeKind::File,
            mode,
            uid: 1,
            gid: 2,
            nlink: 1,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
        }
    }

    /// Process number zero has no entry in `/proc`: judged by user and group alone.
    fn caller(uid: u32, gid: u32) -> Caller {
        Caller { uid, gid, pid: 0 }
    }

    #[test]
    fn reads_rights() {
        let status = "Name:\tx\nGroups:\t4 24 \nCapEff:\t0000000000000010\n";
        let rights = Rights::parse(status);
        assert!(rights.keeps_set_id);
        assert_eq!(rights.groups, [4, 24]);
        assert_eq!(Rights::parse(""), Rights::default());
    }

    #[test]
    fn a_new_owner_costs_the_set_id_bits() {
        assert_eq!(caller(1, 2).mode_after_chown(&file(0o755)), None);
        assert_eq!(caller(0, 0).mode_after_chown(&file(0o6755)), Some(0o755));
        // without group execute the bit means mandatory locking, and members may keep it
        assert_eq!(caller(1, 2).mode_after_chown(&file(0o6744)), Some(0o2744));
        assert_eq!(caller(1, 3).mode_after_chown(&file(0o6744)), Some(0o744));
    }

    #[test]
    fn a_directory_keeps_its_bits() {
        let directory = Attr {
            kind: NodeKind::Directory,
            ..file(0o2755)
        };
        assert_eq!(caller(1, 3).mode_after_chown(&directory), None);
        assert!(!caller(1, 3).drops_set_id(&directory));
    }

    #[test]
    fn changing_content_costs_the_bits_unless_root() {
        assert!(caller(1, 2).drops_set_id(&file(0o4755)));
        assert!(!caller(0, 0).drops_set_id(&file(0o4755)));
    }
}
