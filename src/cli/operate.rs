//! The commands that run a node or a witness, and that change the role or the state of one.

pub(super) mod background;
pub(super) mod changes;
pub(super) mod clear_poison;
pub(super) mod demote;
pub(super) mod drill;
pub(super) mod failover;
pub(super) mod hold;
pub(super) mod node;
pub(super) mod promote;
pub(super) mod role_change;
pub(super) mod snapshot;
pub(super) mod trash;
pub(super) mod witness;
pub(super) mod witness_forget;
