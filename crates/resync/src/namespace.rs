//! The primary's side of carrying the namespace over (rules P10, P18).
//!
//! First the primary goes through all records, table by table in the order of their keys, while it serves its clients
//! alone ([`send_image`]). It sends the runs of records that differ (`record_runs`). The store notes the keys of the
//! records that client operations change meanwhile. The primary sends these records again in rounds: each round sends
//! the changes of the round before. When few changes are left, the core admits no more metadata operations and waits
//! for the operations under way, and the primary sends the rest ([`send_tail`]). The waiting time of those operations
//! therefore does not depend on the number of files.
//!
//! If the store has a delta of the changes since the copies were equal, only the records of the delta are sent: all records, if
//! there were too many changes to name them, and still only the content that has changed. Records that
//! the secondary has at the end of the image are no longer in the delta. After an image of everything the store has one (rule P24).
//!
//! Before the tail, the secondary's records form no namespace that ever existed: a file may have two names, or a
//! directory an entry without an inode. No code reads that namespace before the tail has come, and the copy is marked
//! out of sync until then and long after.

pub(crate) mod record_runs;

use lockstep_fs::StoreView;
use lockstep_fs::keys::REPLICATED;
use lockstep_fs::store::{ChangeFeed, ChangedRecords, DeltaJob, ImageChunk};
use lockstep_repl::message::{BarrierName, Request, ResyncScope};
use lockstep_types::{Generation, SyncId};

use crate::api::{Operations, Peer, PeerBase, ResyncError, execute};
use crate::limits::RECORD_RUN_BYTES;
use crate::pipeline::RequestPipeline;
use crate::source::ResyncSource;
use record_runs::{RecordRun, RecordRuns};

/// Bytes of records in one message, without the last record.
const MESSAGE_BYTES: usize = 512 << 10;

/// Changed records in one message.
const MESSAGE_RECORDS: usize = 4096;

/// When no more changed records than this are left, metadata operations may wait for the time that the records take.
const TAIL_RECORDS: usize = 512;

/// Rounds of changes after which the tail is sent even if it is long: operations come as fast as changes are
/// sent. The tail then has at most [`TAIL_RECORDS_MAX`] records, and those of the operations under way.
const ROUNDS_MAX: usize = 16;

/// When more changed records than this are left, no metadata operation begins until half of the records are sent.
const RECORDS_MAX: usize = 128 << 10;

/// The value of [`RECORDS_MAX`] for the last rounds, before the tail.
const TAIL_RECORDS_MAX: usize = 8 * TAIL_RECORDS;

/// The resync that a primary begins.
#[derive(Clone, Copy, Debug)]
pub struct NewResync {
    /// Its name.
    pub sync: SyncId,
    /// The generation of the primary.
    pub generation: Generation,
    /// The places that it looks at.
    pub start: ResyncStart,
}

/// The places that a resync looks at, from its begin on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResyncStart {
    /// Everything.
    Everything,
    /// The changes since the base of the secondary's copy, which the delta has.
    Changes(PeerBase),
    /// The changes since a barrier that both nodes know. The delta has taken over the marks since then.
    SinceBarrier(BarrierName),
}

impl ResyncStart {
    const fn scope(self) -> ResyncScope {
        match self {
            Self::Everything => ResyncScope::Everything,
            Self::Changes(_) => ResyncScope::Changes,
            Self::SinceBarrier(name) => ResyncScope::SinceBarrier(name),
        }
    }
}

/// A namespace that was sent, except for the last changes.
pub struct SentImage<'a> {
    changes: ChangeFeed<'a>,
    /// The job by which the delta hears of the image.
    job: DeltaJob,
    /// The generation, if everything was sent.
    whole: Option<Generation>,
}

/// Carries the namespace over, except for the last changes: all of it, or the records of the delta. The rest is
/// for [`send_tail`].
pub fn send_image<'a>(
    source: ResyncSource<'a>,
    peer: &dyn Peer,
    resync: NewResync,
    operations: &dyn Operations,
) -> Result<SentImage<'a>, ResyncError> {
    let scope = resync.start.scope();
    let whole = scope.is_whole();
    let job = source.delta.begin_image(whole);
    let begin = Request::BeginResync {
        sync: resync.sync,
        scope,
    };
    execute(peer, "begin a resync", begin, &[])?;
    // Before the first record is read: no change may be missed.
    let changes = source.image.follow_changes(RECORDS_MAX);
    let mut sender = NamespaceSender {
        view: source.view,
        changes,
        limit: RECORDS_MAX,
        operations,
        requests: RequestPipeline::new(peer),
        runs: RecordRuns::new(peer),
    };
    let of_delta = match resync.start {
        ResyncStart::Everything => Some(ChangedRecords::any()),
        ResyncStart::Changes(base) => base.records(source.delta),
        ResyncStart::SinceBarrier(_) => source.delta.adopted_records(),
    };
    let of_delta = of_delta.ok_or(ResyncError::DeltaEnded)?;
    if of_delta.all {
        source.image.settle_records()?;
        for table in REPLICATED {
            sender.send_table(table)?;
        }
    }
    sender.changes.extend(of_delta.keys);
    sender.send_rounds()?;
    sender.requests.send("tidy up", Request::FlushImage, &[])?;
    // The flush takes time, in which more records change.
    sender.send_rounds()?;
    sender.limit = TAIL_RECORDS_MAX;
    sender.changes.limit(TAIL_RECORDS_MAX);
    sender.send_rounds()?;
    Ok(SentImage {
        changes: sender.changes,
        job,
        whole: whole.then_some(resync.generation),
    })
}

/// Carries the last changes over. No metadata operation may be under way before the end, unless the connection is lost.
pub fn send_tail(
    source: ResyncSource<'_>,
    peer: &dyn Peer,
    image: &SentImage<'_>,
) -> Result<(), ResyncError> {
    // Before the last changes are taken: every record that the delta has now is among them, or was sent before.
    source.delta.image_held(image.job, image.whole);
    let mut requests = RequestPipeline::new(peer);
    send_changes(&mut requests, &image.changes, usize::MAX)?;
    let end = Request::EndImage {
        applied: source.image.applied(),
        inos_below: source.image.inos_below(),
    };
    // No operation is under way that changes the list.
    let snapshots = (source.image.snapshots(), source.image.last_serial()?);
    let snapshots = postcard::to_allocvec(&snapshots)?;
    requests.send("end the image", end, &snapshots)?;
    requests.finish()?;
    source.delta.image_arrived(image.job);
    Ok(())
}

/// The state of a transfer of the namespace.
struct NamespaceSender<'a, 'p> {
    view: &'a dyn StoreView,
    changes: ChangeFeed<'a>,
    /// Most changed records left for which operations need not wait.
    limit: usize,
    operations: &'p dyn Operations,
    requests: RequestPipeline<'p>,
    runs: RecordRuns<'p>,
}

impl NamespaceSender<'_, '_> {
    fn send_table(&mut self, table: u8) -> Result<(), ResyncError> {
        let mut after = Vec::new();
        loop {
            let next = if self.runs.take_uncompared() {
                self.send_chunk(table, &after, MESSAGE_BYTES)?
            } else {
                self.compare_run(table, &after)?
            };
            match next {
                Some(next) => after = next,
                None => break,
            }
        }
        while let Some(run) = self.runs.next_differing()? {
            self.send_run(&run)?;
        }
        Ok(())
    }

    /// Asks whether the next run differs, and sends the run that was found to differ meanwhile. Returns the key after which the next run
    /// starts.
    fn compare_run(&mut self, table: u8, after: &[u8]) -> Result<Option<Vec<u8>>, ResyncError> {
        let chunk = ImageChunk::read(self.view, table, after, RECORD_RUN_BYTES)?;
        if let Some(run) = self.runs.begin(&chunk)? {
            self.send_run(&run)?;
        }
        self.give_way(0)?;
        Ok(next_start(chunk))
    }

    /// Sends the records of a run as they are now. More than the run is harmless.
    fn send_run(&mut self, run: &RecordRun) -> Result<(), ResyncError> {
        let mut after = run.after.clone();
        while let Some(next) = self.send_chunk(run.table, &after, RECORD_RUN_BYTES)? {
            if run.is_over(&next) {
                break;
            }
            after = next;
        }
        Ok(())
    }

    /// Sends a run of records. Returns the key after which the next run starts.
    fn send_chunk(
        &mut self,
        table: u8,
        after: &[u8],
        bytes_max: usize,
    ) -> Result<Option<Vec<u8>>, ResyncError> {
        let chunk = ImageChunk::read(self.view, table, after, bytes_max)?;
        let bytes = postcard::to_allocvec(&chunk)?;
        self.requests
            .send("load records", Request::ImageChunk, &bytes)?;
        self.give_way(bytes.len())?;
        Ok(next_start(chunk))
    }

    /// Lets clients' operations get on after so many bytes of records.
    fn give_way(&mut self, bytes: usize) -> Result<(), ResyncError> {
        // Operations may wait for the changes, so these have no pace.
        if self.changes.len() <= self.limit / 4 {
            self.operations.take_turn(bytes as u64);
        }
        // Twice as many changes as records: otherwise operations could stay ahead forever.
        send_changes(&mut self.requests, &self.changes, 2 * MESSAGE_RECORDS)?;
        self.release_operations();
        Ok(())
    }

    /// Lets waiting operations begin, if few changes are left.
    fn release_operations(&self) {
        if self.changes.len() <= self.limit / 2 {
            self.operations.caught_up();
        }
    }

    /// Sends changes until few are left, or until [`ROUNDS_MAX`] rounds show that the operations are as fast.
    fn send_rounds(&mut self) -> Result<(), ResyncError> {
        for _ in 0..ROUNDS_MAX {
            send_changes(&mut self.requests, &self.changes, self.changes.len())?;
            self.requests.finish()?;
            self.release_operations();
            if self.changes.len() <= TAIL_RECORDS {
                break;
            }
        }
        Ok(())
    }
}

/// Sends at most `records_max` of the present changes.
fn send_changes(
    requests: &mut RequestPipeline<'_>,
    changes: &ChangeFeed<'_>,
    records_max: usize,
) -> Result<(), ResyncError> {
    let mut left = records_max;
    while left > 0 {
        let taken = changes.take(left.min(MESSAGE_RECORDS), MESSAGE_BYTES)?;
        if taken.is_empty() {
            break;
        }
        left -= taken.len();
        let bytes = postcard::to_allocvec(&taken)?;
        requests.send("load changed records", Request::ImageChanges, &bytes)?;
    }
    Ok(())
}

/// The key after which the next chunk starts.
fn next_start(mut chunk: ImageChunk) -> Option<Vec<u8>> {
    if chunk.last {
        return None;
    }
    chunk.records.pop().map(|record| record.key)
}
