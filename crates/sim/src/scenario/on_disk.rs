//! What a node has on its disk, and the checks of what it leaves there when it stops. This file only declares the parts.

pub mod disk_checks;
pub mod dump;
pub mod node_disk;
pub mod tables;
