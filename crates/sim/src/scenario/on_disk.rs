//! The disk of a node, and the checks of a stopped node's data on it. This file only declares the parts.

pub mod disk_checks;
pub mod dump;
pub mod node_disk;
pub mod tables;
