//! Operations of clients on the primary, from the request to the answer.

pub(crate) mod announcements;
pub(crate) mod berths;
pub(crate) mod checked_reads;
pub(crate) mod content;
pub(crate) mod lock_plan;
pub(crate) mod locks;
pub(crate) mod meta_pipeline;
pub(crate) mod own_operation;
pub(crate) mod paw;
pub(crate) mod pending;
pub(crate) mod reap_queue;
pub(crate) mod space;
pub(crate) mod spill;
pub(crate) mod write_backpressure;
