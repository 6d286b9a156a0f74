//! Reads a log through: finds its end, and tells a torn tail from damage. Writes nothing.

use lockstep_types::backing::Backing;

use crate::error::LogError;
use crate::position::Position;
use crate::reader::{Next, Reader};
use crate::segment::{FRAMES_START, LogOptions, SegmentHeader, Segments, capacity};

/// A valid log, read through.
pub(crate) struct Scan {
    pub(crate) segments: Segments,
    pub(crate) older: SegmentHeader,
    pub(crate) current: SegmentHeader,
    /// First needed position.
    pub(crate) start: Position,
    /// The end of the log, as position and as offset in the current segment.
    pub(crate) tail: Position,
    pub(crate) tail_offset: u64,
    /// Offset in the current segment before which all records are known to be durable.
    pub(crate) durable_offset: u64,
    /// The same end as position.
    pub(crate) durable: Position,
}

/// Reads a log through.
pub(crate) fn scan(
    backing: &dyn Backing,
    dir: &str,
    options: &LogOptions,
) -> Result<Scan, LogError> {
    let (segments, found, current) = Segments::open(backing, dir)?;
    let older = found.header;
    let start = options.keep_from.unwrap_or(current.cut);
    let path = &segments.of(current.number).path;
    if start < current.cut {
        return Err(LogError::Gone {
            path: path.clone(),
            asked: start,
            oldest: current.cut,
        });
    }
    if start < current.before_end {
        check_complete(&segments, &older, current.before_end)?;
    }
    let end = find_end(&segments, &current, options.is_whole)?;
    if found.suspect {
        // A segment that was begun after the current one would hold records that show damage.
        let mut reader = Reader::new(segments.of(older.number).clone(), &older);
        refuse_damage(&mut reader, end.tail, end.durable, options.is_whole)?;
    }
    // No position that was assigned since the tail was written reaches that far.
    if start >= end.tail.plus(capacity(current.segment_bytes)) {
        return Err(LogError::Behind {
            path: path.clone(),
            asked: start,
            end: end.tail,
        });
    }
    Ok(Scan {
        start,
        tail: end.tail,
        tail_offset: end.tail_offset,
        durable_offset: end.durable_offset(&current),
        durable: end.durable,
        segments,
        older,
        current,
    })
}

/// The older segment was synced before the current one was begun, so it must be whole.
fn check_complete(
    segments: &Segments,
    older: &SegmentHeader,
    end: Position,
) -> Result<(), LogError> {
    let mut reader = Reader::new(segments.of(older.number).clone(), older);
    while reader.position < end {
        if let Next::Mark { .. } | Next::Nothing = reader.next()? {
            break;
        }
    }
    if reader.position == end {
        return Ok(());
    }
    let cause = format!("the segment was synced up to position {end}");
    Err(damaged(&reader, reader.position, cause))
}

fn damaged(reader: &Reader, position: Position, cause: String) -> LogError {
    LogError::Damaged {
        path: reader.path().to_owned(),
        position,
        cause,
    }
}

/// The result of reading the current segment to its end.
struct End {
    tail: Position,
    tail_offset: u64,
    durable: Position,
    /// Position and offset of the first frame of the last opening.
    opening: (Position, u64),
}

impl End {
    /// Openings change the difference between positions and offsets, so the offset is known only within the
    /// last opening. Before that all records are treated as not durable, which only costs time.
    fn durable_offset(&self, current: &SegmentHeader) -> u64 {
        let (position, offset) = self.opening;
        let into = self.durable.get().checked_sub(position.get());
        let known = into.map(|into| offset.saturating_add(into).min(self.tail_offset));
        known.unwrap_or(FRAMES_START).min(current.segment_bytes)
    }
}

fn find_end(segments: &Segments, current: &SegmentHeader, is_whole: bool) -> Result<End, LogError> {
    let mut reader = Reader::new(segments.of(current.number).clone(), current);
    let mut end = End {
        tail: current.base,
        tail_offset: FRAMES_START,
        durable: current.base,
        opening: (current.base, FRAMES_START),
    };
    loop {
        let before = reader.offset;
        match reader.next()? {
            Next::Record { durable, .. } => end.durable = end.durable.max(durable),
            Next::Opened { position, durable } => {
                end.durable = end.durable.max(durable);
                end.opening = (position, before);
            }
            Next::Mark { durable } => {
                end.durable = end.durable.max(durable);
                break;
            }
            Next::Nothing => break,
        }
        (end.tail, end.tail_offset) = (reader.position, reader.offset);
    }
    refuse_damage(&mut reader, end.tail, end.durable, is_whole)?;
    Ok(end)
}

/// Checks the rule of the crate page. Any bytes may follow the tail, with two exceptions: the log knew a
/// position beyond the tail to be durable, or no power was lost and a frame was written behind the tail.
/// Searches from the reader's place on.
fn refuse_damage(
    reader: &mut Reader,
    tail: Position,
    known: Position,
    is_whole: bool,
) -> Result<(), LogError> {
    let synced = if known > tail {
        Some(known)
    } else if is_whole {
        None // The search below finds such a frame, which was written behind the tail.
    } else {
        reader.durable_beyond(tail)?
    };
    if let Some(known) = synced {
        let cause = format!("the log was synced up to position {known} at least");
        return Err(damaged(reader, tail, cause));
    }
    let later = if is_whole {
        reader.written_beyond(tail)?
    } else {
        None
    };
    match later {
        None => Ok(()),
        Some(later) => {
            let cause = format!("a record was appended behind it, at position {later}");
            Err(damaged(reader, tail, cause))
        }
    }
}
