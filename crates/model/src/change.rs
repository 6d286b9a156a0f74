//! The metadata operations, and the changes of names among them.

use lockstep_types::limits::LINKS_MAX;
use lockstep_types::mode::{MODE_BITS, SET_GROUP_ID};
use lockstep_types::xattr::{ACCESS_ACL, DEFAULT_ACL};
use lockstep_types::{
    Errno, FileName, Ino, InodeFlags, MetaRequest, NodeKind, RenameMode, Timestamp,
};

use crate::{Acl, Body, Content, Done, Effect, Model, Names, Node};

/// Longest target of a symbolic link.
const TARGET_BYTES_MAX: usize = 4095;

/// A name in a directory.
type Place<'a> = (Ino, &'a FileName);

impl Model {
    /// Does a metadata operation at `time`.
    pub fn apply(&mut self, time: Timestamp, request: &MetaRequest) -> Done<Effect> {
        self.now = time;
        let no_subject = |orphaned| Effect {
            subject: None,
            orphaned,
        };
        match request {
            MetaRequest::Unlink { parent, name } => self.unlink((*parent, name)).map(no_subject),
            MetaRequest::Rmdir { parent, name } => self.rmdir((*parent, name)).map(no_subject),
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => {
                let renamed = self.rename((*parent, name), (*new_parent, new_name), *mode);
                renamed.map(no_subject)
            }
            MetaRequest::Reap { ino } => self.reap(*ino).map(|()| no_subject(None)),
            MetaRequest::ReapAll { inos } => {
                for ino in inos {
                    // An inode with a name stays, and so does one that is gone.
                    let _ = self.reap(*ino);
                }
                Ok(no_subject(None))
            }
            MetaRequest::IntoTrash { removal } => self.remove_into_trash(time, removal),
            MetaRequest::TrashDrop { inos } => {
                self.drop_from_trash(inos);
                Ok(no_subject(None))
            }
            _ => {
                let subject = Some(self.change_inode(request)?);
                Ok(Effect {
                    subject,
                    orphaned: None,
                })
            }
        }
    }

    fn change_inode(&mut self, request: &MetaRequest) -> Done<Ino> {
        match request {
            MetaRequest::Create { .. } => self.create(request),
            MetaRequest::Link { ino, parent, name } => {
                self.link(*ino, (*parent, name)).map(|()| *ino)
            }
            MetaRequest::TrashRestore { ino, parent, name } => self.restore(*ino, (*parent, name)),
            _ => self.change_attributes(request),
        }
    }

    fn create(&mut self, request: &MetaRequest) -> Done<Ino> {
        let MetaRequest::Create {
            parent,
            name,
            ino,
            kind,
            mode,
            umask,
            uid,
            gid,
            rdev,
            target,
        } = request
        else {
            unreachable!("called for creations only")
        };
        self.check_free((*parent, name))?;
        self.check_mutable(*parent)?;
        let mut node = Node::new(*kind, body(*kind, target)?, self.now);
        let above = &self.nodes[parent];
        let group_bit = above.mode & SET_GROUP_ID;
        if matches!(kind, NodeKind::CharDevice | NodeKind::BlockDevice) {
            node.rdev = *rdev;
        }
        node.uid = *uid;
        node.gid = if group_bit == 0 { *gid } else { above.gid };
        node.mode = mode & MODE_BITS;
        node.flags = above.flags.intersection(InodeFlags::INHERITED);
        if *kind == NodeKind::Directory {
            node.mode |= group_bit;
        }
        match above.xattrs.get(DEFAULT_ACL) {
            _ if *kind == NodeKind::Symlink => node.mode = 0o777,
            None => node.mode &= !(umask & 0o777),
            Some(default) => inherit(&mut node, default),
        }
        self.nodes.insert(*ino, node);
        self.put((*parent, name), *ino);
        Ok(*ino)
    }

    fn link(&mut self, ino: Ino, to: Place<'_>) -> Done {
        self.node(ino)?;
        if self.is_directory(ino) {
            return Err(Errno::NotPermitted);
        }
        match self.nlink(ino) {
            0 => return Err(Errno::NoEntry),
            LINKS_MAX.. => return Err(Errno::TooManyLinks),
            _ => {}
        }
        self.check_free(to)?;
        self.check_mutable(to.0)?;
        self.check_unrestricted(ino)?;
        self.put(to, ino);
        self.changed(ino);
        Ok(())
    }

    fn unlink(&mut self, place: Place<'_>) -> Done<Option<Ino>> {
        let ino = self.find(place.0, place.1)?;
        if self.is_directory(ino) {
            return Err(Errno::IsDirectory);
        }
        self.check_unrestricted(place.0)?;
        self.check_unrestricted(ino)?;
        self.take(place);
        self.changed(ino);
        Ok(self.is_orphan(ino).then_some(ino))
    }

    fn rmdir(&mut self, place: Place<'_>) -> Done<Option<Ino>> {
        let ino = self.find(place.0, place.1)?;
        self.names(ino)?;
        self.check_unrestricted(place.0)?;
        self.check_unrestricted(ino)?;
        if !self.names(ino)?.is_empty() {
            return Err(Errno::NotEmpty);
        }
        self.take(place);
        self.changed(ino);
        Ok(Some(ino))
    }

    fn rename(&mut self, from: Place<'_>, to: Place<'_>, mode: RenameMode) -> Done<Option<Ino>> {
        let RenameMode::Whiteout { ino, uid, gid } = mode else {
            return self.rename_only(from, to, mode);
        };
        let orphaned = self.rename_only(from, to, mode)?;
        if self.find(from.0, from.1).is_err() {
            self.create(
                &MetaRequest::creation(from.0, from.1.clone(), ino, NodeKind::CharDevice)
                    .mode(0)
                    .owner(uid, gid)
                    .request(),
            )?;
        }
        Ok(orphaned)
    }

    fn is_whiteout(&self, ino: Ino) -> bool {
        let node = &self.nodes[&ino];
        node.kind == NodeKind::CharDevice && node.rdev == 0
    }

    /// A rename, without the whiteout that it leaves.
    fn rename_only(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
    ) -> Done<Option<Ino>> {
        let moved = self.find(from.0, from.1)?;
        let target = self.names(to.0)?.get(to.1);
        if self.is_orphan(to.0) {
            return Err(Errno::NoEntry);
        }
        self.check_no_loop(moved, to.0)?;
        if matches!(mode, RenameMode::Whiteout { .. }) && self.is_whiteout(moved) {
            return Err(Errno::Exists);
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists),
            (RenameMode::Exchange, None) => return Err(Errno::NoEntry),
            (_, Some(target)) if target == moved => return Ok(None),
            _ => {}
        }
        self.check_unrestricted(from.0)?;
        self.check_unrestricted(moved)?;
        if let Some(target) = target {
            self.check_unrestricted(to.0)?;
            self.check_unrestricted(target)?;
        }
        self.check_mutable(to.0)?;
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                self.check_no_loop(target, from.0)?;
                self.put(from, target);
            }
            (_, Some(target)) => {
                self.check_replace(moved, target)?;
                self.take(from);
            }
            (_, None) => self.take(from),
        }
        self.put(to, moved);
        self.changed(moved);
        let Some(target) = target else {
            return Ok(None);
        };
        self.changed(target);
        Ok(self.is_orphan(target).then_some(target))
    }

    fn reap(&mut self, ino: Ino) -> Done {
        self.node(ino)?;
        if !self.is_orphan(ino) || self.is_in_trash(ino) {
            return Err(Errno::Busy);
        }
        self.nodes.remove(&ino);
        Ok(())
    }

    /// Checks that a name can be added.
    pub(crate) fn check_free(&self, place: Place<'_>) -> Done {
        let names = self.names(place.0)?;
        if self.is_orphan(place.0) {
            return Err(Errno::NoEntry);
        }
        match names.get(place.1) {
            Some(_) => Err(Errno::Exists),
            None => Ok(()),
        }
    }

    /// Checks that a directory does not move into or below itself.
    fn check_no_loop(&self, moved: Ino, directory: Ino) -> Done {
        let mut above = Some(directory);
        while let Some(ino) = above {
            if ino == moved {
                return Err(Errno::Invalid);
            }
            above = self.parent(ino);
        }
        Ok(())
    }

    fn check_replace(&self, moved: Ino, target: Ino) -> Done {
        match (self.is_directory(moved), self.is_directory(target)) {
            (true, false) => Err(Errno::NotDirectory),
            (false, true) => Err(Errno::IsDirectory),
            (true, true) if !self.names(target)?.is_empty() => Err(Errno::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Lets a name lead to `ino`. An inode to which it led before loses the name.
    pub(crate) fn put(&mut self, place: Place<'_>, ino: Ino) {
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        let link = (place.0, place.1.clone());
        let is_directory = self.is_directory(ino);
        let names = self.names_mut(place.0);
        let before = names.set(cookie, place.1, ino, is_directory);
        if let Some(before) = before {
            self.node_mut(before).links.remove(&link);
        }
        self.node_mut(ino).links.insert(link);
    }

    /// Removes a name that exists.
    fn take(&mut self, place: Place<'_>) {
        let ino = self.names_mut(place.0).remove(place.1);
        let link = (place.0, place.1.clone());
        self.node_mut(ino).links.remove(&link);
    }

    /// The names of a directory, which change now.
    fn names_mut(&mut self, directory: Ino) -> &mut Names {
        let now = self.now;
        let node = self.node_mut(directory);
        (node.mtime, node.ctime) = (now, now);
        match &mut node.body {
            Body::Directory(names) => names,
            _ => unreachable!("the caller has checked"),
        }
    }
}

/// The body of a new inode.
fn body(kind: NodeKind, target: &[u8]) -> Done<Body> {
    Ok(match kind {
        NodeKind::File => Body::File(Content::default()),
        NodeKind::Directory => Body::Directory(Names::default()),
        NodeKind::Symlink if target.is_empty() => return Err(Errno::NoEntry),
        NodeKind::Symlink if target.len() > TARGET_BYTES_MAX => return Err(Errno::NameTooLong),
        NodeKind::Symlink => Body::Symlink(target.to_vec()),
        _ => Body::Nothing,
    })
}

/// Gives a new inode the default list of its directory, restricted by its mode, instead of the umask.
fn inherit(node: &mut Node, default: &[u8]) {
    let mut list = Acl::parse(default).expect("only valid lists are stored");
    let granted = list.mode() & node.mode;
    list.chmod(granted);
    node.mode = node.mode & 0o7000 | granted;
    if !list.is_minimal() {
        node.xattrs.insert(ACCESS_ACL.to_vec(), list.encode());
    }
    if node.kind == NodeKind::Directory {
        node.xattrs.insert(DEFAULT_ACL.to_vec(), default.to_vec());
    }
}
