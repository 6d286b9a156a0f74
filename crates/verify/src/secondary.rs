//! The secondary's side of a comparison.
//!
//! Each answer fits the header of a frame and takes a short time to read. Each answer says
//! how far it goes.

use std::ops::{ControlFlow, Range};

use lockstep_fs::view::disk_view::DiskView;
use lockstep_fs::{OpError, StoreView, keys, record};
use lockstep_repl::message::{ContentSource, Request, Response};
use lockstep_resync::AnswerError;
use lockstep_types::{Hash128, Ino};

use crate::digest::{self, DigestLimits, Digests};

/// Most digests in one answer, and most bytes of hashed content.
const LIMITS: DigestLimits = DigestLimits {
    inodes: 2048,
    bytes: 64 << 20,
};

/// Bytes of keys and hashes in one answer, without the last record.
const RECORDS_BYTES_MAX: usize = 32 << 10;

/// Answers a request of a comparison, except for requests about blocks and holes, which
/// `lockstep_resync` answers. The error text is for the primary's operator.
pub fn answer(view: &dyn StoreView, request: &Request) -> Result<Response, AnswerError> {
    match request {
        Request::DigestOfBatch { from, to, source } => {
            let found = digests(view, *from..*to, *source, digest::BATCH)?;
            Ok(Response::DigestOfBatch {
                to: found.to,
                hash: found.hash(),
            })
        }
        Request::Digests { from, to, source } => {
            let found = digests(view, *from..*to, *source, LIMITS)?;
            Ok(Response::Digests {
                to: found.to,
                digests: found.list,
            })
        }
        Request::Inspect { ino } => Ok(inspect(view, *ino)?),
        Request::Records { table, ino, after } => Ok(records(view, *table, *ino, after)?),
        _ => Err(AnswerError::OtherRequest { of: "a comparison" }),
    }
}

fn digests(
    view: &dyn StoreView,
    numbers: Range<u64>,
    source: ContentSource,
    limits: DigestLimits,
) -> Result<Digests, OpError> {
    let Range { start, end } = numbers;
    match source {
        ContentSource::Memory => digest::digests(view, start, end, limits),
        ContentSource::Disk => digest::digests(&DiskView(view), start, end, limits),
    }
}

fn inspect(view: &dyn StoreView, ino: Ino) -> Result<Response, OpError> {
    Ok(Response::Inspected {
        record: view.inode(ino)?.map(|inode| record::encode(&inode)),
        content_bytes: view.content_bytes(ino)?,
    })
}

/// The answer has no records of a table that is not replicated.
fn records(view: &dyn StoreView, table: u8, ino: Ino, after: &[u8]) -> Result<Response, OpError> {
    let mut records = Vec::new();
    let mut bytes = 0;
    let mut last = true;
    if keys::REPLICATED.contains(&table) {
        view.each_record(table, ino, after, &mut |key, value| {
            if bytes >= RECORDS_BYTES_MAX {
                last = false;
                return ControlFlow::Break(());
            }
            let hash = Hash128::of(value);
            bytes += key.len() + hash.0.len();
            records.push((key.to_vec(), hash));
            ControlFlow::Continue(())
        })?;
    }
    Ok(Response::Records { records, last })
}
