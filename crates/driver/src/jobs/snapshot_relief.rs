//! Snapshots of the schedule give way to programs (rule P20): while a disk is nearly full, or a change waits for room, the oldest one that no hold
//! keeps is deleted, one after the other.
//!
//! A deletion is an operation of the datastore, so the primary begins it. The next one begins once this node has freed the space of the last one.

use std::sync::Arc;

use lockstep_fs::store::SnapshotAccess;
use lockstep_types::MetaRequest;

use crate::engine::Engine;
use crate::host::single_job::SingleJob;
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::own_operation::carry_out;
use crate::ops::space::SpaceCheck;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct SnapshotRelief(SingleJob);

impl SnapshotRelief {
    /// Gives the oldest snapshot of the schedule up on another thread, if programs need its room and no deletion is under way. Asks a disk only while
    /// there is such a snapshot.
    pub fn look(
        &self,
        engine: &Arc<Engine>,
        pipeline: &Arc<MetaPipeline>,
        space: &Arc<SpaceCheck>,
    ) {
        let snapshots = SnapshotAccess::of(&engine.store);
        if snapshots.is_deleting() {
            space.note_relief();
            return;
        }
        let Some((id, snapshot)) = snapshots.first_to_give_way() else {
            return;
        };
        // The trash gives way first.
        if !engine.references.trash.is_empty() || !space.waits_for_relief() && !space.is_low() {
            return;
        }
        let Some(run) = self.0.begin() else {
            return;
        };
        let (engine, pipeline) = (Arc::clone(engine), Arc::clone(pipeline));
        let space = Arc::clone(space);
        space.note_relief();
        let host = Arc::clone(&engine.host);
        host.spawn(Box::new(move || {
            let datastore = engine.name();
            let delete = MetaRequest::SnapshotDelete { id };
            match carry_out(delete, &engine, &pipeline) {
                Ok(()) => tracing::warn!(
                    datastore,
                    snapshot,
                    "a disk is nearly full: the snapshot is deleted, and programs get the space",
                ),
                Err(errno) => {
                    tracing::debug!(datastore, snapshot, %errno, "a snapshot that is to give way stays");
                }
            }
            space.note_relief();
            drop(run);
        }));
    }
}
