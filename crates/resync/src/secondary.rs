//! The secondary's side of resync and distributed recovery: carries out each request on its
//! store. Several requests may run at once, also beside mirrored operations; the primary's locks keep their ranges
//! apart.
//!
//! Every request is checked before use: no content of a request causes a panic here, or takes more memory than one
//! write.

pub(crate) mod checked_records;

use lockstep_fs::store::{FallbackAccess, ImageChange, ImageChunk};
use lockstep_fs::{OpError, Store, StoreError, StoreView};
use lockstep_repl::message::{
    ComparePurpose, ContentSource, Request, Response, WireContent, WireFileTimes,
};
use lockstep_types::limits::{BLOCK_BYTES, FILE_BYTES_MAX, WRITE_BYTES_MAX};
use lockstep_types::mutants::{Mutant, is_active};
use lockstep_types::{Errno, Hash128, Ino};

use crate::api::AnswerError;
use crate::bits;
use crate::described::{DescribedFile, FileAnswers};
use crate::file_times::from_wire;
use crate::limits::{BLOCKS_MAX, FILES_MAX, HASHED_FILE_BYTES_MAX, RANGES_MAX, RECORD_RUN_BYTES};
use crate::namespace::record_runs;
use crate::pieces;
use crate::summed_content::SummedContent;
use checked_records::{check_after, check_change, check_chunk, check_table};

/// Carries out one request. The error text is for the primary's operator.
///
/// Answers the requests of a resync and of a recovery; all other requests belong to other modules and are refused.
///
/// The fallback of the copy never fails a resync: on a full disk its room is given back.
pub fn answer(store: &Store, request: &Request, payload: &[u8]) -> Result<Response, AnswerError> {
    let answered = match answer_once(store, request, payload) {
        Err(AnswerError::Store(error))
            if is_full(&error) && FallbackAccess::of(store).give_up()? =>
        {
            answer_once(store, request, payload)
        }
        answered => answered,
    }?;
    checkpoint_if_due(store)?;
    Ok(answered)
}

fn is_full(error: &OpError) -> bool {
    matches!(error.errno(), Errno::NoSpace | Errno::QuotaExceeded)
}

fn answer_once(store: &Store, request: &Request, payload: &[u8]) -> Result<Response, AnswerError> {
    match request {
        Request::BeginResync { .. } => done(store.image().begin()),
        Request::ImageChunk => load_chunk(store, payload),
        Request::CompareRecords {
            table,
            after,
            last,
            hash,
        } => compare_records(store, *table, (after, last), *hash),
        Request::ImageChanges => load_changes(store, payload),
        Request::FlushImage => done(store.image().prepare_finish()),
        Request::EndImage {
            applied,
            inos_below,
        } => {
            let (snapshots, last_serial) = postcard::from_bytes::<(Vec<_>, u32)>(payload)?;
            store.image().load_snapshots(&snapshots, last_serial);
            done(store.image().finish(*applied, *inos_below))
        }
        Request::SetFiles { files } => set_files(store, files, payload),
        Request::CompareBlocks {
            ino,
            offset,
            hashes,
            purpose,
        } => compare_blocks(store, *ino, *offset, hashes, *purpose),
        Request::CompareRun {
            ino,
            offset,
            blocks,
            hash,
        } => compare_run(store, *ino, (*offset, *blocks), *hash),
        Request::CompareSums {
            ino,
            secret,
            runs,
            sums,
        } => compare_sums(store, *ino, *secret, (runs, sums)),
        Request::WriteBlocks { ino, ranges } => write_blocks(store, *ino, ranges, payload),
        Request::CompareHole {
            ino,
            offset,
            length,
            purpose,
        } => compare_hole(store, *ino, (*offset, *length), *purpose),
        Request::Reserve { ino, ranges, zero } => reserve(store, *ino, ranges, *zero),
        Request::RecoverRange { ino, offset, times } => {
            recover(store, *ino, *offset, times, payload)
        }
        _ => Err(AnswerError::OtherRequest {
            of: "resync or recovery",
        }),
    }
}

fn done<E>(result: Result<(), E>) -> Result<Response, AnswerError>
where
    AnswerError: From<E>,
{
    result?;
    Ok(Response::Done)
}

/// Keeps memory and log bounded, although a resync changes much.
fn checkpoint_if_due(store: &Store) -> Result<(), AnswerError> {
    if store.needs_checkpoint() {
        store.checkpoint()?;
    }
    Ok(())
}

fn load_chunk(store: &Store, payload: &[u8]) -> Result<Response, AnswerError> {
    let chunk: ImageChunk = postcard::from_bytes(payload)?;
    check_chunk(&chunk)?;
    store.image().load_chunk(&chunk)?;
    Ok(Response::Done)
}

/// Takes a run of records that is equal as one that has come.
fn compare_records(
    store: &Store,
    table: u8,
    (after, last): (&[u8], &[u8]),
    theirs: Hash128,
) -> Result<Response, AnswerError> {
    check_table(table)?;
    check_after(table, after)?;
    // The last record of a run may be as long as all of the others. A run that is longer here is another one.
    let mut ours = ImageChunk::read(&store.tree(), table, after, 2 * RECORD_RUN_BYTES)?;
    if !last.is_empty() {
        ours.records.retain(|record| *record.key <= *last);
        ours.last = false;
    }
    let is_equal = record_runs::hash(&ours)? == theirs;
    if is_equal {
        store.image().load_chunk(&ours)?;
    }
    Ok(Response::Differing(bits::pack([!is_equal])))
}

fn load_changes(store: &Store, payload: &[u8]) -> Result<Response, AnswerError> {
    let changes: Vec<ImageChange> = postcard::from_bytes(payload)?;
    for change in &changes {
        check_change(change)?;
    }
    if !changes.is_sorted_by(|one, next| one.key < next.key) {
        return Err(AnswerError::ChangesOutOfOrder);
    }
    done(store.image().load_changes(&changes))
}

fn check_count(count: usize, max: usize, what: &'static str) -> Result<(), AnswerError> {
    if count > max {
        return Err(AnswerError::TooMany { count, what });
    }
    Ok(())
}

/// Refuses a request about a file of the primary that this node lacks.
fn check_found(found: bool, ino: Ino) -> Result<(), AnswerError> {
    if found {
        return Ok(());
    }
    Err(AnswerError::NoFile { ino })
}

fn set_files(
    store: &Store,
    files: &[DescribedFile],
    payload: &[u8],
) -> Result<Response, AnswerError> {
    check_count(files.len(), FILES_MAX, "files")?;
    check_payload_of(files, payload)?;
    let mut told = told_contents(store, files, payload)?.into_iter();
    let mut answers = Vec::with_capacity(files.len());
    for (ino, times, content) in files {
        answers.push(match content {
            WireContent::Bytes => {
                let told = told.next().ok_or(AnswerError::OtherPayload)?;
                [put_file(store, *ino, times, told)?, false]
            }
            WireContent::Hash(hash) => [set_times(store, *ino, times, Some(*hash))?, false],
            WireContent::Untold => {
                set_times(store, *ino, times, None)?;
                [true, store.tree().next_data(*ino, 0)?.is_none()]
            }
        });
    }
    Ok(Response::Differing(FileAnswers::pack(answers).0))
}

/// The bytes of each file whose content comes with the request, and whether the file has them already. The old bytes of all others are kept
/// for the snapshots.
fn told_contents<'a>(
    store: &Store,
    files: &[DescribedFile],
    payload: &'a [u8],
) -> Result<Vec<(&'a [u8], bool)>, AnswerError> {
    let (mut told, mut changes) = (Vec::new(), Vec::new());
    let mut rest = payload;
    for (ino, times, content) in files {
        if *content != WireContent::Bytes {
            continue;
        }
        let length = usize::try_from(times.size).unwrap_or(usize::MAX);
        let (bytes, after) = rest
            .split_at_checked(length)
            .ok_or(AnswerError::OtherPayload)?;
        rest = after;
        let is_equal = is_equal(store, *ino, times, bytes)?;
        if !is_equal {
            changes.push((*ino, 0..u64::MAX));
        }
        told.push((bytes, is_equal));
    }
    store.replica().keep_ahead(&changes)?;
    Ok(told)
}

/// Refuses bytes that are more or fewer than those of the files, before anything changes.
fn check_payload_of(files: &[DescribedFile], payload: &[u8]) -> Result<(), AnswerError> {
    check_count(payload.len(), WRITE_BYTES_MAX, "bytes")?;
    let told = files
        .iter()
        .filter(|(.., content)| *content == WireContent::Bytes);
    let sizes = told.map(|(_, times, _)| u128::from(times.size));
    if sizes.sum::<u128>() == payload.len() as u128 {
        Ok(())
    } else {
        Err(AnswerError::OtherPayload)
    }
}

/// Takes over size and times of a file. Returns whether its content differs from the hash.
fn set_times(
    store: &Store,
    ino: Ino,
    times: &WireFileTimes,
    hash: Option<Hash128>,
) -> Result<bool, AnswerError> {
    check_found(store.replica().set_file_times(ino, &from_wire(times))?, ino)?;
    let differs = match hash {
        Some(_) if times.size > HASHED_FILE_BYTES_MAX => true,
        // A hole differs: the file takes space on the primary and must take space here, too.
        Some(_) if store.tree().next_hole(ino, 0)? < times.size => true,
        Some(hash) => pieces::whole_file_hash(&store.tree(), ino, times.size)? != hash,
        None => true,
    };
    if hash.is_some() && !differs {
        let (view, sums) = (&store.tree(), store.sums());
        SummedContent { view, sums }.adopt_file(ino, times.size);
    }
    Ok(differs)
}

/// Whether a file of the primary has this content here, byte for byte.
fn is_equal(
    store: &Store,
    ino: Ino,
    times: &WireFileTimes,
    bytes: &[u8],
) -> Result<bool, AnswerError> {
    let view = store.tree();
    check_found(view.file_times(ino)?.is_some(), ino)?;
    Ok(view.content_bytes(ino)? == times.size && {
        let ours = view.whole_content(ino, times.size)?;
        ours.is_dense && ours.bytes == bytes
    })
}

/// Makes a file equal. Returns whether its content differed.
fn put_file(
    store: &Store,
    ino: Ino,
    times: &WireFileTimes,
    (bytes, is_equal): (&[u8], bool),
) -> Result<bool, AnswerError> {
    let times = from_wire(times);
    if is_equal {
        store.replica().set_file_times(ino, &times)?;
        adopt(store, ino, 0, bytes);
    } else {
        store.replica().put_file(ino, &times, bytes)?;
    }
    Ok(!is_equal)
}

/// Makes void sums of bytes that were found equal.
fn adopt(store: &Store, ino: Ino, offset: u64, bytes: &[u8]) {
    let (view, sums) = (&store.tree(), store.sums());
    SummedContent { view, sums }.adopt(ino, offset, bytes);
}

/// Refuses ranges that no file can have. The last block of the largest file ends with the file.
fn check_range(offset: u64, length: u64) -> Result<(), AnswerError> {
    match offset.checked_add(length) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        _ => Err(AnswerError::OutsideFile { offset, length }),
    }
}

/// Refuses a comparison with the disk, which `lockstep_verify` answers.
fn check_purpose(purpose: ComparePurpose) -> Result<(), AnswerError> {
    if purpose == ComparePurpose::Verify(ContentSource::Disk) {
        let of = "a comparison that reads memory";
        return Err(AnswerError::OtherRequest { of });
    }
    Ok(())
}

/// The bytes of whole blocks, if a request may ask for them.
fn read_blocks(
    view: &dyn StoreView,
    ino: Ino,
    offset: u64,
    count: usize,
) -> Result<Vec<u8>, AnswerError> {
    check_count(count, BLOCKS_MAX, "blocks")?;
    let length = count * BLOCK_BYTES;
    check_range(offset, length as u64)?;
    let mut blocks = vec![0; length];
    view.read_raw(ino, offset, &mut blocks)?;
    Ok(blocks)
}

/// If the run differs, its blocks are compared next. From here until the differing blocks are written, the primary's lock keeps
/// mirrored writes away.
fn compare_run(
    store: &Store,
    ino: Ino,
    (offset, count): (u64, u32),
    theirs: Hash128,
) -> Result<Response, AnswerError> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let blocks = read_blocks(&store.tree(), ino, offset, count)?;
    let end = offset + blocks.len() as u64;
    let is_equal = pieces::run_hash(&blocks) == theirs && {
        let hole = store.tree().next_hole(ino, offset)?;
        // A hole that begins within the last block is the end of the file.
        hole + BLOCK_BYTES as u64 > end
    };
    if is_equal {
        adopt(store, ino, offset, &blocks);
    }
    Ok(Response::Differing(bits::pack([!is_equal])))
}

fn compare_blocks(
    store: &Store,
    ino: Ino,
    offset: u64,
    theirs: &[Hash128],
    purpose: ComparePurpose,
) -> Result<Response, AnswerError> {
    check_purpose(purpose)?;
    let blocks = read_blocks(&store.tree(), ino, offset, theirs.len())?;
    let ours = pieces::hashes(&blocks);
    let differing = ours.iter().zip(theirs).map(|(ours, theirs)| ours != theirs);
    let mut differing: Vec<bool> = differing.collect();
    if purpose.is_resync() {
        note_holes(store, ino, offset, &mut differing)?;
    }
    if purpose == ComparePurpose::Resync {
        let (view, sums) = (&store.tree(), store.sums());
        SummedContent { view, sums }.adopt_equal(ino, offset, (&blocks, &differing));
    }
    Ok(Response::Differing(bits::pack(differing)))
}

/// From here until the differing blocks are written, the primary's lock keeps mirrored writes away from all of the runs.
fn compare_sums(
    store: &Store,
    ino: Ino,
    secret: u64,
    (runs, theirs): (&[(u64, u32)], &[u64]),
) -> Result<Response, AnswerError> {
    check_count(theirs.len(), BLOCKS_MAX, "blocks")?;
    if check_ranges(runs, BLOCK_BYTES)? != theirs.len() as u64 {
        return Err(AnswerError::OtherSums);
    }
    let ours = SummedContent {
        view: &store.tree(),
        sums: store.sums(),
    };
    let Some(key) = ours.sums.key().filter(|key| key.probe() == secret) else {
        let all = std::iter::repeat_n(true, theirs.len());
        return Ok(Response::Differing(bits::pack(all)));
    };
    let (mut all, mut theirs) = (Vec::with_capacity(theirs.len()), theirs.iter());
    let kept = runs.iter().map(|&(offset, blocks)| {
        let length = usize::try_from(blocks).unwrap_or(usize::MAX) * BLOCK_BYTES;
        (offset, ours.keeps(ino, offset, length))
    });
    // The disk hears of all runs before the first one is read.
    let kept: Vec<_> = kept.collect();
    for (offset, kept) in kept {
        let told = ours.tell(&key, ino, kept)?;
        let of_run = told.sums.iter().zip(theirs.by_ref());
        let mut differing: Vec<bool> = of_run.map(|(ours, sum)| ours.get() != *sum).collect();
        note_holes(store, ino, offset, &mut differing)?;
        told.adopt_equal(ours, ino, &differing);
        all.extend(differing);
    }
    Ok(Response::Differing(bits::pack(all)))
}

/// Marks the blocks from `offset` on that lie in holes as different: they may take space on the primary.
fn note_holes(store: &Store, ino: Ino, offset: u64, blocks: &mut [bool]) -> Result<(), StoreError> {
    let block = BLOCK_BYTES as u64;
    let end = offset + blocks.len() as u64 * block;
    let mut at = offset;
    while at < end {
        let hole = store.tree().next_hole(ino, at)?;
        at = store.tree().next_data(ino, hole)?.unwrap_or(end).min(end);
        // A hole that begins within a block is the end of the file.
        let numbers =
            hole.saturating_sub(offset).div_ceil(block)..at.saturating_sub(offset).div_ceil(block);
        for number in numbers {
            let number = usize::try_from(number).ok();
            if let Some(differs) = number.and_then(|number| blocks.get_mut(number)) {
                *differs = true;
            }
        }
    }
    Ok(())
}

fn check_payload(offset: u64, payload: &[u8]) -> Result<(), AnswerError> {
    check_count(payload.len(), WRITE_BYTES_MAX, "bytes")?;
    check_range(offset, payload.len() as u64)
}

fn write_blocks(
    store: &Store,
    ino: Ino,
    ranges: &[(u64, u32)],
    payload: &[u8],
) -> Result<Response, AnswerError> {
    check_count(payload.len(), WRITE_BYTES_MAX, "bytes")?;
    if check_ranges(ranges, 1)? != payload.len() as u64 {
        return Err(AnswerError::OtherPayload);
    }
    if drops_pieces() {
        return Ok(Response::Done);
    }
    let writes = ranges.iter().map(|&(offset, length)| {
        let end = offset.saturating_add(u64::from(length));
        (ino, offset..end)
    });
    store.replica().keep_ahead(&writes.collect::<Vec<_>>())?;
    let mut rest = payload;
    for &(offset, length) in ranges {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (bytes, after) = rest
            .split_at_checked(length)
            .ok_or(AnswerError::OtherPayload)?;
        rest = after;
        store.replica().put_blocks(ino, offset, bytes)?;
    }
    Ok(Response::Done)
}

/// Refuses ranges that begin within a block, or that no file can have. Each has a number of units of so many bytes. Returns the number of
/// units of all ranges.
fn check_ranges(ranges: &[(u64, u32)], unit: usize) -> Result<u64, AnswerError> {
    check_count(ranges.len(), RANGES_MAX, "ranges")?;
    let mut units = 0;
    for &(offset, count) in ranges {
        check_block(offset)?;
        check_range(offset, u64::from(count) * unit as u64)?;
        units += u64::from(count);
    }
    Ok(units)
}

/// Refuses bytes that do not begin with a block.
const fn check_block(offset: u64) -> Result<(), AnswerError> {
    if offset.is_multiple_of(BLOCK_BYTES as u64) {
        Ok(())
    } else {
        Err(AnswerError::WithinBlock { offset })
    }
}

/// Whether this node is a wrong one, which drops content.
fn drops_pieces() -> bool {
    is_active(Mutant::ResyncDropsPiece) || is_active(Mutant::InSyncUnproved)
}

fn compare_hole(
    store: &Store,
    ino: Ino,
    (offset, length): (u64, u64),
    purpose: ComparePurpose,
) -> Result<Response, AnswerError> {
    check_purpose(purpose)?;
    check_range(offset, length)?;
    let differs = if purpose.is_resync() {
        store.replica().punch(ino, offset, length)?
    } else {
        !store.tree().is_zero(ino, offset, length)?
    };
    Ok(Response::Differing(bits::pack([differs])))
}

fn reserve(
    store: &Store,
    ino: Ino,
    ranges: &[(u64, u64)],
    zero: bool,
) -> Result<Response, AnswerError> {
    check_count(ranges.len(), RANGES_MAX, "ranges")?;
    check_found(store.tree().file_times(ino)?.is_some(), ino)?;
    for &(offset, length) in ranges {
        check_range(offset, length)?;
        if zero {
            store.replica().zero(ino, offset, length)?;
        } else {
            store.replica().reserve(ino, offset, length)?;
        }
    }
    Ok(Response::Done)
}

/// Sets size and times first: this cuts off bytes beyond the published size before they could show.
fn recover(
    store: &Store,
    ino: Ino,
    offset: u64,
    times: &WireFileTimes,
    payload: &[u8],
) -> Result<Response, AnswerError> {
    check_payload(offset, payload)?;
    if !payload.is_empty() && offset + payload.len() as u64 > times.size {
        return Err(AnswerError::BeyondEnd);
    }
    check_found(store.replica().set_file_times(ino, &from_wire(times))?, ino)?;
    if payload.is_empty() {
        return Ok(Response::Done);
    }
    done(store.replica().put_blocks(ino, offset, payload))
}
