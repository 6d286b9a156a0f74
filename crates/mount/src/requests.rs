//! The requests of the kernel, one file for each family, and the answers to them.

pub(crate) mod adaptor;
pub(crate) mod attributes;
pub(crate) mod content;
pub(crate) mod create;
pub(crate) mod extended;
pub(crate) mod inode_flags;
pub(crate) mod listing;
pub(crate) mod names;
pub(crate) mod privileges;
pub(crate) mod reply;
pub(crate) mod setattr;
pub(crate) mod write;
