//! Intervals, barriers and the difference of two copies, decided without IO (docs/protocol/delta.md).
//!
//! A node marks the parts of files that it changes. This crate has the decisions about these region marks, and none of their
//! storage: which marks the other node has, when marks may be dropped, and which marks of two nodes name everything in which
//! their copies may differ. The model in `tests/model.rs` runs these types through every order of events with a bounded number
//! of failures.
//!
//! | file | subject |
//! |---|---|
//! | `interval` | the number of an interval, and the names of barriers |
//! | `columns` | the two columns of a table of region marks |
//! | `announced` | the regions that the secondary is known to have marked |
//! | `barrier`, `barrier_events` | the barrier on both nodes, as a machine; its messages, events and effects |
//! | `coverage`, `difference` | the intervals whose marks a node has; where two copies may differ |
//! | `account` | the words of a node about its marks, and the marks in pages |

pub mod account;
pub mod announced;
pub mod barrier;
pub mod barrier_events;
pub mod columns;
pub mod coverage;
pub mod difference;
pub mod interval;

pub use account::{MarkAccount, MarkPage, ResyncBase};
pub use announced::{AnnouncedRegions, FileRegions, RegionRun};
pub use barrier::BarrierMachine;
pub use barrier_events::{BarrierEffect, BarrierEvent, BarrierMessage};
pub use columns::{Column, MarkColumns};
pub use coverage::{DurableMarks, MarkCoverage};
pub use difference::{CopyAccount, CopyDifference};
pub use interval::{BarrierName, BarrierNames, Interval};
