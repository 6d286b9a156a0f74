//! The limits of the trash, which the primary keeps (rule P38): the oldest inodes leave it beyond a limit, or when programs need their room (rule P20).
//!
//! A look every two seconds finds what is due, and another thread does it, by operations of the datastore. An inode that has left the trash is freed like any
//! inode without a name.

use std::sync::Arc;
use std::time::Duration;

use lockstep_fs::OpError;
use lockstep_types::{Errno, Ino, MetaRequest};
use parking_lot::Mutex;

use super::access::TrashAccess;
use crate::engine::Engine;
use crate::host::single_job::SingleJob;
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::own_operation::carry_out;
use crate::ops::space::SpaceCheck;

/// Bytes that leave the trash at once for programs that need room.
const RELIEF_BYTES: u64 = 64 << 20;
/// Time from one such step to the next: the content is freed meanwhile, on both nodes.
const RELIEF_PAUSE: Duration = Duration::from_millis(500);

/// See the head of this file.
#[derive(Default)]
pub(crate) struct TrashKeeper {
    job: SingleJob,
    /// The last time at which something left the trash for room, in the time of the host.
    relieved: Mutex<Option<Duration>>,
}

impl TrashKeeper {
    /// Begins what is due on another thread, if anything is and nothing runs. `is_due`: the last look was a while ago.
    pub fn look(
        &self,
        engine: &Arc<Engine>,
        pipeline: &Arc<MetaPipeline>,
        space: &Arc<SpaceCheck>,
        is_due: bool,
    ) {
        let trash = TrashAccess::of(engine);
        let for_room = self.is_wanted_for_room(trash, space, is_due);
        let is_too_much = || {
            let has_any = trash.ledger.usage().is_some_and(|usage| usage.inodes > 0);
            is_due && has_any && !trash.outdated().is_empty()
        };
        let is_wanted = for_room || is_due && trash.ledger.has_noted() || is_too_much();
        if !is_wanted {
            return;
        }
        let Some(run) = self.job.begin() else {
            return;
        };
        if for_room {
            *self.relieved.lock() = Some(engine.host.now());
        }
        let round = TrashRound {
            engine: Arc::clone(engine),
            pipeline: Arc::clone(pipeline),
            space: for_room.then(|| Arc::clone(space)),
        };
        engine.host.spawn(Box::new(move || {
            if let Err(error) = round.carry_out() {
                round.engine.log_and_errno(&error);
                // The next look reads all marks again.
                round.engine.references.trash.note_orphans();
            }
            drop(run);
        }));
    }

    /// Whether programs need the room of inodes in the trash. Asks a disk only while something is in the trash.
    fn is_wanted_for_room(&self, trash: TrashAccess<'_>, space: &SpaceCheck, is_due: bool) -> bool {
        if trash.ledger.is_empty() {
            return false;
        }
        let next = self.relieved.lock().map(|last| last + RELIEF_PAUSE);
        if next.is_some_and(|next| trash.engine.host.now() < next) {
            return false;
        }
        space.waits_for_relief() || is_due && space.is_low()
    }
}

/// One round of work, on its own thread.
struct TrashRound {
    engine: Arc<Engine>,
    pipeline: Arc<MetaPipeline>,
    /// Programs need room.
    space: Option<Arc<SpaceCheck>>,
}

impl TrashRound {
    fn carry_out(&self) -> Result<(), OpError> {
        let trash = TrashAccess::of(&self.engine);
        let noted = trash.ledger.take_noted();
        if noted.all {
            trash.read_all()?;
        }
        for ino in noted.inos {
            trash.read(ino)?;
        }
        if noted.orphans {
            self.pipeline.reap_orphans();
        }
        loop {
            let outdated = trash.outdated();
            if outdated.is_empty() {
                break;
            }
            if self.drop_from(trash, outdated).is_err() {
                return Ok(());
            }
        }
        if let Some(space) = &self.space {
            self.give_room(trash, space);
        }
        Ok(())
    }

    /// Takes the oldest inodes out of the trash, until programs have [`RELIEF_BYTES`] more.
    fn give_room(&self, trash: TrashAccess<'_>, space: &SpaceCheck) {
        let (mut bytes, mut inodes) = (0, 0);
        while bytes < RELIEF_BYTES {
            space.note_relief();
            let (oldest, their_bytes) = trash.ledger.oldest(RELIEF_BYTES - bytes);
            let count = oldest.len();
            if oldest.is_empty() || self.drop_from(trash, oldest).is_err() {
                break;
            }
            bytes += their_bytes;
            inodes += count;
        }
        self.pipeline.reap_gathered(space.has_ample_room());
        space.note_relief();
        if inodes > 0 {
            let datastore = self.engine.name();
            tracing::warn!(
                datastore,
                inodes,
                bytes,
                "a disk is nearly full: the oldest files of the trash are freed, and programs get the space",
            );
        }
    }

    /// Takes inodes out of the trash.
    fn drop_from(&self, trash: TrashAccess<'_>, inos: Vec<Ino>) -> Result<(), Errno> {
        let request = MetaRequest::TrashDrop { inos: inos.clone() };
        carry_out(request, &self.engine, &self.pipeline)?;
        for ino in inos {
            trash.ledger.put(ino, None);
        }
        Ok(())
    }
}
