//! A model of the namespace. It is small enough to try orders of operations on it, and to undo
//! them.
//!
//! The model holds names, kinds, links, permission bits, owners, extended attributes and targets.
//! Other checks judge sizes, times, cookies and content. No check judges limits. An inode that lost
//! its last name stays in the model, with no links. The store decides when it frees such an inode.
//! So an operation on such an inode may also return [`Errno::Stale`].
//!
//! Invariant: after [`Namespace::back_to`] the model has the same state as when the mark was taken.

mod records;

use lockstep_types::mode::{GROUP_EXECUTE, MODE_BITS, SET_GROUP_ID, SET_ID, SET_USER_ID};
use lockstep_types::{Errno, FileName, Ino, MetaRequest, NodeKind, RenameMode, XattrMode};

use records::{Key, Part, Record, Records};

pub(super) use records::{Moment, Node, mix};

/// The result of an operation in the model.
#[derive(Debug)]
pub(super) struct Effect {
    /// The inode that answers, or the refusal.
    pub result: Result<Option<Ino>, Errno>,
    /// Whether the operation used an inode without a name. The store may have freed such an inode.
    pub met_dead: bool,
}

/// The model.
#[derive(Debug)]
pub(super) struct Namespace {
    records: Records,
    met_dead: bool,
}

type Done = Result<Option<Ino>, Errno>;

impl Namespace {
    /// Returns the namespace of a new datastore: a root. The root's mode and owner are not part of
    /// the model.
    pub fn new() -> Self {
        let root = Node {
            kind: NodeKind::Directory,
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 2,
            rdev: 0,
            target: Vec::new(),
            parent: Ino::ROOT,
            entries: 0,
        };
        let mut new = Self {
            records: Records::default(),
            met_dead: false,
        };
        new.records
            .put(Key::node(Ino::ROOT), Some(Record::Node(root)));
        new
    }

    /// Returns a number that very probably differs between different states.
    pub const fn digest(&self) -> u64 {
        self.records.digest()
    }

    /// Returns the present moment, as a target for [`Self::back_to`].
    pub const fn now(&self) -> Moment {
        self.records.now()
    }

    /// Undoes all changes since a moment.
    pub fn back_to(&mut self, moment: Moment) {
        self.records.back_to(moment);
    }

    /// Restores the state of a moment. This is a change like others, and can be undone.
    pub fn revert_to(&mut self, moment: Moment) {
        self.records.revert_to(moment);
    }

    /// Returns an inode, with or without a name.
    pub fn node(&self, ino: Ino) -> Option<&Node> {
        match self.records.get(&Key::node(ino)) {
            Some(Record::Node(node)) => Some(node),
            _ => None,
        }
    }

    /// Returns all inodes.
    pub fn nodes(&self) -> impl Iterator<Item = (Ino, &Node)> {
        self.records
            .iter()
            .filter_map(|(key, record)| match record {
                Record::Node(node) => Some((key.ino, node)),
                _ => None,
            })
    }

    /// Returns the inode to which a name leads.
    pub fn entry(&self, parent: Ino, name: &FileName) -> Option<Ino> {
        match self.records.get(&Key::entry(parent, name)) {
            Some(Record::Entry(ino)) => Some(*ino),
            _ => None,
        }
    }

    /// Returns all entries of a directory, by name.
    pub fn entries(&self, directory: Ino) -> impl Iterator<Item = (&FileName, Ino)> {
        self.records
            .of_ino(directory)
            .filter_map(|(key, record)| match (&key.part, record) {
                (Part::Entry(name), Record::Entry(ino)) => Some((name, *ino)),
                _ => None,
            })
    }

    /// Returns all extended attributes of an inode, by name.
    pub fn xattrs(&self, ino: Ino) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
        self.records
            .of_ino(ino)
            .filter_map(|(key, record)| match (&key.part, record) {
                (Part::Xattr(name), Record::Xattr(value)) => Some((name, value)),
                _ => None,
            })
    }

    /// Returns the value of an extended attribute.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Option<&[u8]> {
        match self.records.get(&Key::xattr(ino, name)) {
            Some(Record::Xattr(value)) => Some(value),
            _ => None,
        }
    }

    /// Does an operation. A refused operation changes nothing.
    pub fn apply(&mut self, request: &MetaRequest) -> Effect {
        self.met_dead = false;
        let before = self.now();
        let result = self.change(request);
        if result.is_err() {
            self.back_to(before);
        }
        Effect {
            result,
            met_dead: self.met_dead,
        }
    }

    fn change(&mut self, request: &MetaRequest) -> Done {
        match request {
            MetaRequest::Create { .. } => self.create(request),
            MetaRequest::Link { ino, parent, name } => self.link(*ino, *parent, name),
            MetaRequest::Unlink { parent, name } => self.unlink(*parent, name),
            MetaRequest::Rmdir { parent, name } => self.rmdir(*parent, name),
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
            } => self.rename((*parent, name), (*new_parent, new_name), *mode),
            MetaRequest::SetAttr {
                ino,
                mode,
                uid,
                gid,
                ..
            } => self.set_attr(*ino, *mode, (*uid, *gid)),
            MetaRequest::Truncate {
                ino, drop_set_id, ..
            } => self.content_changed(*ino, *drop_set_id),
            MetaRequest::Allocate { ino, .. } => self.content_changed(*ino, false),
            MetaRequest::DropPrivileges { ino } => self.drop_set_id(*ino),
            MetaRequest::SetXattr {
                ino,
                name,
                value,
                mode,
            } => self.set_xattr(*ino, name, value, *mode),
            MetaRequest::RemoveXattr { ino, name } => self.remove_xattr(*ino, name),
            MetaRequest::Reap { .. }
            | MetaRequest::ReapAll { .. }
            | MetaRequest::SnapshotCreate { .. }
            | MetaRequest::SnapshotRename { .. }
            | MetaRequest::SnapshotDelete { .. }
            | MetaRequest::SnapshotHold { .. }
            | MetaRequest::SnapshotRelease { .. }
            | MetaRequest::IntoTrash { .. }
            | MetaRequest::TrashRestore { .. }
            | MetaRequest::TrashDrop { .. } => Ok(None),
            MetaRequest::SetFlags { .. } => unreachable!("no simulated client sets flags"),
        }
    }

    fn load(&mut self, ino: Ino) -> Result<Node, Errno> {
        let node = self.node(ino).cloned().ok_or(Errno::Stale)?;
        self.met_dead |= node.nlink == 0;
        Ok(node)
    }

    /// Loads a directory, with or without a name.
    fn load_directory(&mut self, ino: Ino) -> Result<Node, Errno> {
        let node = self.load(ino)?;
        match node.kind {
            NodeKind::Directory => Ok(node),
            _ => Err(Errno::NotDirectory),
        }
    }

    fn save(&mut self, ino: Ino, node: Node) {
        if self.node(ino) != Some(&node) {
            self.records.put(Key::node(ino), Some(Record::Node(node)));
        }
    }

    fn update(&mut self, ino: Ino, change: impl FnOnce(&mut Node)) -> Result<(), Errno> {
        let mut node = self.load(ino)?;
        change(&mut node);
        self.save(ino, node);
        Ok(())
    }

    /// Checks that a place is free for a new name.
    fn check_free(&mut self, parent: Ino, name: &FileName) -> Result<(), Errno> {
        if self.load_directory(parent)?.nlink == 0 {
            return Err(Errno::NoEntry);
        }
        match self.entry(parent, name) {
            Some(_) => Err(Errno::Exists),
            None => Ok(()),
        }
    }

    /// Adds an entry that does not exist.
    fn add(&mut self, parent: Ino, name: &FileName, ino: Ino) -> Result<(), Errno> {
        let subdirectories = u32::from(self.is_directory(ino));
        self.records
            .put(Key::entry(parent, name), Some(Record::Entry(ino)));
        self.update(parent, |above| {
            above.entries += 1;
            above.nlink += subdirectories;
        })
    }

    /// Removes an entry that exists.
    fn remove(&mut self, parent: Ino, name: &FileName, ino: Ino) -> Result<(), Errno> {
        let subdirectories = u32::from(self.is_directory(ino));
        self.records.put(Key::entry(parent, name), None);
        self.update(parent, |above| {
            above.entries = above.entries.saturating_sub(1);
            above.nlink = above.nlink.saturating_sub(subdirectories);
        })
    }

    /// Returns whether there is a directory with this number.
    pub fn is_directory(&self, ino: Ino) -> bool {
        self.node(ino)
            .is_some_and(|node| node.kind == NodeKind::Directory)
    }

    fn create(&mut self, request: &MetaRequest) -> Done {
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
            return Err(Errno::Invalid);
        };
        self.check_free(*parent, name)?;
        let is_symlink = *kind == NodeKind::Symlink;
        if is_symlink && target.is_empty() {
            return Err(Errno::NoEntry);
        }
        let above = self.load(*parent)?;
        let inherited = above.mode & SET_GROUP_ID;
        let is_directory = *kind == NodeKind::Directory;
        let is_device = matches!(kind, NodeKind::CharDevice | NodeKind::BlockDevice);
        let passed_on = if is_directory { inherited } else { 0 };
        let node = Node {
            kind: *kind,
            mode: if is_symlink {
                0o777
            } else {
                (mode & MODE_BITS | passed_on) & !(umask & 0o777)
            },
            uid: *uid,
            gid: if inherited == 0 { *gid } else { above.gid },
            nlink: if is_directory { 2 } else { 1 },
            rdev: if is_device { *rdev } else { 0 },
            target: if is_symlink {
                target.clone()
            } else {
                Vec::new()
            },
            parent: *parent,
            entries: 0,
        };
        self.save(*ino, node);
        self.add(*parent, name, *ino)?;
        Ok(Some(*ino))
    }

    fn link(&mut self, ino: Ino, parent: Ino, name: &FileName) -> Done {
        let node = self.load(ino)?;
        if node.kind == NodeKind::Directory {
            return Err(Errno::NotPermitted);
        }
        if node.nlink == 0 {
            return Err(Errno::NoEntry);
        }
        self.check_free(parent, name)?;
        self.update(ino, |node| node.nlink += 1)?;
        self.add(parent, name, ino)?;
        Ok(Some(ino))
    }

    fn existing(&mut self, parent: Ino, name: &FileName) -> Result<Ino, Errno> {
        self.load_directory(parent)?;
        self.entry(parent, name).ok_or(Errno::NoEntry)
    }

    fn unlink(&mut self, parent: Ino, name: &FileName) -> Done {
        let ino = self.existing(parent, name)?;
        if self.is_directory(ino) {
            return Err(Errno::IsDirectory);
        }
        self.remove(parent, name, ino)?;
        self.drop_link(ino)?;
        Ok(None)
    }

    fn rmdir(&mut self, parent: Ino, name: &FileName) -> Done {
        let ino = self.existing(parent, name)?;
        let node = self.load_directory(ino)?;
        if node.entries > 0 {
            return Err(Errno::NotEmpty);
        }
        self.remove(parent, name, ino)?;
        self.drop_link(ino)?;
        Ok(None)
    }

    /// Removes one link of an inode. A directory has no other link.
    fn drop_link(&mut self, ino: Ino) -> Result<(), Errno> {
        self.update(ino, |node| {
            let is_directory = node.kind == NodeKind::Directory;
            node.nlink = if is_directory {
                0
            } else {
                node.nlink.saturating_sub(1)
            };
        })
    }

    fn rename(&mut self, from: (Ino, &FileName), to: (Ino, &FileName), mode: RenameMode) -> Done {
        let moved = self.existing(from.0, from.1)?;
        if self.load_directory(to.0)?.nlink == 0 {
            return Err(Errno::NoEntry);
        }
        self.check_no_loop(moved, to.0)?;
        let target = self.entry(to.0, to.1);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exists),
            (RenameMode::Exchange, None) => return Err(Errno::NoEntry),
            (_, Some(target)) if target == moved => return Ok(None),
            (RenameMode::Exchange, Some(target)) => {
                self.check_no_loop(target, from.0)?;
                self.remove(to.0, to.1, target)?;
                self.remove(from.0, from.1, moved)?;
                self.add(from.0, from.1, target)?;
                self.set_parent(target, from.0)?;
            }
            (_, Some(target)) => {
                self.check_replace(moved, target)?;
                self.remove(to.0, to.1, target)?;
                self.drop_link(target)?;
                self.remove(from.0, from.1, moved)?;
            }
            (_, None) => self.remove(from.0, from.1, moved)?,
        }
        self.add(to.0, to.1, moved)?;
        self.set_parent(moved, to.0)?;
        Ok(None)
    }

    fn check_replace(&mut self, moved: Ino, target: Ino) -> Result<(), Errno> {
        let entries = self.load(target)?.entries;
        match (self.is_directory(moved), self.is_directory(target)) {
            (true, true) if entries > 0 => Err(Errno::NotEmpty),
            (true, false) => Err(Errno::NotDirectory),
            (false, true) => Err(Errno::IsDirectory),
            _ => Ok(()),
        }
    }

    fn set_parent(&mut self, ino: Ino, parent: Ino) -> Result<(), Errno> {
        if self.is_directory(ino) {
            self.update(ino, |node| node.parent = parent)?;
        }
        Ok(())
    }

    /// Checks that a directory does not move below itself.
    fn check_no_loop(&mut self, moved: Ino, new_parent: Ino) -> Result<(), Errno> {
        if !self.is_directory(moved) {
            return Ok(());
        }
        let mut at = new_parent;
        loop {
            if at == moved {
                return Err(Errno::Invalid);
            }
            let above = self.load(at)?.parent;
            if above == at {
                return Ok(());
            }
            at = above;
        }
    }

    fn set_attr(
        &mut self,
        ino: Ino,
        mode: Option<u32>,
        (uid, gid): (Option<u32>, Option<u32>),
    ) -> Done {
        let mut node = self.load(ino)?;
        let owner_changes = uid.is_some() || gid.is_some();
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        if owner_changes && node.kind != NodeKind::Directory {
            node.mode = without_set_id(node.mode);
        }
        if let Some(mode) = mode {
            if node.kind == NodeKind::Symlink {
                return Err(Errno::NotSupported);
            }
            node.mode = mode & MODE_BITS;
        }
        self.save(ino, node);
        Ok(Some(ino))
    }

    /// Checks a change of content. The change is refused for an inode without content.
    fn content_changed(&mut self, ino: Ino, drop_set_id: bool) -> Done {
        self.file(ino)?;
        if drop_set_id {
            self.drop_set_id(ino)?;
        }
        Ok(Some(ino))
    }

    /// Checks that an inode is a regular file, with or without a name. Returns the reason why the
    /// inode cannot be read or written otherwise.
    pub fn file(&mut self, ino: Ino) -> Result<(), Errno> {
        match self.load(ino)?.kind {
            NodeKind::File => Ok(()),
            NodeKind::Directory => Err(Errno::IsDirectory),
            _ => Err(Errno::Invalid),
        }
    }

    fn drop_set_id(&mut self, ino: Ino) -> Done {
        self.update(ino, |node| node.mode = without_set_id(node.mode))?;
        Ok(Some(ino))
    }

    fn set_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Done {
        self.load(ino)?;
        match (mode, self.xattr(ino, name)) {
            (XattrMode::Create, Some(_)) => return Err(Errno::Exists),
            (XattrMode::Replace, None) => return Err(Errno::NoData),
            _ => {}
        }
        let key = Key::xattr(ino, name);
        self.records.put(key, Some(Record::Xattr(value.to_vec())));
        Ok(Some(ino))
    }

    fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> Done {
        self.load(ino)?;
        if self.xattr(ino, name).is_none() {
            return Err(Errno::NoData);
        }
        self.records.put(Key::xattr(ino, name), None);
        Ok(Some(ino))
    }
}

/// Returns a mode without the set-user-id bit. The set-group-id bit is removed too, where it has
/// the meaning set-group-id.
const fn without_set_id(mode: u32) -> u32 {
    if mode & GROUP_EXECUTE == 0 {
        mode & !SET_USER_ID
    } else {
        mode & !SET_ID
    }
}
