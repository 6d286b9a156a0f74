//! The two rights of a caller that the kernel leaves to the file system: to keep set-id bits on a file that
//! changes, and to see `trusted.*` attributes.
//!
//! The rule for set-id bits is that of Linux's own file systems (with `FUSE_HANDLE_KILLPRIV_V2` the file system
//! applies it): a change of content clears set-user-id. It clears set-group-id where the group may execute the
//! file, or where the caller is no member of the group. A caller with `CAP_FSETID` keeps both bits.
//!
//! For a write the kernel says whether the writer has `CAP_FSETID`. For other requests fuser 0.18 drops that
//! flag, so this module reads the caller's rights from `/proc`, and only when they matter: when the file has
//! such bits, or such attributes. The kernel itself removes capabilities of files (`security.capability`).

use std::fs;
use std::os::unix::fs::MetadataExt;

use fuser::Request;
use lockstep_driver::client::FileService;
use lockstep_types::mode::{GROUP_EXECUTE, SET_GROUP_ID, SET_ID, SET_USER_ID};
use lockstep_types::{Attr, Errno, Ino, MetaRequest, NodeKind};

/// Bit of `CAP_FSETID` in a capability set.
const CAP_FSETID: u64 = 1 << 4;

/// Bit of `CAP_SYS_ADMIN` in a capability set.
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// The process that has sent a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
}

/// The rights of a process, from `/proc`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rights {
    /// The user id for access to files.
    fs_uid: Option<u32>,
    /// Effective capabilities.
    capabilities: u64,
    /// Supplementary groups.
    groups: Vec<u32>,
}

impl Caller {
    /// The caller of `request`.
    pub fn of(request: &Request) -> Self {
        Self {
            uid: request.uid(),
            gid: request.gid(),
            pid: request.pid(),
        }
    }

    /// Whether this caller may see the names of `trusted.*` attributes.
    pub fn sees_trusted(self) -> bool {
        self.rights().has(CAP_SYS_ADMIN)
    }

    /// Returns the set-id bits that the file loses when this caller changes its content; zero if none.
    fn dropped(self, attr: &Attr) -> u32 {
        if !has_set_id(attr) || self.rights().has(CAP_FSETID) {
            return 0;
        }
        attr.mode & self.droppable(attr)
    }

    /// Returns the set-id bits that a caller without `CAP_FSETID` may not keep on the file.
    fn droppable(self, attr: &Attr) -> u32 {
        let keeps_group_bit = attr.mode & GROUP_EXECUTE == 0 && self.may_set_gid(attr);
        if keeps_group_bit { SET_USER_ID } else { SET_ID }
    }

    /// Returns the permission bits of a file after this caller has given it another owner; `None` if unchanged.
    pub fn mode_after_chown(self, attr: &Attr) -> Option<u32> {
        if !has_set_id(attr) {
            return None;
        }
        Some(attr.mode & !self.droppable(attr))
    }

    /// Whether this caller may put a set-group-id bit on the file: a member of the file's group, or privileged.
    pub fn may_set_gid(self, attr: &Attr) -> bool {
        if self.gid == attr.gid {
            return true;
        }
        let rights = self.rights();
        rights.has(CAP_FSETID) || rights.groups.contains(&attr.gid)
    }

    /// Returns the rights of the caller. Only its user id counts if `/proc` does not show the process (another PID
    /// namespace), or if the process acts for another user (a kernel thread with borrowed credentials).
    fn rights(self) -> Rights {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok();
        let rights = status.map(|status| Rights::parse(&status));
        match rights.filter(|rights| rights.fs_uid == Some(self.uid)) {
            Some(rights) if is_in_our_user_namespace(self.pid) => rights,
            // Capabilities in another user namespace do not count in this one.
            Some(rights) => Rights {
                capabilities: 0,
                ..rights
            },
            None => Rights::of_user(self.uid),
        }
    }
}

/// Whether a process is in the user namespace of this process. Only there do its capabilities count.
fn is_in_our_user_namespace(pid: u32) -> bool {
    let namespace = |process: &str| {
        let metadata = fs::metadata(format!("/proc/{process}/ns/user"));
        metadata.map(|metadata| (metadata.dev(), metadata.ino()))
    };
    match (namespace(&pid.to_string()), namespace("self")) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => false,
    }
}

impl Rights {
    fn parse(status: &str) -> Self {
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let effective = field("CapEff:").and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        // The fields are: real, effective, saved, file system.
        let uids = field("Uid:").unwrap_or_default().split_whitespace();
        let groups = field("Groups:").unwrap_or_default().split_whitespace();
        Self {
            fs_uid: uids.last().and_then(|uid| uid.parse().ok()),
            capabilities: effective.unwrap_or_default(),
            groups: groups.filter_map(|group| group.parse().ok()).collect(),
        }
    }

    /// The rights that follow from the user id alone.
    fn of_user(uid: u32) -> Self {
        Self {
            fs_uid: Some(uid),
            capabilities: if uid == 0 { u64::MAX } else { 0 },
            groups: Vec::new(),
        }
    }

    fn has(&self, capability: u64) -> bool {
        self.capabilities & capability != 0
    }
}

/// Whether a file has set-id bits. On directories these bits have another meaning.
pub(crate) fn has_set_id(attr: &Attr) -> bool {
    attr.kind != NodeKind::Directory && attr.mode & SET_ID != 0
}

/// Returns the changes that must precede a change of the content of `ino` by `caller`; usually none.
pub(crate) fn drop_before(
    service: &dyn FileService,
    caller: Caller,
    ino: Ino,
) -> Result<Vec<MetaRequest>, Errno> {
    let attr = service.getattr(ino)?;
    let dropped = caller.dropped(&attr);
    let drop = (dropped != 0).then_some(MetaRequest::DropPrivileges { ino });
    Ok(clear_plain_set_gid(&attr, dropped)
        .into_iter()
        .chain(drop)
        .collect())
}

/// Returns the change that must precede a write whose writer lacks `CAP_FSETID` according to the kernel.
/// [`lockstep_driver::client::WriteOptions::drop_set_id`] clears the bits that every such writer loses.
pub(crate) fn before_write(caller: Caller, attr: &Attr) -> Option<MetaRequest> {
    clear_plain_set_gid(
        attr,
        if is_plain_set_gid(attr) {
            caller.droppable(attr)
        } else {
            0
        },
    )
}

/// Clears set-group-id of a file that the group may not execute. [`MetaRequest::DropPrivileges`] and
/// [`MetaRequest::Truncate`] leave that bit: both nodes apply them alike, and only this node knows the caller.
fn clear_plain_set_gid(attr: &Attr, dropped: u32) -> Option<MetaRequest> {
    let clears = is_plain_set_gid(attr) && dropped & SET_GROUP_ID != 0;
    clears.then_some(MetaRequest::SetAttr {
        ino: attr.ino,
        mode: Some(attr.mode & !SET_GROUP_ID),
        uid: None,
        gid: None,
        atime: None,
        mtime: None,
    })
}

fn is_plain_set_gid(attr: &Attr) -> bool {
    has_set_id(attr) && attr.mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID
}

/// Returns the operations that truncate a file to `size` for `caller`.
pub(crate) fn truncation(caller: Caller, attr: &Attr, size: u64) -> Vec<MetaRequest> {
    let dropped = caller.dropped(attr);
    let truncate = MetaRequest::Truncate {
        ino: attr.ino,
        size,
        drop_set_id: dropped != 0,
    };
    let set_gid = clear_plain_set_gid(attr, dropped);
    set_gid.into_iter().chain([truncate]).collect()
}

/// Returns the permission bits of a file after `caller` has given it an access ACL; `None` if unchanged.
pub(crate) fn mode_after_acl(caller: Caller, attr: &Attr) -> Option<u32> {
    let drops = attr.mode & SET_GROUP_ID != 0 && !caller.may_set_gid(attr);
    drops.then_some(attr.mode & !SET_GROUP_ID)
}

#[cfg(test)]
mod tests {
    use lockstep_types::NodeKind;

    use super::*;

    fn file(mode: u32) -> Attr {
        Attr {
            mode,
            uid: 1,
            gid: 2,
            ..Attr::plain(Ino::ROOT.next(), NodeKind::File)
        }
    }

    /// Process number zero has no entry in `/proc`, so only user and group count.
    fn caller(uid: u32, gid: u32) -> Caller {
        Caller { uid, gid, pid: 0 }
    }

    #[test]
    fn reads_rights() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGroups:\t4 24 \nCapEff:\t0000000000000010\n";
        let rights = Rights::parse(status);
        assert!(rights.has(CAP_FSETID) && !rights.has(CAP_SYS_ADMIN));
        assert_eq!((rights.fs_uid, &rights.groups[..]), (Some(4), &[4, 24][..]));
        assert_eq!(Rights::parse(""), Rights::default());
    }

    #[test]
    fn a_new_owner_clears_the_set_id_bits() {
        assert_eq!(caller(1, 2).mode_after_chown(&file(0o755)), None);
        assert_eq!(caller(0, 0).mode_after_chown(&file(0o6755)), Some(0o755));
        // Without group execute the bit means mandatory locking, and members of the group may keep it.
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
        assert_eq!(caller(1, 3).dropped(&directory), 0);
    }

    #[test]
    fn a_change_of_content_clears_the_bits_unless_root() {
        assert_eq!(caller(1, 2).dropped(&file(0o4755)), SET_USER_ID);
        assert_eq!(caller(0, 0).dropped(&file(0o4755)), 0);
        // Without group execute a member of the group keeps set-group-id.
        assert_eq!(caller(1, 2).dropped(&file(0o2666)), 0);
        assert_eq!(caller(1, 3).dropped(&file(0o2666)), SET_GROUP_ID);
        assert_eq!(caller(1, 2).dropped(&file(0o6676)), SET_ID);
    }
}
