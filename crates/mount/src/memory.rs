//! The memory of a mount that outlives the process: the facts that the next process and the guard have to know.

pub(crate) mod delivery;
pub(crate) mod guard_words;
pub(crate) mod lease_timer;
pub(crate) mod mount_memory;
