//! The tables of the marks of a store, the names of its barriers, and its trace, as the last process has left them.

use std::sync::Arc;

use lockstep_types::backing::Backing;

use super::barrier_file::{BarrierFile, LeftNames, NameStanding};
use super::kept::DeltaWords;
use super::rest_copy::RestCopy;
use super::table::{MarkTable, MarkTableSizes};
use super::trace_file::{LeftTrace, TraceFile};
use crate::error::StoreError;
use crate::namespace::last_use::LastUse;
use crate::paths::{DELTA_FILE, MARK_FILES};

/// See the head of this file.
pub struct MarkTables {
    pub(super) delta: MarkTable,
    pub(super) columns: [MarkTable; 2],
    pub(super) names: (BarrierFile, LeftNames),
    pub(super) trace: (TraceFile, Option<LeftTrace>),
    /// The rest of the source of a resync that has lost its power.
    pub(super) rest: Option<RestCopy>,
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
        let delta = open(DELTA_FILE, sizes.delta_slots)?;
        let is_of_lost_run = last_use.last_boot.is_some_and(|last| last != last_use.boot);
        let is_lost = is_of_lost_run || !delta.has_kept_words::<DeltaWords>();
        let (file, mut names) = BarrierFile::open(Arc::clone(backing))?;
        let rest = match names.standing {
            NameStanding::WithRest(number) if is_lost => {
                let rest = file.read_rest(number)?;
                names.is_rest_lost = rest.is_none();
                rest
            }
            _ => None,
        };
        Ok(Self {
            delta,
            rest,
            columns: [
                open(first, sizes.column_slots)?,
                open(second, sizes.column_slots)?,
            ],
            names: (file, names),
            trace: TraceFile::open(Arc::clone(backing), sizes.column_slots, last_use)?,
        })
    }
}
