//! Work that no client has asked for: recovery, resync and comparison, barriers, the mark whether the nodes are in sync, and the look
//! at the place of the store.

pub(crate) mod barriers;
pub(crate) mod change_readers;
pub(crate) mod resync;
pub(crate) mod snapshot_arrivals;
pub(crate) mod snapshot_diff;
pub(crate) mod snapshot_hooks;
pub(crate) mod snapshot_relief;
mod snapshot_schedule;
pub(crate) mod snapshot_scheduler;
pub(crate) mod snapshots;
pub(crate) mod store_place;
pub(crate) mod sync_mark;
mod told_path;
pub(crate) mod trash;
