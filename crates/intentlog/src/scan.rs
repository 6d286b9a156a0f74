//! Finding out what a log holds: where it ends, and whether that end is a torn tail or damage.
//! Writes nothing.

use lockstep_types::backing::Backing;

use crate::error::LogError;
use crate::position::Position;
use crate::reader::{Next, Reader};
use crate::segment::{FRAMES_START, LogOptions, SegmentHeader, Segments, capacity};

/// A log that was read through and found good.
pub(crate) struct Scan {
    pub(crate) segments: Segments,
    pub(crate) older: SegmentHeader,
    pub(crate) current: SegmentHeader,
    /// First position that is needed.
    pub(crate) start: Position,
    /// Where the log ends, as position and as offset in the current segment.
    pub(crate) tail: Position,
    pub(crate) tail_offset: u64,
    /// Offset in the current segment before which everything is known to be durable.
    pub(crate) durable_offset: u64,
    /// The same as position.
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
        // a segment that was begun after the current one would hold records that tell
        let mut reader = Reader::new(segments.of(older.number).clone(), &older);
        refuse_damage(&mut reader, end.tail, end.durable, options.is_whole)?;
    }
    // no position given out since the tail was written reaches that far
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

/// The older segment was synced before the current one was begun: it must be whole.
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

/// What reading the current segment to its end tells.
struct End {
    tail: Position,
    tail_offset: u64,
    durable: Position,
    /// Where the last opening's first frame lies: position and offset.
    opening: (Position, u64),
}

impl End {
    /// Openings change what an offset adds to a position, so the offset is known within the last
    /// opening only. Before that all counts as not durable, which costs time and nothing else.
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

/// The rule of the crate page: what follows the tail may be anything, unless the log knew a
/// position beyond the tail to be durable, or nothing can have been lost and a frame was written
/// behind it. Searches from the reader's place on.
fn refuse_damage(
    reader: &mut Reader,
    tail: Position,
    known: Position,
    is_whole: bool,
) -> Result<(), LogError> {
    let synced = if known > tail {
        Some(known)
    } else if is_whole {
        None // such a frame was written behind the tail, and is looked for below
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
