//! Records that the other node sends: only those of the namespace, in order, are taken.

use lockstep_fs::keys;
use lockstep_fs::record::{self, Body, Inode};
use lockstep_fs::store::{ImageChange, ImageChunk};
use lockstep_types::limits::FILE_BYTES_MAX;

use crate::api::AnswerError;

/// Refuses a table that is not sent.
pub fn check_table(table: u8) -> Result<(), AnswerError> {
    if keys::REPLICATED.contains(&table) {
        return Ok(());
    }
    Err(AnswerError::OtherTable { table })
}

/// Refuses a place of another table.
pub fn check_after(table: u8, after: &[u8]) -> Result<(), AnswerError> {
    if after.is_empty() || after.first() == Some(&table) {
        return Ok(());
    }
    Err(AnswerError::AfterOtherTable)
}

/// Refuses a change of a record that does not belong to the namespace.
pub fn check_change(change: &ImageChange) -> Result<(), AnswerError> {
    check_record(&change.key, change.value.as_deref())
}

/// Refuses a record that does not belong to the namespace.
pub fn check_record(key: &[u8], value: Option<&[u8]>) -> Result<(), AnswerError> {
    let table = *key.first().ok_or(AnswerError::NoKey)?;
    check_table(table)?;
    if keys::ino_of(key).is_none() {
        return Err(AnswerError::NoInode);
    }
    match value {
        Some(value) if table == keys::INODES => check_inode(value),
        _ => Ok(()),
    }
}

/// Refuses a chunk that could change a record outside its table, or leave a gap in the table.
pub fn check_chunk(chunk: &ImageChunk) -> Result<(), AnswerError> {
    check_table(chunk.table)?;
    check_after(chunk.table, &chunk.after)?;
    if chunk.records.is_empty() && !chunk.last {
        return Err(AnswerError::EmptyChunk);
    }
    let mut before = chunk.after.as_slice();
    for record in &chunk.records {
        let ours = record.key.first() == Some(&chunk.table) && keys::ino_of(&record.key).is_some();
        if !ours || record.key.as_slice() <= before {
            return Err(AnswerError::ChunkOutOfOrder);
        }
        if chunk.table == keys::INODES {
            check_inode(&record.value)?;
        }
        before = &record.key;
    }
    Ok(())
}

fn check_inode(value: &[u8]) -> Result<(), AnswerError> {
    let inode: Inode = record::decode(value).ok_or(AnswerError::BadInode)?;
    match inode.body {
        Body::File { size } if size > FILE_BYTES_MAX => {
            Err(AnswerError::FileTooLong { bytes: size })
        }
        _ => Ok(()),
    }
}
