//! How a process goes on with the mount of a killed one: it takes over the mount, and answers the requests that the other
//! has not answered.

pub(crate) mod change_note;
pub(crate) mod exchange;
pub(crate) mod held_mount;
pub(crate) mod orphan_probe;
pub(crate) mod resent;
