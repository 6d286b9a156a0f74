//! The secondary's side of a comparison.
//!
//! Each answer fits the header of a frame and takes a short time to read. Each answer says
//! how far it goes.

use std::ops::{ControlFlow, Range};

use lockstep_fs::{OpError, StoreView, keys, record};
use lockstep_repl::checked::SumsWord;
use lockstep_repl::message::{ComparePurpose, ContentSource, Request, RequestFailure, Response};
use lockstep_resync::limits::BLOCKS_MAX;
use lockstep_resync::{AnswerError, bits, pieces};
use lockstep_types::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use lockstep_types::{Hash128, Ino};

use crate::deep_copy::{DeepCopy, READ_BLOCKS_MAX, RepairError};
use crate::digest::{self, ContentPart, DigestLimits, Digests, VOID_THERE};
use crate::own_sums::CheckedView;

/// Most digests in one answer, and most bytes of hashed content.
const LIMITS: DigestLimits = DigestLimits {
    inodes: 2048,
    bytes: 64 << 20,
};

/// Bytes of keys and hashes in one answer, without the last record.
const RECORDS_BYTES_MAX: usize = 32 << 10;

/// Answers a request of a comparison that reads as programs do, except for requests about blocks and holes, which
/// `lockstep_resync` answers. The error text is for the primary's operator.
pub fn answer(view: &dyn StoreView, request: &Request) -> Result<Response, AnswerError> {
    match request {
        Request::DigestOfBatch { from, to, .. } => {
            digest_of_batch(view, *from..*to, ContentPart::Bytes)
        }
        Request::Digests { from, to, .. } => all_digests(view, *from..*to, ContentPart::Bytes),
        Request::Inspect { ino } => Ok(inspect(view, *ino)?),
        Request::Records { table, ino, after } => Ok(records(view, *table, *ino, after)?),
        _ => Err(AnswerError::OtherRequest { of: "a comparison" }),
    }
}

/// Whether [`answer_deep`] answers a request.
pub const fn is_deep(request: &Request) -> bool {
    match request {
        Request::InspectBlocks { .. }
        | Request::ReadBlocks { .. }
        | Request::HealBlocks { .. }
        | Request::RemakeSums { .. }
        | Request::KeepBlocks { .. } => true,
        Request::DigestOfBatch { source, .. } | Request::Digests { source, .. } => {
            !matches!(source, ContentSource::Memory)
        }
        Request::CompareBlocks { purpose, .. } | Request::CompareHole { purpose, .. } => {
            matches!(purpose, ComparePurpose::Verify(ContentSource::Disk))
        }
        _ => false,
    }
}

/// Answers a request of a comparison that reads the disk, or repairs this copy.
///
/// # Errors
/// The text is for the primary's operator.
pub fn answer_deep(
    copy: DeepCopy<'_>,
    request: &Request,
    payload: &[u8],
) -> Result<Response, RequestFailure> {
    let failed = |error: RepairError| RequestFailure(error.to_string());
    let count = |blocks: u32| usize::try_from(blocks).unwrap_or(usize::MAX);
    match *request {
        Request::InspectBlocks {
            ino,
            offset,
            blocks,
            secret,
        } => {
            let found = copy.inspect(ino, offset, count(blocks), secret);
            found.map(Response::Blocks).map_err(failed)
        }
        Request::ReadBlocks {
            ino,
            offset,
            blocks,
        } => {
            let count = count(blocks).min(READ_BLOCKS_MAX);
            let bytes = copy.read(ino, offset, count);
            bytes.map(Response::Bytes).map_err(failed)
        }
        Request::HealBlocks { ino, offset } => {
            let healed = copy.heal(ino, offset, payload);
            healed.map(Response::SetAside).map_err(failed)
        }
        Request::RemakeSums {
            ino,
            offset,
            ref hashes,
        } => {
            let remade = copy.remake(ino, offset, hashes);
            remade.map(|()| Response::SetAside(true)).map_err(failed)
        }
        Request::KeepBlocks {
            ino,
            offset,
            blocks,
        } => {
            let kept = copy.keep(ino, offset, count(blocks));
            kept.map(Response::SetAside).map_err(failed)
        }
        _ => Ok(compare_with_disk(copy, request)?),
    }
}

/// A comparison with the disk, which changes nothing.
fn compare_with_disk(copy: DeepCopy<'_>, request: &Request) -> Result<Response, AnswerError> {
    let tree = copy.store.tree();
    let view = CheckedView::new(&tree, copy.sums);
    let by_sums = ContentPart::Sum {
        sums: copy.sums,
        void: VOID_THERE,
    };
    let source = ContentSource::Sums;
    let mut response = match request {
        Request::DigestOfBatch {
            from,
            to,
            source: of,
        } if *of == source => {
            return digest_of_batch(&tree, *from..*to, by_sums);
        }
        Request::Digests {
            from,
            to,
            source: of,
        } if *of == source => {
            return all_digests(&tree, *from..*to, by_sums);
        }
        Request::CompareBlocks {
            ino,
            offset,
            hashes,
            ..
        } => compare_blocks(&view, *ino, *offset, hashes)?,
        Request::CompareHole {
            ino,
            offset,
            length,
            ..
        } => compare_hole(&view, *ino, *offset, *length)?,
        _ => answer(&view, request)?,
    };
    if let Response::DigestOfBatch { sums, .. }
    | Response::Digests { sums, .. }
    | Response::Checked { sums, .. } = &mut response
    {
        *sums = view.take();
    }
    Ok(response)
}

fn compare_blocks(
    view: &CheckedView<'_>,
    ino: Ino,
    offset: u64,
    theirs: &[Hash128],
) -> Result<Response, AnswerError> {
    let count = theirs.len();
    if count > BLOCKS_MAX {
        let what = "blocks";
        return Err(AnswerError::TooMany { count, what });
    }
    let mut blocks = vec![0; count * BLOCK_BYTES];
    check_range(offset, blocks.len() as u64)?;
    view.read_raw(ino, offset, &mut blocks)?;
    let ours = pieces::hashes(&blocks);
    let differing = ours.iter().zip(theirs).map(|(ours, theirs)| ours != theirs);
    Ok(checked(bits::pack(differing)))
}

fn compare_hole(
    view: &CheckedView<'_>,
    ino: Ino,
    offset: u64,
    length: u64,
) -> Result<Response, AnswerError> {
    check_range(offset, length)?;
    let size = view.file_times(ino)?.map_or(0, |times| times.size);
    view.check_hole(ino, &(offset..(offset + length).min(size)));
    let is_zero = view.is_zero(ino, offset, length)?;
    Ok(checked(bits::pack([!is_zero])))
}

fn checked(differing: Vec<u8>) -> Response {
    let sums = SumsWord::default();
    Response::Checked { differing, sums }
}

/// Refuses ranges that no file can have. The last block of the largest file ends with the file.
fn check_range(offset: u64, length: u64) -> Result<(), AnswerError> {
    match offset.checked_add(length) {
        Some(end) if end <= FILE_BYTES_MAX && offset.is_multiple_of(BLOCK_BYTES as u64) => Ok(()),
        _ => Err(AnswerError::OutsideFile { offset, length }),
    }
}

fn digest_of_batch(
    view: &dyn StoreView,
    Range { start, end }: Range<u64>,
    content: ContentPart<'_>,
) -> Result<Response, AnswerError> {
    let found = digest::digests_by(view, start, end, digest::BATCH, content)?;
    Ok(Response::DigestOfBatch {
        to: found.to,
        hash: found.hash(),
        sums: SumsWord::default(),
    })
}

fn all_digests(
    view: &dyn StoreView,
    Range { start, end }: Range<u64>,
    content: ContentPart<'_>,
) -> Result<Response, AnswerError> {
    let found: Digests = digest::digests_by(view, start, end, LIMITS, content)?;
    Ok(Response::Digests {
        to: found.to,
        digests: found.list,
        sums: SumsWord::default(),
    })
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
