//! The walk of a resync over files: over those that have changed since the copies were equal, and in a resync of everything over
//! all of them.
//!
//! The walk tells the delta which files it has begun, and which of them are equal: a resync that loses its connection goes on
//! there (rule P24).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use lockstep_fs::store::{
    ChangedContent, ChangedRegions, DeltaAccess, DeltaJob, DeltaWalk, RestOfFiles, WalkProgress,
};
use lockstep_fs::{OpError, StoreView};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::{Ino, NodeKind};

use crate::api::{PeerBase, ResyncError};
use crate::limits::FILES_MAX;
use crate::pieces::Piece;
use crate::progress::JobProgress;
use crate::source::ResyncSource;
use crate::touched::TouchedPlaces;

/// A file, with the bytes that may differ; `None`: all.
pub(crate) type WalkedFile = (Ino, Option<ChangedRegions>);

/// The files that are left.
pub(crate) struct FileWalk<'a> {
    view: &'a dyn StoreView,
    /// Hears of the walk.
    delta: DeltaAccess<'a>,
    /// Files with their changed regions.
    changed: ChangedContent,
    /// The numbers of the files that may differ in anything. Files created from now on are mirrored from the beginning, and the
    /// walk must not chase them.
    rest: Range<u64>,
    /// The job by which the delta hears of the walk. Without a delta the next resync begins anew.
    job: Option<DeltaJob>,
}

impl<'a> FileWalk<'a> {
    /// The walk over the changes that the delta has since `base`; without a delta, the walk over all files of now. Returns the places that
    /// the resync touches, too.
    pub fn begin(
        source: ResyncSource<'a>,
        base: Option<PeerBase>,
        progress: &JobProgress,
    ) -> Result<(Self, TouchedPlaces), ResyncError> {
        if let Some(since) = base.and_then(|base| base.begin_walk(source.delta)) {
            return Self::of(source, since, progress);
        }
        let touched = TouchedPlaces::new(BTreeMap::new(), Some(1), false);
        Ok((Self::all(source, None, progress)?, touched))
    }

    /// The walk over these files.
    pub fn of_some(source: ResyncSource<'a>, files: &BTreeSet<Ino>) -> Result<Self, ResyncError> {
        let mut walk = Self {
            view: source.view,
            delta: source.delta,
            changed: ChangedContent::new(),
            rest: 0..0,
            job: None,
        };
        let mut all = ChangedRegions::default();
        all.insert(&(0..u64::MAX));
        walk.take_changed(files.iter().map(|ino| (*ino, all.clone())).collect())?;
        Ok(walk)
    }

    fn all(
        source: ResyncSource<'a>,
        job: Option<DeltaJob>,
        progress: &JobProgress,
    ) -> Result<Self, ResyncError> {
        source.image.settle_records()?;
        let census = source.view.census(1, u64::MAX)?;
        progress.start(census.files, census.bytes);
        Ok(Self {
            view: source.view,
            delta: source.delta,
            changed: ChangedContent::new(),
            rest: 1..census.last.saturating_add(1),
            job,
        })
    }

    fn of(
        source: ResyncSource<'a>,
        since: DeltaWalk,
        progress: &JobProgress,
    ) -> Result<(Self, TouchedPlaces), ResyncError> {
        let touched = touched_by(&since);
        let rest = match since.rest {
            None => 0..0,
            Some(RestOfFiles {
                next: 1,
                last: None,
            }) => {
                return Ok((Self::all(source, Some(since.job), progress)?, touched));
            }
            Some(RestOfFiles { next, last }) => {
                let last = match last {
                    Some(last) => last,
                    None => source.view.census(next, u64::MAX)?.last,
                };
                next..last.saturating_add(1)
            }
        };
        let mut walk = Self {
            view: source.view,
            delta: source.delta,
            changed: ChangedContent::new(),
            rest,
            job: Some(since.job),
        };
        let mut bytes = walk.take_changed(since.content)?;
        if since.all_times {
            walk.add_all_times()?;
        }
        let mut files = walk.changed.len() as u64;
        if !walk.rest.is_empty() {
            source.image.settle_records()?;
            let census = source.view.census(walk.rest.start, walk.rest.end)?;
            files += census.files;
            bytes = bytes.saturating_add(census.bytes);
        }
        if since.goes_on {
            progress.go_on(files, bytes);
        } else {
            progress.start_changed(files, bytes);
        }
        Ok((walk, touched))
    }

    /// Takes the files of a delta. Inodes that are no files, or are gone, have no content. Returns the number of changed bytes.
    fn take_changed(&mut self, changed: ChangedContent) -> Result<u64, ResyncError> {
        let mut bytes = 0_u64;
        for (ino, regions) in changed {
            if let Some(times) = self.view.file_times(ino)? {
                bytes = bytes.saturating_add(changed_bytes(times.size, &regions));
                self.changed.insert(ino, regions);
            } else {
                self.done(ino);
            }
        }
        Ok(bytes)
    }

    /// Adds every file, whose times may differ.
    fn add_all_times(&mut self) -> Result<(), OpError> {
        let mut next = 1;
        loop {
            let inodes = self.view.inodes(next, u64::MAX, FILES_MAX)?;
            let Some((last, _)) = inodes.last() else {
                return Ok(());
            };
            next = last.get().saturating_add(1);
            let files = inodes.iter().filter(|(_, kind)| *kind == NodeKind::File);
            for (ino, _) in files.filter(|(ino, _)| !self.rest.contains(&ino.get())) {
                self.changed.entry(*ino).or_default();
            }
        }
    }

    /// The next files, perhaps none; `None` when there are no more files.
    pub fn next_files(&mut self) -> Result<Option<Vec<WalkedFile>>, OpError> {
        if !self.changed.is_empty() {
            return Ok(Some(next_changed(&mut self.changed)));
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        let Range { start, end } = self.rest;
        let inodes = self.view.inodes(start, end, FILES_MAX)?;
        let highest = inodes.last().map(|(ino, _)| ino.get());
        self.rest.start = highest.map_or(end, |highest| highest.saturating_add(1));
        let files = inodes.iter().filter(|(_, kind)| *kind == NodeKind::File);
        let files: Vec<Ino> = files.map(|(ino, _)| *ino).collect();
        if let Some(job) = self.job {
            let rest = RestOfFiles {
                next: self.rest.start,
                last: Some(end - 1),
            };
            self.delta.walked(
                job,
                WalkProgress::Begun {
                    files: &files,
                    rest,
                },
            );
        }
        Ok(Some(files.into_iter().map(|ino| (ino, None)).collect()))
    }

    /// Whether the walk goes over what a delta names.
    pub const fn is_of_delta(&self) -> bool {
        self.job.is_some()
    }

    /// A piece of a file is equal, and its lock is still held. A last block that is a part of one counts with the file.
    pub fn compared(&self, ino: Ino, piece: &Piece) {
        if let Some(job) = self.job {
            let end = piece.end() - piece.end() % BLOCK_BYTES as u64;
            self.delta.walked(
                job,
                WalkProgress::Equal {
                    ino,
                    bytes: &(piece.offset..end.max(piece.offset)),
                },
            );
        }
    }

    /// A file is equal, or gone.
    pub fn done(&self, ino: Ino) {
        if let Some(job) = self.job {
            self.delta.walked(job, WalkProgress::Done(ino));
        }
    }
}

/// The places that a walk touches, with those that its resync has touched before.
fn touched_by(since: &DeltaWalk) -> TouchedPlaces {
    let regions = |ino: &Ino| since.content.get(ino).cloned().unwrap_or_default();
    let inodes = since.touched.iter().map(|ino| (*ino, regions(ino)));
    let from = since.rest.map(|rest| rest.next);
    let places = TouchedPlaces::new(inodes.collect(), from, since.goes_on);
    if since.all_times {
        return places.with_all_records();
    }
    places
}

/// Takes the next files of a delta.
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
