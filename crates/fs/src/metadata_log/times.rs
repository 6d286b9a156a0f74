//! Times of files in the log: those of writes, and those that the other node sends.

use lockstep_intentlog::Record;

use super::MetadataLog;
use crate::content::{LastWrite, OpenFile};
use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::plan::View;
use crate::namespace::record::{self, Body};
use crate::tree::Tree;
use crate::view::FileTimes;

impl MetadataLog {
    /// Logs the time of the last write of a file, unless the log has it; for a sync of the file. Waits for room.
    pub fn log_times(&self, tree: Tree<'_>, file: &OpenFile) -> Result<(), StoreError> {
        self.wait_for_log(tree, true)?;
        // Not while an operation is applied: the record would lie behind an operation that sets other times, and win
        // when the log is replayed. One thread at a time: none returns before the other has logged.
        let _applying = self.applying.lock();
        let (last_write, must_be_logged) = file.time_to_log();
        if !must_be_logged {
            return Ok(());
        }
        let Some(inode) = tree.inode(file.ino()).map_err(OpError::into_store)? else {
            return Ok(());
        };
        let record = Record::FileTimes {
            ino: file.ino(),
            mtime: inode.mtime,
            ctime: inode.ctime,
        };
        self.log_record(tree.disk(), &record)?;
        file.note_time_logged(last_write);
        Ok(())
    }

    /// Gives a file size and times of the other node. The caller has begun a write to the file, so the file owns a
    /// slot: if the process stops half way, the content has the length of the file.
    pub fn replace_times(
        &self,
        tree: Tree<'_>,
        file: &OpenFile,
        new: &FileTimes,
    ) -> Result<(), OpError> {
        let ino = file.ino();
        let _applying = self.applying.lock();
        let Some(mut inode) = tree.inode(ino)? else {
            return Ok(());
        };
        // The last write is compared as well: only the table of slots may know of it, if an operation has put its time
        // into the record. The table gets the new write below.
        let (last_write, time_unlogged) = file.time_left_by_operation();
        let old = (inode.mtime, inode.ctime, last_write.map(|(osn, _)| osn));
        if time_unlogged || old != (new.mtime, new.ctime, new.last_write) {
            let record = Record::FileTimes {
                ino,
                mtime: new.mtime,
                ctime: new.ctime,
            };
            self.readers.note_keys([keys::inode(ino)].iter());
            self.log_record(tree.disk(), &record)?;
        }
        inode.body = Body::File { size: new.size };
        inode.mtime = new.mtime;
        inode.ctime = new.ctime;
        tree.content.fit_length(ino, new.size)?;
        let record = (keys::inode(ino), Some(record::encode(&inode)));
        // The log has the times, and the content the length. As in [`Tree::install`].
        tree.disk()
            .poison_on_error(tree.namespace.apply([record]))?;
        let last_write: Option<LastWrite> = new.last_write.map(|osn| (osn, new.mtime));
        tree.content.replace_times(file, new.size, last_write);
        Ok(())
    }
}
