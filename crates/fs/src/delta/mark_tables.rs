//! The tables of the marks of a store, the names of its barriers, and its trace, as the last process has left them.

use std::sync::Arc;

use lockstep_types::backing::Backing;

use super::barrier_file::{BarrierFile, LeftNames};
use super::table::{MarkTable, MarkTableSizes};
use super::trace_file::{LeftTrace, TraceFile};
use crate::error::StoreError;
use crate::last_use::LastUse;
use crate::paths::{DELTA_FILE, MARK_FILES};

/// See the head of this file.
pub struct MarkTables {
    pub(super) delta: MarkTable,
    pub(super) columns: [MarkTable; 2],
    pub(super) names: (BarrierFile, LeftNames),
    pub(super) trace: (TraceFile, Option<LeftTrace>),
}

impl MarkTables {
    /// Opens the tables of a store, or makes them in these sizes, and reads the names and the trace.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn open(
        backing: &Arc<dyn Backing>,
        sizes: MarkTableSizes,
        last_use: LastUse,
    ) -> Result<Self, StoreError> {
        let open = |path, slots| MarkTable::open(backing.as_ref(), path, slots, last_use);
        let [first, second] = MARK_FILES;
        Ok(Self {
            delta: open(DELTA_FILE, sizes.delta_slots)?,
            columns: [
                open(first, sizes.column_slots)?,
                open(second, sizes.column_slots)?,
            ],
            names: BarrierFile::open(Arc::clone(backing))?,
            trace: TraceFile::open(Arc::clone(backing), sizes.column_slots, last_use)?,
        })
    }
}
