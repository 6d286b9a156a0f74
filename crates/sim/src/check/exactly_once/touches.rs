//! The common subjects of steps. The order of two steps with nothing in common cannot matter.

use lockstep_types::{Attr, FileName, Ino, MetaRequest};

use super::namespace::Namespace;
use super::step::{Sight, What};

/// A thing that the outcome of a step depends on, or that the step changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject<'a> {
    /// The inode to which a name leads.
    Name(Ino, &'a FileName),
    /// An inode, its attributes, its entries as a whole.
    Node(Ino),
    /// A directory, in the way in which every change of one name in it touches the directory.
    Inside(Ino),
    /// The positions of directories in the tree.
    Tree,
}

impl Subject<'_> {
    /// Returns whether two steps that touch these may depend on each other.
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Inside(_), Self::Inside(_)) => false,
            (Self::Inside(one), Self::Node(two)) | (Self::Node(one), Self::Inside(two)) => {
                one == two
            }
            _ => self == other,
        }
    }
}

/// All touches of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touches<'a>([Option<Subject<'a>>; 7]);

impl<'a> Touches<'a> {
    /// Returns the touch of one inode.
    pub fn of_node(ino: Ino) -> Self {
        let mut touches = Self::default();
        touches.add(Subject::Node(ino));
        touches
    }

    /// Returns the touches of a step. The inode to which a name leads is taken from the model. A
    /// step that makes the name lead elsewhere touches the name and the inode, so the search does
    /// not miss it.
    pub fn of(model: &Namespace, what: &What<'a>) -> Self {
        let mut touches = Self::default();
        match what {
            What::Change(request, _) => touches.add_request(model, request),
            What::Sight(Sight::Entry(parent, name, _)) => touches.add(Subject::Name(*parent, name)),
            What::Sight(
                Sight::Attr(Attr { ino, .. })
                | Sight::Entries(ino, _)
                | Sight::Xattr(ino, ..)
                | Sight::Target(ino, _)
                | Sight::File(ino)
                | Sight::Gone(ino),
            ) => touches.add(Subject::Node(*ino)),
            What::Loss(_) | What::Settled => {}
        }
        touches
    }

    /// Returns whether the order of two steps with these touches may matter.
    pub fn meet(&self, other: &Self) -> bool {
        let mut own = self.0.iter().flatten();
        own.any(|one| other.0.iter().flatten().any(|two| one.meets(two)))
    }

    fn add(&mut self, touch: Subject<'a>) {
        let known = self.0.contains(&Some(touch));
        if let Some(free) = self.0.iter_mut().find(|place| place.is_none() && !known) {
            *free = Some(touch);
        }
    }

    fn add_name(&mut self, model: &Namespace, parent: Ino, name: &'a FileName) -> Option<Ino> {
        self.add(Subject::Name(parent, name));
        self.add(Subject::Inside(parent));
        let ino = model.entry(parent, name)?;
        self.add(Subject::Node(ino));
        Some(ino)
    }

    fn add_request(&mut self, model: &Namespace, request: &'a MetaRequest) {
        match request {
            MetaRequest::Create {
                parent, name, ino, ..
            }
            | MetaRequest::Link { parent, name, ino } => {
                self.add_name(model, *parent, name);
                self.add(Subject::Node(*ino));
            }
            MetaRequest::Unlink { parent, name } | MetaRequest::Rmdir { parent, name } => {
                self.add_name(model, *parent, name);
            }
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                ..
            } => {
                let moved = [(*parent, name), (*new_parent, new_name)]
                    .map(|(parent, name)| self.add_name(model, parent, name));
                let mut moved = moved.iter().flatten();
                if moved.any(|ino| model.is_directory(*ino)) {
                    self.add(Subject::Tree);
                }
            }
            MetaRequest::SetAttr { ino, .. }
            | MetaRequest::Truncate { ino, .. }
            | MetaRequest::Allocate { ino, .. }
            | MetaRequest::DropPrivileges { ino }
            | MetaRequest::SetXattr { ino, .. }
            | MetaRequest::RemoveXattr { ino, .. }
            | MetaRequest::SetFlags { ino, .. }
            | MetaRequest::Reap { ino } => self.add(Subject::Node(*ino)),
            // Frees inodes that nothing shows any more, and clients see no snapshot and ask for nothing of the trash.
            MetaRequest::ReapAll { .. }
            | MetaRequest::SnapshotCreate { .. }
            | MetaRequest::SnapshotRename { .. }
            | MetaRequest::SnapshotDelete { .. }
            | MetaRequest::SnapshotHold { .. }
            | MetaRequest::SnapshotRelease { .. }
            | MetaRequest::IntoTrash { .. }
            | MetaRequest::TrashRestore { .. }
            | MetaRequest::TrashDrop { .. } => {}
        }
    }
}
