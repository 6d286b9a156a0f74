//! The secondary's side of a comparison.
//!
//! Answers are bounded by what fits the header of a frame and by what can be read in a short time;
//! each says how far it goes.

use std::ops::ControlFlow;

use lockstep_fs::{OpError, Store, keys, record};
use lockstep_repl::message::{Request, Response};
use lockstep_types::{Hash128, Ino};

use crate::digest::{self, Limits};

/// Most digests in one answer, and bytes of content hashed for it.
const LIMITS: Limits = Limits {
    inodes: 2048,
    bytes: 64 << 20,
};

/// Bytes of keys and hashes in one answer, but for the last record.
const RECORDS_BYTES_MAX: usize = 32 << 10;

/// Answers a question of a comparison, other than those about blocks and holes, which
/// `lockstep_resync` answers. The error text is for the primary's operator.
pub fn answer(store: &Store, request: &Request) -> Result<Response, String> {
    match request {
        Request::Digests { from, to } => digests(store, *from, *to),
        Request::Inspect { ino } => inspect(store, *ino),
        Request::Records { table, ino, after } => records(store, *table, *ino, after),
        _ => return Err("this is not a question of a comparison".to_owned()),
    }
    .map_err(|error| error.to_string())
}

fn digests(store: &Store, from: u64, to: u64) -> Result<Response, OpError> {
    let found = digest::digests(store, from, to, LIMITS)?;
    Ok(Response::Digests {
        to: found.to,
        digests: found.list,
    })
}

fn inspect(store: &Store, ino: Ino) -> Result<Response, OpError> {
    Ok(Response::Inspected {
        record: store
            .replica()
            .inode_now(ino)?
            .map(|inode| record::encode(&inode)),
        content_bytes: store.replica().content_bytes(ino)?,
    })
}

/// A table that is not replicated has no records here.
fn records(store: &Store, table: u8, ino: Ino, after: &[u8]) -> Result<Response, OpError> {
    let mut records = Vec::new();
    let mut bytes = 0;
    let mut last = true;
    if keys::REPLICATED.contains(&table) {
        store
            .replica()
            .each_record(table, ino, after, &mut |key, value| {
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
