//! The records of a log, in order.
//!
//! Invariant: the iterator returns exactly the records that were found when the log was opened. It does not
//! return records that were appended since.

use std::collections::VecDeque;

use crate::error::LogError;
use crate::position::Position;
use crate::reader::{Next, Reader};
use crate::record::Record;
use crate::scan::Scan;
use crate::segment::SegmentHeader;

/// An iterator over the records found when a log was opened, each with its position. It reads the file as it
/// goes, so finish it before the first cut of the log. It ends after an error.
pub struct Replay {
    parts: VecDeque<Part>,
    start: Position,
    end: Position,
}

/// One segment, and the end of its records.
struct Part {
    reader: Reader,
    end: Position,
}

impl Replay {
    pub(crate) fn new(scan: &Scan) -> Self {
        let part = |header: &SegmentHeader, end| Part {
            reader: Reader::new(scan.segments.of(header.number).clone(), header),
            end,
        };
        let mut parts = VecDeque::new();
        if scan.start < scan.current.before_end {
            parts.push_back(part(&scan.older, scan.current.before_end));
        }
        parts.push_back(part(&scan.current, scan.tail));
        Self {
            parts,
            start: scan.start,
            end: scan.tail,
        }
    }

    /// Leaves out records before `position`.
    #[must_use]
    pub fn from(mut self, position: Position) -> Self {
        self.start = self.start.max(position);
        self
    }

    /// The position where the found records end.
    pub const fn end(&self) -> Position {
        self.end
    }

    fn next_record(&mut self) -> Result<Option<(Position, Record)>, LogError> {
        while let Some(part) = self.parts.front_mut() {
            if part.reader.position >= part.end {
                self.parts.pop_front();
            } else if let Some(found) = part.next_record(self.start)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

impl Part {
    /// The next record. `None` if the next frame is no record, or a record before `start`.
    fn next_record(&mut self, start: Position) -> Result<Option<(Position, Record)>, LogError> {
        let at = self.reader.position;
        let path = self.reader.path().to_owned();
        match self.reader.next()? {
            Next::Record { position, .. } if position < start => Ok(None),
            Next::Record {
                position,
                kind,
                payload,
                ..
            } => match Record::decode(kind, payload) {
                Ok(record) => Ok(Some((position, record))),
                Err(source) => Err(LogError::Unreadable {
                    path,
                    position,
                    kind,
                    source,
                }),
            },
            Next::Opened { .. } => Ok(None),
            Next::Mark { .. } | Next::Nothing => Err(LogError::Damaged {
                path,
                position: at,
                cause: "what was there a moment ago is gone".to_owned(),
            }),
        }
    }
}

impl Iterator for Replay {
    type Item = Result<(Position, Record), LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_record();
        if next.is_err() {
            self.parts.clear();
        }
        next.transpose()
    }
}
