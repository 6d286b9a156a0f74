//! What steps have in common: the order of two that have nothing in common cannot matter.

use lockstep_types::{Attr, FileName, Ino, MetaRequest};

use super::namespace::Namespace;
use super::step::{Sight, What};

/// What the outcome of a step depends on, or it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch<'a> {
    /// Where a name leads.
    Name(Ino, &'a FileName),
    /// An inode, its attributes, its entries as a whole.
    Node(Ino),
    /// A directory, as every change of one name in it does.
    Inside(Ino),
    /// Where directories lie.
    Tree,
}

impl Touch<'_> {
    /// Whether two steps that touch these may depend on each other.
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

/// All that a step touches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touches<'a>([Option<Touch<'a>>; 7]);

impl<'a> Touches<'a> {
    /// One inode.
    pub fn of_node(ino: Ino) -> Self {
        let mut touches = Self::default();
        touches.add(Touch::Node(ino));
        touches
    }

    /// What a step touches. What a name leads to is taken from the model: who makes it lead
    /// elsewhere touches the name, and the inode, and so is not overlooked.
    pub fn of(model: &Namespace, what: &What<'a>) -> Self {
        let mut touches = Self::default();
        match what {
            What::Change(request, _) => touches.add_request(model, request),
            What::Sight(Sight::Entry(parent, name, _)) => touches.add(Touch::Name(*parent, name)),
            What::Sight(
                Sight::Attr(Attr { ino, .. })
                | Sight::Entries(ino, _)
                | Sight::Xattr(ino, ..)
                | Sight::Target(ino, _)
                | Sight::File(ino)
                | Sight::Gone(ino),
            ) => touches.add(Touch::Node(*ino)),
            What::Loss(_) => {}
        }
        touches
    }

    /// Whether the order of two steps that touch these may matter.
    pub fn meet(&self, other: &Self) -> bool {
        let mut own = self.0.iter().flatten();
        own.any(|one| other.0.iter().flatten().any(|two| one.meets(two)))
    }

    fn add(&mut self, touch: Touch<'a>) {
        let known = self.0.contains(&Some(touch));
        if let Some(free) = self.0.iter_mut().find(|place| place.is_none() && !known) {
            *free = Some(touch);
        }
    }

    fn add_name(&mut self, model: &Namespace, parent: Ino, name: &'a FileName) -> Option<Ino> {
        self.add(Touch::Name(parent, name));
        self.add(Touch::Inside(parent));
        let ino = model.entry(parent, name)?;
        self.add(Touch::Node(ino));
        Some(ino)
    }

    fn add_request(&mut self, model: &Namespace, request: &'a MetaRequest) {
        match request {
            MetaRequest::Create {
                parent, name, ino, ..
            }
            | MetaRequest::Link { parent, name, ino } => {
                self.add_name(model, *parent, name);
                self.add(Touch::Node(*ino));
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
                    self.add(Touch::Tree);
                }
            }
            MetaRequest::SetAttr { ino, .. }
            | MetaRequest::Truncate { ino, .. }
            | MetaRequest::Allocate { ino, .. }
            | MetaRequest::DropPrivileges { ino }
            | MetaRequest::SetXattr { ino, .. }
            | MetaRequest::RemoveXattr { ino, .. }
            | MetaRequest::Reap { ino } => self.add(Touch::Node(*ino)),
        }
    }
}
