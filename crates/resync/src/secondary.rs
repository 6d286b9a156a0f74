//! The secondary's side of resync and distributed recovery: each question is carried out on its
//! store. Several may be carried out at once, also beside mirrored operations, whose ranges the
//! primary's locks keep apart.
//!
//! What comes from the wire is checked before it is used: whatever it says, nothing here panics or
//! takes more memory than one write's worth.

use lockstep_fs::record::{self, Body, Inode};
use lockstep_fs::store::{FileTimes, ImageChange, ImageChunk};
use lockstep_fs::{OpError, Store, StoreError, keys};
use lockstep_repl::message::{FileFacts, Request, Response};
use lockstep_types::limits::{BLOCK_BYTES, FILE_BYTES_MAX, WRITE_BYTES_MAX};
use lockstep_types::{Hash128, Ino};

use crate::pieces;
use crate::{bits, primary};

/// Most files in one [`Request::SettleFiles`].
pub const SETTLED_MAX: usize = 64;

/// Most ranges in one [`Request::Reserve`].
pub const RESERVED_MAX: usize = 256;

/// Longest file that is hashed as a whole.
pub const SETTLED_HASH_BYTES_MAX: u64 = WRITE_BYTES_MAX as u64;

/// Most blocks in one [`Request::CompareBlocks`].
const COMPARED_BLOCKS_MAX: usize = WRITE_BYTES_MAX / BLOCK_BYTES;

/// Carries out one question. The error text is for the primary's operator.
///
/// Beginning, records and end of an image, comparisons, blocks, holes, facts and recovered ranges
/// are answered here; everything else is somebody else's, and refused.
pub fn answer(store: &Store, request: &Request, payload: &[u8]) -> Result<Response, String> {
    let answered = match request {
        Request::BeginResync { .. } => done(store.image().begin().map_err(OpError::from)),
        Request::ImageChunk => load_chunk(store, payload),
        Request::ImageChanges => load_changes(store, payload),
        Request::SettleImage => done(store.image().prepare_finish().map_err(OpError::from)),
        Request::EndImage {
            applied,
            inos_below,
        } => done(
            store
                .image()
                .finish(*applied, *inos_below)
                .map_err(OpError::from),
        ),
        Request::SettleFiles { files } => settle(store, files),
        Request::CompareBlocks {
            ino,
            offset,
            hashes,
            space,
        } => compare_blocks(store, *ino, *offset, hashes, *space),
        Request::WriteBlocks { ino, offset } => write_blocks(store, *ino, *offset, payload),
        Request::CompareHole {
            ino,
            offset,
            length,
            punch,
        } => compare_hole(store, *ino, (*offset, *length), *punch),
        Request::Reserve { ino, ranges, zero } => reserve(store, *ino, ranges, *zero),
        Request::RecoverRange { ino, offset, facts } => {
            recover(store, *ino, *offset, facts, payload)
        }
        _ => Err("this is not a question of resync or recovery".to_owned()),
    }?;
    relieve(store)?;
    Ok(answered)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn done(result: Result<(), OpError>) -> Result<Response, String> {
    result.map_err(text)?;
    Ok(Response::Done)
}

/// A resync changes much; what it leaves in memory and in the log must stay bounded.
fn relieve(store: &Store) -> Result<(), String> {
    if store.needs_checkpoint() {
        store.checkpoint().map_err(text)?;
    }
    Ok(())
}

fn load_chunk(store: &Store, payload: &[u8]) -> Result<Response, String> {
    let chunk: ImageChunk = postcard::from_bytes(payload).map_err(text)?;
    check_chunk(&chunk)?;
    store.image().load_chunk(&chunk).map_err(text)?;
    Ok(Response::Done)
}

fn load_changes(store: &Store, payload: &[u8]) -> Result<Response, String> {
    let changes: Vec<ImageChange> = postcard::from_bytes(payload).map_err(text)?;
    for change in &changes {
        check_change(change)?;
    }
    if !changes.is_sorted_by(|one, next| one.key < next.key) {
        return Err("the changed records are not in order, each once".to_owned());
    }
    store.image().load_changes(&changes).map_err(text)?;
    Ok(Response::Done)
}

/// Refuses a change of anything that is not of the namespace.
fn check_change(change: &ImageChange) -> Result<(), String> {
    let table = change.key.first().ok_or("a changed record without a key")?;
    if !keys::REPLICATED.contains(table) {
        return Err(format!("table {table} is not one that is sent"));
    }
    if keys::ino_of(&change.key).is_none() {
        return Err("a changed record of no inode".to_owned());
    }
    match &change.value {
        Some(value) if *table == keys::INODES => check_inode(value),
        _ => Ok(()),
    }
}

/// Refuses a chunk that could change anything outside its table, or leave a gap in it.
fn check_chunk(chunk: &ImageChunk) -> Result<(), String> {
    if !keys::REPLICATED.contains(&chunk.table) {
        return Err(format!("table {} is not one that is sent", chunk.table));
    }
    if !chunk.after.is_empty() && chunk.after.first() != Some(&chunk.table) {
        return Err("the chunk follows a record of another table".to_owned());
    }
    if chunk.records.is_empty() && !chunk.last {
        return Err("a chunk without records that is not the last".to_owned());
    }
    let mut before = chunk.after.as_slice();
    for record in &chunk.records {
        let ours = record.key.first() == Some(&chunk.table) && keys::ino_of(&record.key).is_some();
        if !ours || record.key.as_slice() <= before {
            return Err("the records of the chunk are not in order".to_owned());
        }
        if chunk.table == keys::INODES {
            check_inode(&record.value)?;
        }
        before = &record.key;
    }
    Ok(())
}

fn check_inode(value: &[u8]) -> Result<(), String> {
    let inode: Inode = record::decode(value).ok_or("a record of an inode cannot be read")?;
    match inode.body {
        Body::File { size } if size > FILE_BYTES_MAX => {
            Err(format!("a size of {size} bytes is over the limit"))
        }
        _ => Ok(()),
    }
}

/// A file the primary has must be here too.
fn present(found: bool, ino: Ino) -> Result<(), String> {
    if found {
        return Ok(());
    }
    Err(format!("there is no regular file with inode {ino} here"))
}

fn settle(store: &Store, files: &[(Ino, FileFacts, Option<Hash128>)]) -> Result<Response, String> {
    if files.len() > SETTLED_MAX {
        return Err(format!("{} files at once are over the limit", files.len()));
    }
    let mut differing = Vec::with_capacity(files.len());
    for (ino, facts, hash) in files {
        present(
            store
                .replica()
                .set_file_times(*ino, &from_wire(facts))
                .map_err(text)?,
            *ino,
        )?;
        differing.push(match hash {
            Some(_) if facts.size > SETTLED_HASH_BYTES_MAX => true,
            // What takes space on the primary takes it here.
            Some(_) if store.replica().next_hole(*ino, 0).map_err(text)? < facts.size => true,
            Some(hash) => primary::whole_hash(store, *ino, facts.size).map_err(text)? != *hash,
            None => true,
        });
    }
    Ok(Response::Differing(bits::pack(differing)))
}

/// Refuses ranges that no file can have. The last block of the largest file ends with it.
fn check_range(offset: u64, length: u64) -> Result<(), String> {
    match offset.checked_add(length) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        _ => Err(format!("bytes {offset} and {length} more are in no file")),
    }
}

fn compare_blocks(
    store: &Store,
    ino: Ino,
    offset: u64,
    theirs: &[Hash128],
    space: bool,
) -> Result<Response, String> {
    if theirs.len() > COMPARED_BLOCKS_MAX {
        return Err(format!(
            "{} blocks at once are over the limit",
            theirs.len()
        ));
    }
    let length = theirs.len() * BLOCK_BYTES;
    check_range(offset, length as u64)?;
    let mut blocks = vec![0; length];
    store
        .replica()
        .read_raw(ino, offset, &mut blocks)
        .map_err(text)?;
    let ours = pieces::hashes(&blocks);
    let differing = ours.iter().zip(theirs).map(|(ours, theirs)| ours != theirs);
    let mut differing: Vec<bool> = differing.collect();
    if space {
        note_holes(store, ino, offset, &mut differing).map_err(text)?;
    }
    Ok(Response::Differing(bits::pack(differing)))
}

/// Notes the blocks from `offset` on that lie in holes: what the primary has there may take space.
fn note_holes(store: &Store, ino: Ino, offset: u64, blocks: &mut [bool]) -> Result<(), StoreError> {
    let block = BLOCK_BYTES as u64;
    let end = offset + blocks.len() as u64 * block;
    let mut at = offset;
    while at < end {
        let hole = store.replica().next_hole(ino, at)?;
        at = store
            .replica()
            .next_data(ino, hole)?
            .unwrap_or(end)
            .min(end);
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

fn check_payload(offset: u64, payload: &[u8]) -> Result<(), String> {
    if payload.len() > WRITE_BYTES_MAX {
        return Err(format!(
            "{} bytes at once are over the limit",
            payload.len()
        ));
    }
    check_range(offset, payload.len() as u64)
}

fn write_blocks(store: &Store, ino: Ino, offset: u64, payload: &[u8]) -> Result<Response, String> {
    check_payload(offset, payload)?;
    done(store.replica().put_blocks(ino, offset, payload))
}

fn compare_hole(
    store: &Store,
    ino: Ino,
    (offset, length): (u64, u64),
    punch: bool,
) -> Result<Response, String> {
    check_range(offset, length)?;
    let differs = if punch {
        store.replica().punch(ino, offset, length).map_err(text)?
    } else {
        !store.replica().is_zero(ino, offset, length).map_err(text)?
    };
    Ok(Response::Differing(bits::pack([differs])))
}

fn reserve(store: &Store, ino: Ino, ranges: &[(u64, u64)], zero: bool) -> Result<Response, String> {
    if ranges.len() > RESERVED_MAX {
        return Err(format!(
            "{} ranges at once are over the limit",
            ranges.len()
        ));
    }
    present(
        store.replica().file_times(ino).map_err(text)?.is_some(),
        ino,
    )?;
    for &(offset, length) in ranges {
        check_range(offset, length)?;
        let done = if zero {
            store.replica().zero(ino, offset, length)
        } else {
            store.replica().reserve(ino, offset, length)
        };
        done.map_err(text)?;
    }
    Ok(Response::Done)
}

/// Facts first: what lies beyond the published size is cut off before it could show.
fn recover(
    store: &Store,
    ino: Ino,
    offset: u64,
    facts: &FileFacts,
    payload: &[u8],
) -> Result<Response, String> {
    check_payload(offset, payload)?;
    if !payload.is_empty() && offset + payload.len() as u64 > facts.size {
        return Err("bytes to recover lie beyond the end of the file".to_owned());
    }
    present(
        store
            .replica()
            .set_file_times(ino, &from_wire(facts))
            .map_err(text)?,
        ino,
    )?;
    if payload.is_empty() {
        return Ok(Response::Done);
    }
    done(store.replica().put_blocks(ino, offset, payload))
}

const fn from_wire(facts: &FileFacts) -> FileTimes {
    FileTimes {
        size: facts.size,
        mtime: facts.mtime,
        ctime: facts.ctime,
        last_write: facts.last_write,
    }
}
