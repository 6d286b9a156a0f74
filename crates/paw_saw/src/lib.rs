//! The tables of writes that wait for the other side (rules P6, P7; paper, section 4.2).
//!
//! The primary has one table (PAW), the secondary another (SAW). An entry says that a write of these bytes may be on
//! one side only. After a reconnect, the blocks of all entries of both sides are sent again ([`recovery_ranges`]). The
//! owner of a table makes an entry before the write reaches the local disk, and removes the entry once neither side can
//! lose its copy; the owner decides when.
//!
//! A table survives the process, but not a power loss: other means find the writes that a power loss reverts. This
//! crate does no input or output of its own, does not wait, and reads no clock.

mod count;
mod entry;
mod entry_list;
mod recovery;
mod table;

pub use count::{COUNT_BYTES, SyncCounter, count_in};
pub use entry::{InFlightEntry, SLOT_BYTES};
pub use entry_list::EntryHandle;
pub use recovery::{RecoveryRange, recovery_ranges};
pub use table::{Damage, Full, InFlightTable, TABLE_BYTES, check};
