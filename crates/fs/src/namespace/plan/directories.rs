//! Operations on names: making, linking, removing and moving them, and freeing inodes without a name.

use lockstep_types::mode::{MODE_BITS, SET_GROUP_ID};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, FileName, Ino, InodeFlags, MetaRequest, NodeKind, RenameMode, limits};

use super::draft::PlanDraft;
use super::flags;
use crate::error::OpError;
use crate::namespace::acl::{self, Acl};
use crate::namespace::keys;
use crate::namespace::record::{Body, EntryPlace, EntryRecord, FIRST_COOKIE, Inode, ModeAndFlags};

/// Deeper nesting than any path can name; stops a walk up a damaged tree.
const DEPTH_MAX: usize = 1 << 20;

/// Makes a node of any kind.
pub(super) fn create(draft: &mut PlanDraft<'_>, request: &MetaRequest) -> Result<(), OpError> {
    let MetaRequest::Create {
        parent,
        name,
        ino,
        kind,
        ..
    } = request
    else {
        return Err(Errno::Invalid.into());
    };
    check_new_entry(draft, *parent, name, *kind)?;
    let inode = new_inode(draft, request)?;
    draft.add_inode(*ino, inode)?;
    add_entry(draft, *parent, name, *ino, *kind)?;
    inherit(draft, request)?;
    draft.answer(*ino)
}

/// Checks that a name can be added: its parent is a directory, has a name itself, and has no such entry.
pub(super) fn check_new_entry(
    draft: &mut PlanDraft<'_>,
    parent: Ino,
    name: &FileName,
    kind: NodeKind,
) -> Result<(), OpError> {
    let directory = draft.inode(parent)?;
    if !directory.is_directory() {
        return Err(Errno::NotDirectory.into());
    }
    if directory.nlink == 0 {
        return Err(Errno::NoEntry.into());
    }
    if kind == NodeKind::Directory && directory.nlink >= limits::LINKS_MAX {
        return Err(Errno::TooManyLinks.into());
    }
    match draft.entry(parent, name)? {
        Some(_) => Err(Errno::Exists.into()),
        None => flags::check(draft, parent, InodeFlags::IMMUTABLE),
    }
}

fn new_inode(draft: &mut PlanDraft<'_>, request: &MetaRequest) -> Result<Inode, OpError> {
    let MetaRequest::Create {
        parent,
        kind,
        mode,
        uid,
        gid,
        rdev,
        target,
        ..
    } = request
    else {
        return Err(Errno::Invalid.into());
    };
    let (above, above_gid) = {
        let above = draft.inode(*parent)?;
        (above.bits, above.gid)
    };
    let inherits_group = above.mode & SET_GROUP_ID != 0;
    let is_directory = *kind == NodeKind::Directory;
    let mut mode = mode & MODE_BITS;
    if inherits_group && is_directory {
        mode |= SET_GROUP_ID;
    }
    let time = draft.time();
    let flags = above.flags.intersection(InodeFlags::INHERITED);
    Ok(Inode {
        bits: ModeAndFlags { mode, flags },
        uid: *uid,
        gid: if inherits_group { above_gid } else { *gid },
        nlink: if is_directory { 2 } else { 1 },
        atime: time,
        mtime: time,
        ctime: time,
        osn: draft.osn(),
        body: new_body(*kind, *parent, *rdev, target)?,
        named_at: None,
    })
}

/// Applies the parent's default ACL to the new inode, or else the umask.
fn inherit(draft: &mut PlanDraft<'_>, request: &MetaRequest) -> Result<(), OpError> {
    let MetaRequest::Create {
        parent,
        ino,
        kind,
        umask,
        ..
    } = request
    else {
        return Err(Errno::Invalid.into());
    };
    if *kind == NodeKind::Symlink {
        draft.inode_mut(*ino)?.bits.mode = 0o777;
        return Ok(());
    }
    let default = draft.get(&keys::xattr(*parent, acl::DEFAULT))?;
    let parsed = default.as_deref().map(Acl::parse).transpose()?.flatten();
    let Some(mut list) = parsed else {
        draft.inode_mut(*ino)?.bits.mode &= !(umask & 0o777);
        return Ok(());
    };
    let access = &mut draft.inode_mut(*ino)?.bits;
    access.mode = access.mode & 0o7000 | list.inherit(access.mode);
    if !list.is_only_mode() {
        draft.put(keys::xattr(*ino, acl::ACCESS), Some(list.to_bytes()));
    }
    if *kind == NodeKind::Directory {
        draft.put(keys::xattr(*ino, acl::DEFAULT), default);
    }
    Ok(())
}

/// Adds a name that can be added.
pub(super) fn add_entry(
    draft: &mut PlanDraft<'_>,
    parent: Ino,
    name: &FileName,
    ino: Ino,
    kind: NodeKind,
) -> Result<(), OpError> {
    let cookie = draft
        .directory_mut(parent)?
        .add(kind == NodeKind::Directory);
    draft.put_entry(parent, name, EntryRecord { ino, kind, cookie });
    note_place(draft, ino, parent, cookie)
}

/// Notes the place of the newest name on its inode.
fn note_place(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    directory: Ino,
    cookie: u64,
) -> Result<(), OpError> {
    draft.inode_mut(ino)?.named_at = Some(EntryPlace { directory, cookie });
    Ok(())
}

/// Gives an inode another name.
pub(super) fn link(
    draft: &mut PlanDraft<'_>,
    ino: Ino,
    parent: Ino,
    name: &FileName,
) -> Result<(), OpError> {
    let inode = draft.inode(ino)?;
    let kind = inode.kind();
    match inode.nlink {
        _ if kind == NodeKind::Directory => return Err(Errno::NotPermitted.into()),
        0 => return Err(Errno::NoEntry.into()),
        limits::LINKS_MAX.. => return Err(Errno::TooManyLinks.into()),
        _ => {}
    }
    check_new_entry(draft, parent, name, kind)?;
    flags::check(draft, ino, InodeFlags::RESTRICTING)?;
    add_entry(draft, parent, name, ino, kind)?;
    draft.touch(ino)?.nlink += 1;
    draft.answer(ino)
}

fn existing(
    draft: &mut PlanDraft<'_>,
    parent: Ino,
    name: &FileName,
) -> Result<EntryRecord, OpError> {
    if !draft.inode(parent)?.is_directory() {
        return Err(Errno::NotDirectory.into());
    }
    Ok(draft.entry(parent, name)?.ok_or(Errno::NoEntry)?)
}

/// Removes the name of anything but a directory.
pub(super) fn unlink(
    draft: &mut PlanDraft<'_>,
    parent: Ino,
    name: &FileName,
) -> Result<(), OpError> {
    let entry = existing(draft, parent, name)?;
    if entry.kind == NodeKind::Directory {
        return Err(Errno::IsDirectory.into());
    }
    flags::check_removal(draft, parent, entry)?;
    draft.delete_entry(parent, name, entry);
    draft.directory_mut(parent)?.remove(false);
    drop_name(draft, entry.ino, (parent, name))
}

/// Takes the name at `place` from an inode. A directory has no other one.
fn drop_name(draft: &mut PlanDraft<'_>, ino: Ino, place: (Ino, &FileName)) -> Result<(), OpError> {
    let inode = draft.touch(ino)?;
    inode.nlink = if inode.is_directory() {
        0
    } else {
        inode.nlink.saturating_sub(1)
    };
    if inode.nlink == 0 {
        draft.lost_last_name(ino, place)?;
    }
    Ok(())
}

/// Removes an empty directory.
pub(super) fn rmdir(
    draft: &mut PlanDraft<'_>,
    parent: Ino,
    name: &FileName,
) -> Result<(), OpError> {
    let entry = existing(draft, parent, name)?;
    if entry.kind != NodeKind::Directory {
        return Err(Errno::NotDirectory.into());
    }
    flags::check_removal(draft, parent, entry)?;
    check_empty(draft, entry.ino)?;
    draft.delete_entry(parent, name, entry);
    draft.directory_mut(parent)?.remove(true);
    drop_name(draft, entry.ino, (parent, name))
}

fn check_empty(draft: &mut PlanDraft<'_>, directory: Ino) -> Result<(), OpError> {
    match draft.inode(directory)?.body {
        Body::Directory { entries: 0, .. } => Ok(()),
        Body::Directory { .. } => Err(Errno::NotEmpty.into()),
        _ => Err(Errno::NotDirectory.into()),
    }
}

/// Moves a name, or swaps two names.
pub(super) fn rename(
    draft: &mut PlanDraft<'_>,
    from: (Ino, &FileName),
    to: (Ino, &FileName),
    mode: RenameMode,
) -> Result<(), OpError> {
    let moved = existing(draft, from.0, from.1)?;
    let target = {
        let directory = draft.inode(to.0)?;
        if !directory.is_directory() {
            return Err(Errno::NotDirectory.into());
        }
        if directory.nlink == 0 {
            return Err(Errno::NoEntry.into());
        }
        draft.entry(to.0, to.1)?
    };
    check_no_loop(draft, moved, to.0)?;
    if matches!(mode, RenameMode::Whiteout { .. }) && is_whiteout(draft, moved.ino)? {
        return Err(Errno::Exists.into());
    }
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists.into()),
        (RenameMode::Exchange, None) => return Err(Errno::NoEntry.into()),
        (_, Some(target)) if target.ino == moved.ino => return Ok(()),
        _ => flags::check_rename(draft, (from.0, moved), (to.0, target))?,
    }
    match (mode, target) {
        (RenameMode::Exchange, Some(target)) => exchange(draft, (from, moved), (to, target)),
        (_, Some(target)) => replace(draft, (from, moved), (to, target)),
        (_, None) => move_entry(draft, (from, moved), to),
    }?;
    match mode {
        RenameMode::Whiteout { ino, uid, gid } => create(draft, &whiteout(from, ino, (uid, gid))),
        _ => Ok(()),
    }
}

fn is_whiteout(draft: &mut PlanDraft<'_>, ino: Ino) -> Result<bool, OpError> {
    Ok(matches!(
        draft.inode(ino)?.body,
        Body::CharDevice { rdev: 0 }
    ))
}

/// The creation of a whiteout.
fn whiteout(at: (Ino, &FileName), ino: Ino, (uid, gid): (u32, u32)) -> MetaRequest {
    MetaRequest::creation(at.0, at.1.clone(), ino, NodeKind::CharDevice)
        .mode(0)
        .owner(uid, gid)
        .request()
}

/// Refuses to move a directory below itself.
fn check_no_loop(
    draft: &mut PlanDraft<'_>,
    moved: EntryRecord,
    new_parent: Ino,
) -> Result<(), OpError> {
    if moved.kind != NodeKind::Directory {
        return Ok(());
    }
    let mut at = new_parent;
    for _ in 0..DEPTH_MAX {
        if at == moved.ino {
            return Err(Errno::Invalid.into());
        }
        match draft.inode(at)?.body {
            Body::Directory { parent, .. } if parent != at => at = parent,
            _ => return Ok(()),
        }
    }
    Err(Errno::Invalid.into())
}

fn move_entry(
    draft: &mut PlanDraft<'_>,
    (from, moved): ((Ino, &FileName), EntryRecord),
    to: (Ino, &FileName),
) -> Result<(), OpError> {
    let is_directory = moved.kind == NodeKind::Directory;
    if is_directory && from.0 != to.0 && draft.inode(to.0)?.nlink >= limits::LINKS_MAX {
        return Err(Errno::TooManyLinks.into());
    }
    draft.delete_entry(from.0, from.1, moved);
    draft.directory_mut(from.0)?.remove(is_directory);
    add_entry(draft, to.0, to.1, moved.ino, moved.kind)?;
    note_moved(draft, moved, to.0)
}

/// Notes on an inode that it was moved.
fn note_moved(
    draft: &mut PlanDraft<'_>,
    entry: EntryRecord,
    new_parent: Ino,
) -> Result<(), OpError> {
    let inode = draft.touch(entry.ino)?;
    if let Body::Directory { parent, .. } = &mut inode.body {
        *parent = new_parent;
    }
    Ok(())
}

fn replace(
    draft: &mut PlanDraft<'_>,
    (from, moved): ((Ino, &FileName), EntryRecord),
    (to, target): ((Ino, &FileName), EntryRecord),
) -> Result<(), OpError> {
    let is_directory = moved.kind == NodeKind::Directory;
    match (is_directory, target.kind == NodeKind::Directory) {
        (true, true) => check_empty(draft, target.ino)?,
        (true, false) => return Err(Errno::NotDirectory.into()),
        (false, true) => return Err(Errno::IsDirectory.into()),
        (false, false) => {}
    }
    draft.delete_entry(from.0, from.1, moved);
    draft.directory_mut(from.0)?.remove(is_directory);
    // The name keeps its place in readdir order; a directory replaces a directory, so the
    // count of links of the new parent stays.
    draft.directory_mut(to.0)?;
    let cookie = target.cookie;
    draft.put_entry(to.0, to.1, EntryRecord { cookie, ..moved });
    note_moved(draft, moved, to.0)?;
    note_place(draft, moved.ino, to.0, cookie)?;
    drop_name(draft, target.ino, to)
}

fn exchange(
    draft: &mut PlanDraft<'_>,
    (from, moved): ((Ino, &FileName), EntryRecord),
    (to, target): ((Ino, &FileName), EntryRecord),
) -> Result<(), OpError> {
    check_no_loop(draft, target, from.0)?;
    let (moved_dir, target_dir) = (
        u32::from(moved.kind == NodeKind::Directory),
        u32::from(target.kind == NodeKind::Directory),
    );
    let above = draft.directory_mut(from.0)?;
    *above.nlink = *above.nlink + target_dir - moved_dir;
    let above = draft.directory_mut(to.0)?;
    *above.nlink = *above.nlink + moved_dir - target_dir;
    let (here, there) = (moved.cookie, target.cookie);
    draft.put_entry(
        from.0,
        from.1,
        EntryRecord {
            cookie: here,
            ..target
        },
    );
    draft.put_entry(
        to.0,
        to.1,
        EntryRecord {
            cookie: there,
            ..moved
        },
    );
    note_moved(draft, moved, to.0)?;
    note_place(draft, moved.ino, to.0, there)?;
    note_moved(draft, target, from.0)?;
    note_place(draft, target.ino, from.0, here)
}

/// Frees an inode without a name that is not in the trash.
pub(super) fn reap(draft: &mut PlanDraft<'_>, ino: Ino) -> Result<(), OpError> {
    let inode = draft.inode(ino)?;
    let kind = inode.kind();
    if inode.nlink != 0 || inode.is_in_trash() && !is_active(Mutant::ReapFromTrash) {
        return Err(Errno::Busy.into());
    }
    for key in draft.stored_keys(&keys::of_ino(keys::XATTRS, ino))? {
        draft.put(key, None);
    }
    draft.put(keys::orphan(ino), None);
    if kind == NodeKind::File {
        draft.put(keys::garbage(ino), Some(Vec::new()));
    }
    draft.drop_inode(ino)
}

/// Frees the inodes without a name among `inos`. The others stay: one of them may be gone already.
pub(super) fn reap_all(draft: &mut PlanDraft<'_>, inos: &[Ino]) -> Result<(), OpError> {
    for ino in inos {
        match reap(draft, *ino) {
            Ok(()) | Err(OpError::Refused(Errno::Stale | Errno::Busy)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn new_body(kind: NodeKind, parent: Ino, rdev: u32, target: &[u8]) -> Result<Body, OpError> {
    Ok(match kind {
        NodeKind::File => Body::File { size: 0 },
        NodeKind::Directory => Body::Directory {
            parent,
            next_cookie: FIRST_COOKIE,
            entries: 0,
        },
        NodeKind::Symlink => match target.len() {
            0 => return Err(Errno::NoEntry.into()),
            1..=limits::SYMLINK_BYTES_MAX => Body::Symlink {
                target: target.to_vec(),
            },
            _ => return Err(Errno::NameTooLong.into()),
        },
        NodeKind::Fifo => Body::Fifo,
        NodeKind::Socket => Body::Socket,
        NodeKind::CharDevice => Body::CharDevice { rdev },
        NodeKind::BlockDevice => Body::BlockDevice { rdev },
    })
}
