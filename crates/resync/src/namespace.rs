//! The primary's side of carrying the namespace over (rules P10, P18).
//!
//! First all records, table by table in the order of their keys, while clients go on here alone
//! ([`send_image`]). What their operations change meanwhile is followed by its keys, and sent again, in
//! rounds: each sends what has changed during the one before. When little is left the core admits no more
//! metadata operations, waits for those under way, and the rest is sent ([`send_tail`]): so the time for
//! which they wait does not depend on how many files there are.
//!
//! What the secondary has before the end is no namespace that ever was: a file may have two names, or a
//! directory an entry without an inode. Nobody looks at it before the tail is there, and until then and long
//! after, its copy is marked out of sync.

use lockstep_fs::Store;
use lockstep_fs::keys::REPLICATED;
use lockstep_fs::store::{ChangeFeed, ImageChunk};
use lockstep_repl::message::Request;
use lockstep_types::SyncId;

use crate::line::Line;
use crate::{Operations, Peer, ResyncError, order};

/// Bytes of records in one message, but for the last record.
const MESSAGE_BYTES: usize = 512 << 10;

/// Changed records in one message.
const MESSAGE_RECORDS: usize = 4096;

/// With so few changed records left, metadata operations may be held back for the time that they take.
const TAIL_RECORDS: usize = 512;

/// Rounds of changes after which the tail is sent however long it is: operations come as fast as changes are
/// sent. It is no longer than [`TAIL_RECORDS_MAX`] then, but for what was under way.
const ROUNDS_MAX: usize = 16;

/// With more changed records left than this, metadata operations are not begun until half of them are sent.
const RECORDS_MAX: usize = 128 << 10;

/// The same in the last rounds, before the tail.
const TAIL_RECORDS_MAX: usize = 8 * TAIL_RECORDS;

/// Carries the namespace over, in the resync of that name, but for what has changed at the end. Returns what
/// follows that: for [`send_tail`].
pub fn send_image<'a>(
    store: &'a Store,
    peer: &dyn Peer,
    sync: SyncId,
    operations: &dyn Operations,
) -> Result<ChangeFeed<'a>, ResyncError> {
    order(peer, "begin a resync", Request::BeginResync { sync }, &[])?;
    // Before the first record is read.
    let changes = store.image().follow_changes(RECORDS_MAX);
    store.checkpoint()?;
    let mut sender = Sender {
        store,
        changes,
        limit: RECORDS_MAX,
        operations,
        line: Line::new(peer),
    };
    for table in REPLICATED {
        sender.send_table(table)?;
    }
    sender.send_rounds()?;
    sender.line.send("tidy up", Request::SettleImage, &[])?;
    // It takes its time, in which more changes.
    sender.send_rounds()?;
    sender.limit = TAIL_RECORDS_MAX;
    sender.changes.limit(TAIL_RECORDS_MAX);
    sender.send_rounds()?;
    Ok(sender.changes)
}

/// Carries the last changes over. No metadata operation may be under way.
pub fn send_tail(
    store: &Store,
    peer: &dyn Peer,
    changes: &ChangeFeed<'_>,
) -> Result<(), ResyncError> {
    let mut line = Line::new(peer);
    send_changes(&mut line, changes, usize::MAX)?;
    let end = Request::EndImage {
        applied: store.applied(),
        inos_below: store.image().inos_below(),
    };
    line.send("end the image", end, &[])?;
    line.finish()
}

/// What sending needs at every step.
struct Sender<'a, 'p> {
    store: &'a Store,
    changes: ChangeFeed<'a>,
    /// Most changed records left that operations need not wait for.
    limit: usize,
    operations: &'p dyn Operations,
    line: Line<'p>,
}

impl Sender<'_, '_> {
    fn send_table(&mut self, table: u8) -> Result<(), ResyncError> {
        let mut after = Vec::new();
        loop {
            let chunk = self.store.image().chunk(table, &after, MESSAGE_BYTES)?;
            let bytes = postcard::to_allocvec(&chunk)?;
            self.line
                .send("load records", Request::ImageChunk, &bytes)?;
            // Twice as much as of the records: or operations could keep ahead for ever.
            send_changes(&mut self.line, &self.changes, 2 * MESSAGE_RECORDS)?;
            self.let_go_on();
            match next_start(chunk) {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    /// Lets operations begin that wait, if few changes are left.
    fn let_go_on(&self) {
        if self.changes.len() <= self.limit / 2 {
            self.operations.caught_up();
        }
    }

    /// Sends changes until few are left, or until there is no getting ahead of them.
    fn send_rounds(&mut self) -> Result<(), ResyncError> {
        for _ in 0..ROUNDS_MAX {
            send_changes(&mut self.line, &self.changes, self.changes.len())?;
            self.line.finish()?;
            self.let_go_on();
            if self.changes.len() <= TAIL_RECORDS {
                break;
            }
        }
        Ok(())
    }
}

/// Sends up to so many changes, of those that there are.
fn send_changes(
    line: &mut Line<'_>,
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
        line.send("load changed records", Request::ImageChanges, &bytes)?;
    }
    Ok(())
}

/// Where the chunk after this one starts.
fn next_start(mut chunk: ImageChunk) -> Option<Vec<u8>> {
    if chunk.last {
        return None;
    }
    chunk.records.pop().map(|record| record.key)
}
