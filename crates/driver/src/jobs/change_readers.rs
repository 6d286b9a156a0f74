//! The questions of change readers (P34), on the node that serves the datastore: the program that asks copies the
//! files from its mount.
//!
//! A question waits until the changes are over that had begun before it. The answer comes in pages, and takes memory for one page and
//! for the marks.

use std::str::FromStr;
use std::time::Duration;

use lockstep_fs::store::{
    ChangeAccess, ChangePoint, ChangeQuestion, ChangedEntry, EntryChange, LostMarks,
    READER_KEPT_DAYS, READER_NAME_MAX, READERS_MAX, ReaderError, ReaderRecord, WholeAnswer,
};
use lockstep_fs::{OpError, StoreError};
use lockstep_types::{Ino, Timestamp};

use super::told_path::told_path;
use crate::engine::Engine;
use crate::report::{
    ChangeEntry, ChangeReaderStatus, ChangedRange, ChangesHead, ChangesPart, ChangesQuestion,
    CommandFailure, ReaderCommand,
};

/// Longest wait for changes that had begun before a question.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at them.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);

/// The change readers of a running datastore.
#[derive(Clone, Copy)]
pub(crate) struct ReaderService<'a> {
    changes: ChangeAccess<'a>,
    engine: &'a Engine,
}

impl<'a> ReaderService<'a> {
    /// The change readers of the store of a node.
    pub fn of(engine: &'a Engine) -> Self {
        Self {
            changes: ChangeAccess::of(&engine.store),
            engine,
        }
    }

    /// Answers a question part by part, until `take` returns false.
    ///
    /// # Errors
    /// If there is no answer, or if it ends before all of it was told.
    pub fn ask(
        self,
        question: &ChangesQuestion,
        take: &mut dyn FnMut(ChangesPart) -> bool,
    ) -> Result<(), CommandFailure> {
        let since = question.since.as_deref().map(read_point).transpose()?;
        let changes = self.changes;
        let asked = self.turn(&question.reader, since)?;
        self.wait_for(|| changes.is_settled(&asked).then_some(Ok(())))?;
        let walk = changes.walk(&asked).map_err(|error| unreadable(&error))?;
        let head = head(&asked, walk.as_ref().err().copied());
        if !take(ChangesPart::Head(head)) {
            return Ok(());
        }
        let Ok(mut walk) = walk else { return Ok(()) };
        while let Some(page) = changes
            .next_page(&mut walk)
            .map_err(|error| unreadable(&error))?
            .map_err(|_| replaced(&question.reader))?
        {
            let entries = page.into_iter().map(|entry| told(entry, question.ranges));
            if !take(ChangesPart::Entries(entries.collect())) || self.engine.is_stopping() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Carries a command about readers out; returns the list afterwards.
    ///
    /// # Errors
    /// If there is no such reader, or the disk fails.
    pub fn command(
        self,
        command: &ReaderCommand,
    ) -> Result<Vec<ChangeReaderStatus>, CommandFailure> {
        let changes = self.changes;
        match command {
            ReaderCommand::List => {}
            ReaderCommand::Confirm { reader, point } => {
                let now = self.engine.host.time_of_day();
                let confirmed = changes.confirm(reader, read_point(point)?, now);
                confirmed.map_err(|error| failure(&error, self.engine.name()))?;
            }
            ReaderCommand::Remove { reader } => {
                let removed = changes.remove(reader);
                removed.map_err(|error| failure(&error, self.engine.name()))?;
            }
        }
        Ok(self.list())
    }

    /// The readers of this node. Waits for no disk.
    pub fn list(self) -> Vec<ChangeReaderStatus> {
        let now = self.engine.host.time_of_day();
        let list = self.changes.list().into_iter();
        list.map(|record| status(record, now)).collect()
    }

    /// Removes the readers that were not heard of for too long.
    pub fn expire(self) {
        let datastore = self.engine.name();
        match self.changes.expire(self.engine.host.time_of_day()) {
            Ok(removed) => {
                for reader in removed {
                    tracing::warn!(
                        datastore,
                        reader,
                        "removed a change reader that was not heard of for {READER_KEPT_DAYS} days: its next answer is \
                         \"everything\""
                    );
                }
            }
            Err(error) => tracing::debug!(datastore, %error, "an old change reader stays"),
        }
    }

    fn turn(
        self,
        name: &str,
        since: Option<ChangePoint>,
    ) -> Result<ChangeQuestion, CommandFailure> {
        self.wait_for(|| {
            let drawn = self.engine.host.random_id();
            let now = self.engine.host.time_of_day();
            let asked = self.changes.ask(name, since, drawn, now);
            asked
                .map_err(|error| failure(&error, self.engine.name()))
                .transpose()
        })
    }

    /// Calls `look` until it has an outcome.
    fn wait_for<T>(
        self,
        mut look: impl FnMut() -> Option<Result<T, CommandFailure>>,
    ) -> Result<T, CommandFailure> {
        let until = self.engine.host.now() + SETTLE_LIMIT;
        loop {
            if let Some(outcome) = look() {
                return outcome;
            }
            if self.engine.host.now() >= until || self.engine.is_stopping() {
                return Err(CommandFailure::new(
                    format!(
                        "a change that had begun before the question is not over after {} s",
                        SETTLE_LIMIT.as_secs()
                    ),
                    "see in `lockstep status` whether changes wait for the other node or the disk hangs; then ask again",
                ));
            }
            self.engine.sleep_unless(SETTLE_PAUSE, || false);
        }
    }
}

fn status(record: ReaderRecord, now: Timestamp) -> ChangeReaderStatus {
    let seconds = now.secs.saturating_sub(record.heard.secs);
    ChangeReaderStatus {
        since: record.since.map(|point| point.to_string()),
        registered: record.registered.utc(),
        heard_ms: u64::try_from(seconds).unwrap_or(0).saturating_mul(1000),
        marks_lost: record.lost.is_some(),
        name: record.name,
    }
}

fn head(asked: &ChangeQuestion, whole: Option<WholeAnswer>) -> ChangesHead {
    let since = asked.since.ok().filter(|_| whole.is_none());
    ChangesHead {
        point: asked.point.to_string(),
        since: since.map(|point| point.to_string()),
        everything: whole.map(|whole| word(whole).to_owned()),
        reason: whole.map(|whole| reason(whole).to_owned()),
    }
}

/// The word for a reason in JSON (docs/json.md).
const fn word(whole: WholeAnswer) -> &'static str {
    match whole {
        WholeAnswer::Registered => "registered",
        WholeAnswer::Unconfirmed => "unconfirmed",
        WholeAnswer::OtherPoint => "other_point",
        WholeAnswer::Lost(LostMarks::PowerLoss) => "power_loss",
        WholeAnswer::Lost(LostMarks::OtherTables) => "marks_lost",
        WholeAnswer::TooManyNames => "too_many_names",
    }
}

const fn reason(whole: WholeAnswer) -> &'static str {
    match whole {
        WholeAnswer::Registered => {
            "this node did not know the reader: it is registered from now on"
        }
        WholeAnswer::Unconfirmed => "the reader has not confirmed any answer of this node yet",
        WholeAnswer::OtherPoint => {
            "the point is not one of this reader on this node: it is of the other node, of an older copy of the store, or \
             older than the confirmed one"
        }
        WholeAnswer::Lost(LostMarks::PowerLoss) => {
            "the machine has lost power since, or its disk had failed: that may have taken changes back"
        }
        WholeAnswer::Lost(LostMarks::OtherTables) => {
            "the marks of the reader are missing, damaged, or not of this copy of the store"
        }
        WholeAnswer::TooManyNames => "more names have changed than the reader's table has room for",
    }
}

fn told(entry: ChangedEntry, wants_ranges: bool) -> ChangeEntry {
    let change = match entry.change {
        EntryChange::New => "new",
        EntryChange::Changed => "changed",
        EntryChange::Removed => "removed",
    };
    let ranges = entry.ranges.into_iter().filter(|_| wants_ranges);
    let ranges = ranges.map(|run| ChangedRange {
        offset: run.start,
        length: run.end - run.start,
    });
    let (path, path_hex) = told_path(&entry.path);
    ChangeEntry {
        change: change.to_owned(),
        path,
        path_hex,
        inode: entry.node.map(|(ino, _)| Ino::get(ino)),
        size: entry.size,
        attributes: entry.attributes,
        ranges: ranges.collect(),
    }
}

fn read_point(text: &str) -> Result<ChangePoint, CommandFailure> {
    ChangePoint::from_str(text).map_err(|error| {
        let cure =
            "give the point that `lockstep changes` has printed with the last answer, or none";
        CommandFailure::new(error.to_string(), cure)
    })
}

fn unreadable(error: &OpError) -> CommandFailure {
    let cure = "see \"A store is damaged\" in docs/operations/disks.md";
    CommandFailure::new(error.to_string(), cure)
}

fn replaced(reader: &str) -> CommandFailure {
    CommandFailure::new(
        format!("change reader {reader:?} has asked or confirmed again while this answer was told"),
        "let one program at a time use a reader, and ask again: nothing is lost",
    )
}

fn failure(error: &ReaderError, name: &str) -> CommandFailure {
    let cure = match error {
        ReaderError::TooMany => format!(
            "remove one of the {READERS_MAX} with `lockstep changes {name} --remove READER`; `lockstep changes {name} --readers` \
             lists them"
        ),
        ReaderError::BadName(_) => {
            format!("use letters, digits, `-`, `_` and `.`, at most {READER_NAME_MAX} of them")
        }
        ReaderError::Unknown(_) => {
            format!("see the readers of this node with `lockstep changes {name} --readers`")
        }
        ReaderError::OtherPoint { .. } => {
            "take the answer of the last question, and confirm its point; or ask again: nothing is lost".to_owned()
        }
        ReaderError::Store(error) => store_cure(error),
    };
    CommandFailure::new(error.to_string(), cure)
}

fn store_cure(error: &StoreError) -> String {
    let cure = if error.is_full_disk() {
        "make room on the disk of the store"
    } else {
        "see docs/operations/disks.md"
    };
    cure.to_owned()
}
