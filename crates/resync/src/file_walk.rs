//! The walk of a resync over files: over all of them, or over those that have changed since the copies were equal.

use lockstep_fs::store::{ChangedContent, ChangedRegions};
use lockstep_fs::{OpError, Store};
use lockstep_types::{Ino, NodeKind};

use crate::api::ResyncError;
use crate::limits::FILES_MAX;
use crate::progress::JobProgress;

/// A file, with the bytes that may differ; `None`: all.
pub(crate) type WalkedFile = (Ino, Option<ChangedRegions>);

/// The files that are left.
pub(crate) enum FileWalk {
    /// The files with these numbers.
    All {
        /// The next inode.
        next: u64,
        /// The last inode.
        last: u64,
    },
    /// The files of a trace, with their changed regions.
    Changed(ChangedContent),
}

impl FileWalk {
    /// The walk over all files of now. Files created from now on are mirrored from the beginning, and the walk must not
    /// chase them.
    pub fn all(store: &Store, progress: &JobProgress) -> Result<Self, ResyncError> {
        store.checkpoint()?;
        let census = store.replica().census()?;
        progress.start(census.files, census.bytes);
        Ok(Self::All {
            next: 1,
            last: census.last,
        })
    }

    /// The walk over the files of a trace. Inodes that are no files, or are gone, have no content.
    pub fn changed(
        store: &Store,
        changed: ChangedContent,
        progress: &JobProgress,
    ) -> Result<Self, ResyncError> {
        let (mut files, mut bytes) = (ChangedContent::new(), 0_u64);
        for (ino, regions) in changed {
            if let Some(times) = store.replica().file_times(ino)? {
                bytes = bytes.saturating_add(changed_bytes(times.size, &regions));
                files.insert(ino, regions);
            }
        }
        progress.start_changed(files.len() as u64, bytes);
        Ok(Self::Changed(files))
    }

    /// The next files, perhaps none; `None` when there are no more files.
    pub fn next_files(&mut self, store: &Store) -> Result<Option<Vec<WalkedFile>>, OpError> {
        match self {
            Self::All { next, last } if *next > *last => Ok(None),
            Self::All { next, last } => {
                let to = last.saturating_add(1);
                let inodes = store.replica().inodes(*next, to, FILES_MAX)?;
                let highest = inodes.last().map(|(ino, _)| ino.get());
                *next = highest.map_or(to, |highest| highest.saturating_add(1));
                let files = inodes.iter().filter(|(_, kind)| *kind == NodeKind::File);
                Ok(Some(files.map(|(ino, _)| (*ino, None)).collect()))
            }
            Self::Changed(changed) if changed.is_empty() => Ok(None),
            Self::Changed(changed) => Ok(Some(next_changed(changed))),
        }
    }
}

/// Takes the next files of a trace.
fn next_changed(changed: &mut ChangedContent) -> Vec<WalkedFile> {
    let mut files = Vec::new();
    while files.len() < FILES_MAX
        && let Some((ino, regions)) = changed.pop_first()
    {
        files.push((ino, Some(regions)));
    }
    files
}

/// The number of changed bytes within the size of a file.
fn changed_bytes(size: u64, regions: &ChangedRegions) -> u64 {
    let (mut bytes, mut at) = (0, 0);
    while let Some(run) = regions.next(at).filter(|run| run.start < size) {
        at = run.end.min(size);
        bytes += at - run.start;
    }
    bytes
}
