//! The tables of writes that wait for the other side (rules P6, P7; paper, section 4.2).
//!
//! The primary keeps one (PAW), the secondary another (SAW). An entry says that a write of these
//! bytes may be on one side only; after a reconnect the blocks of all entries of both sides are
//! sent again ([`recovery_ranges`]). An entry is made before its write reaches the local disk, and
//! removed once neither side can lose its copy; when that is, the owner decides.
//!
//! The table survives the process, not a power loss: what a power loss reverts is found by other
//! means. Nothing here does input or output of its own, waits, or reads a clock.

mod entry;
mod order;
mod recovery;
mod table;

pub use entry::{Entry, SLOT_BYTES};
pub use recovery::{Range, recovery_ranges};
pub use table::{Damage, Full, InFlightTable, Slot, TABLE_BYTES, check};
