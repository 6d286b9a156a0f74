//! The comparison of two real stores finds each kind of difference, and names it.

#[cfg(test)]
#[path = "../../../resync/tests/resync/nodes.rs"]
mod nodes;
#[cfg(test)]
mod planted;
