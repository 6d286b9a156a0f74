//! The disk below a store: the directory of the operating system, and the layers over it.
//!
//! From the bottom up: [`os_backing`] makes the calls, [`reserve`] withholds space for bookkeeping, [`poison`] refuses
//! changes once the disk has failed. [`boot`] names the run of the machine. [`overlay`] keeps changes in memory, for a store that is only read. A
//! store reaches the top layer through [`crate::store_disk`].
//!
//! Nothing in this module knows the files of a store but by their paths.

pub mod boot;
pub mod os_backing;
pub mod overlay;
pub mod poison;
pub mod reserve;
