//! The comparison of two real stores finds and names each kind of difference.

#[cfg(test)]
mod deep;
#[cfg(test)]
#[path = "../../../resync/tests/resync/nodes.rs"]
mod nodes;
#[cfg(test)]
mod planted;
