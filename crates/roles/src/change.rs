//! A change of the role of a node: what happened is decided once, where the machine decides, and is carried through.

use crate::record::RoleRecord;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoleChangeKind {
    /// A node keeps its role. It notes the completeness of a copy, or begins or ends its service with the record that it has.
    Keep,
    /// A primary goes on without its peer, whose copy is not complete from now on.
    GoAlone,
    /// A secondary stands for the next generation (rule R4).
    BecomeCandidate,
    /// A candidate lets its peer lead, and is the secondary of the peer (rule R4).
    GiveWay,
    /// A node leads because its peer has granted the role (rule R3).
    LeadByGrant,
    /// A candidate leads because the witness says so (rule R2).
    TakeOver,
    /// A node leads because an operator says so.
    Promote,
    /// A primary gives its role to the peer (rule R3).
    Grant,
    /// A primary follows its peer, which leads a later generation.
    Deposed,
    /// A secondary follows its peer, which leads a later generation.
    Follow,
    /// A primary is the secondary because an operator says so.
    Demote,
}

/// The part that a node takes towards clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServicePart {
    /// The node serves clients.
    Serve,
    /// The node serves nobody: a secondary, or a primary that may not serve yet.
    Wait,
}

/// A change of the role of a node, with the records before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoleChange {
    /// The kind.
    pub kind: RoleChangeKind,
    /// The record before the change.
    pub from: RoleRecord,
    /// The record after the change.
    pub to: RoleRecord,
    /// The part of the node after the change.
    pub part: ServicePart,
}

impl RoleChange {
    /// A change of a node with the record `from`, which waits after it.
    pub const fn waiting(kind: RoleChangeKind, from: RoleRecord, to: RoleRecord) -> Self {
        Self {
            kind,
            from,
            to,
            part: ServicePart::Wait,
        }
    }

    /// A change of a node with the record `from`, which serves after it.
    pub const fn serving(kind: RoleChangeKind, from: RoleRecord, to: RoleRecord) -> Self {
        Self {
            part: ServicePart::Serve,
            ..Self::waiting(kind, from, to)
        }
    }

    /// A node keeps its record, and takes a part.
    pub const fn keep(record: RoleRecord, part: ServicePart) -> Self {
        Self {
            part,
            ..Self::waiting(RoleChangeKind::Keep, record, record)
        }
    }

    /// A primary serves without its peer.
    pub const fn go_alone(record: RoleRecord) -> Self {
        Self::serving(RoleChangeKind::GoAlone, record, record.without_peer())
    }

    /// A primary gives its role to the peer.
    pub const fn grant(record: RoleRecord) -> Self {
        Self::waiting(RoleChangeKind::Grant, record, record.grant())
    }

    /// Whether this node serves clients after the change.
    pub const fn serves(&self) -> bool {
        matches!(self.part, ServicePart::Serve)
    }

    /// Whether the role, or the generation, is another one after the change: the session ends, and another one begins.
    pub const fn ends_session(&self) -> bool {
        match self.kind {
            RoleChangeKind::Keep | RoleChangeKind::GoAlone => false,
            RoleChangeKind::BecomeCandidate
            | RoleChangeKind::GiveWay
            | RoleChangeKind::LeadByGrant
            | RoleChangeKind::TakeOver
            | RoleChangeKind::Promote
            | RoleChangeKind::Grant
            | RoleChangeKind::Deposed
            | RoleChangeKind::Follow
            | RoleChangeKind::Demote => true,
        }
    }

    /// Whether a primary becomes a secondary: the other node gets the time in which it may lead.
    pub const fn steps_down(&self) -> bool {
        matches!(
            self.kind,
            RoleChangeKind::Grant | RoleChangeKind::Deposed | RoleChangeKind::Demote
        )
    }

    /// Whether a node leads, with a copy that was not complete before: operations that the other node has may be lost.
    pub const fn makes_complete(&self) -> bool {
        self.from.becomes_complete(&self.to)
    }

    /// Whether anything is to be written.
    pub fn changes_record(&self) -> bool {
        self.from != self.to
    }
}
