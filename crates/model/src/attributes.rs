//! Changes of attributes and of content.

use lockstep_types::limits::FILE_BYTES_MAX;
use lockstep_types::xattr::{ACCESS_ACL, DEFAULT_ACL};
use lockstep_types::{AllocateMode, Errno, Ino, MetaRequest, NodeKind, Timestamp, XattrMode};

use crate::{Acl, Body, Content, Done, Model};

impl Model {
    /// Writes bytes. The client's privileges are not considered: see [`MetaRequest::DropPrivileges`].
    pub fn write(&mut self, time: Timestamp, ino: Ino, offset: u64, data: &[u8]) -> Done {
        end_of(offset, data.len() as u64)?;
        if offset < self.content(ino)?.size() {
            self.check_unrestricted(ino)?;
        }
        self.check_mutable(ino)?;
        self.now = time;
        self.content_mut(ino).write(offset, data);
        self.content_changed(ino);
        Ok(())
    }

    /// Replaces the content of a file, as a loss of power may do. No time changes.
    pub fn set_content(&mut self, ino: Ino, bytes: &[u8]) -> Done {
        self.content(ino)?;
        *self.content_mut(ino) = Content::of(bytes);
        Ok(())
    }

    pub(crate) fn change_attributes(&mut self, request: &MetaRequest) -> Done<Ino> {
        match request {
            MetaRequest::SetAttr {
                ino,
                mode,
                uid,
                gid,
                atime,
                mtime,
            } => {
                self.set_attr(*ino, *mode, (*uid, *gid), (*atime, *mtime))?;
                Ok(*ino)
            }
            MetaRequest::Truncate {
                ino,
                size,
                drop_set_id,
            } => self.truncate(*ino, *size, *drop_set_id).map(|()| *ino),
            MetaRequest::Allocate {
                ino,
                offset,
                length,
                mode,
            } => self.allocate(*ino, *offset, *length, *mode).map(|()| *ino),
            MetaRequest::DropPrivileges { ino } => {
                self.check_mutable(*ino)?;
                self.node_mut(*ino).drop_set_id();
                self.node_mut(*ino).drop_capabilities();
                self.changed(*ino);
                Ok(*ino)
            }
            MetaRequest::SetXattr {
                ino,
                name,
                value,
                mode,
            } => self.set_xattr(*ino, name, value, *mode).map(|()| *ino),
            MetaRequest::RemoveXattr { ino, name } => {
                self.check_unrestricted(*ino)?;
                let removed = self.node_mut(*ino).xattrs.remove(name);
                removed.ok_or(Errno::NoData)?;
                self.changed(*ino);
                Ok(*ino)
            }
            MetaRequest::SetFlags { ino, flags } => {
                if !matches!(self.node(*ino)?.kind, NodeKind::File | NodeKind::Directory) {
                    return Err(Errno::NotSupported);
                }
                self.node_mut(*ino).flags = *flags;
                self.changed(*ino);
                Ok(*ino)
            }
            _ => unreachable!("the other operations change names"),
        }
    }

    fn set_attr(
        &mut self,
        ino: Ino,
        mode: Option<u32>,
        (uid, gid): (Option<u32>, Option<u32>),
        (atime, mtime): (Option<Timestamp>, Option<Timestamp>),
    ) -> Done {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            self.check_unrestricted(ino)?;
        }
        self.check_mutable(ino)?;
        let kind = self.node(ino)?.kind;
        if mode.is_some() && kind == NodeKind::Symlink {
            return Err(Errno::NotSupported);
        }
        let node = self.node_mut(ino);
        if (uid.is_some() || gid.is_some()) && kind != NodeKind::Directory {
            node.drop_set_id();
            node.drop_capabilities();
        }
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        node.atime = atime.unwrap_or(node.atime);
        node.mtime = mtime.unwrap_or(node.mtime);
        if let Some(mode) = mode {
            node.chmod(mode);
        }
        self.changed(ino);
        Ok(())
    }

    fn truncate(&mut self, ino: Ino, size: u64, drop_set_id: bool) -> Done {
        end_of(0, size)?;
        self.content(ino)?;
        self.check_unrestricted(ino)?;
        if drop_set_id {
            self.node_mut(ino).drop_set_id();
        }
        self.node_mut(ino).drop_capabilities();
        self.content_mut(ino).set_size(size);
        self.content_changed(ino);
        Ok(())
    }

    fn allocate(&mut self, ino: Ino, offset: u64, length: u64, mode: AllocateMode) -> Done {
        use AllocateMode::{Allocate, AllocateKeepSize, PunchHole, ZeroRange};
        let end = offset.checked_add(length).ok_or(Errno::TooBig)?;
        if length == 0 {
            return Err(Errno::Invalid);
        }
        end_of(offset, length)?;
        self.content(ino)?;
        if !matches!(mode, Allocate | AllocateKeepSize) {
            self.check_unrestricted(ino)?;
        }
        self.check_mutable(ino)?;
        self.node_mut(ino).drop_capabilities();
        let content = self.content_mut(ino);
        if !matches!(mode, Allocate | AllocateKeepSize) {
            content.punch(offset, length);
        }
        if mode != PunchHole {
            content.allocate(offset, length);
        }
        if matches!(mode, Allocate | ZeroRange) {
            content.grow(end);
        }
        self.content_changed(ino);
        Ok(())
    }

    fn set_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Done {
        self.check_unrestricted(ino)?;
        let node = self.node(ino)?;
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::Exists),
            (XattrMode::Replace, false) => return Err(Errno::NoData),
            _ => {}
        }
        let list = match name {
            ACCESS_ACL if node.kind == NodeKind::Symlink => return Err(Errno::NotSupported),
            DEFAULT_ACL if node.kind != NodeKind::Directory => return Err(Errno::Access),
            ACCESS_ACL | DEFAULT_ACL => Some(Acl::parse(value)?),
            _ => None,
        };
        let is_access = name == ACCESS_ACL;
        let node = self.node_mut(ino);
        node.xattrs.insert(name.to_vec(), value.to_vec());
        if let Some(list) = list {
            if is_access && !list.is_empty() {
                node.mode = node.mode & 0o7000 | list.mode();
            }
            if list.is_empty() || is_access && list.is_minimal() {
                node.xattrs.remove(name);
            }
        }
        self.changed(ino);
        Ok(())
    }

    pub(crate) fn changed(&mut self, ino: Ino) {
        let now = self.now;
        self.node_mut(ino).ctime = now;
    }

    fn content_changed(&mut self, ino: Ino) {
        let now = self.now;
        self.node_mut(ino).mtime = now;
        self.changed(ino);
    }

    fn content_mut(&mut self, ino: Ino) -> &mut Content {
        match &mut self.node_mut(ino).body {
            Body::File(content) => content,
            _ => unreachable!("the caller has checked"),
        }
    }
}

/// Returns the end of a range, which must lie within the largest file.
fn end_of(offset: u64, length: u64) -> Done<u64> {
    let end = offset.checked_add(length).ok_or(Errno::TooBig)?;
    if end > FILE_BYTES_MAX {
        return Err(Errno::TooBig);
    }
    Ok(end)
}
