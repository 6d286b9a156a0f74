//! The kernel's caches of a mount: which inodes and pages the kernel knows, and how it drops them.
//!
//! A cached name, attribute or page may be wrong from the moment at which another node may serve. So the kernel drops its
//! caches at a change of the role (`cache_drop`), and the guard does so when no thread of the node can (`guard`). A mapping
//! uses the page cache beside direct writes (`page_cache`).

pub(crate) mod cache_drop;
pub(crate) mod file_pages;
pub(crate) mod guard;
pub(crate) mod guard_sweep;
pub(crate) mod invalidation;
pub(crate) mod invalidator;
pub(crate) mod known_inodes;
pub(crate) mod lease_watch;
pub(crate) mod lifetimes;
pub(crate) mod notifications;
pub(crate) mod page_cache;
pub(crate) mod page_sweep;
pub(crate) mod unfinished_drops;
pub(crate) mod write_back;
