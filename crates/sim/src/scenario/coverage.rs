//! What schedules have met: pairs of state and event, and places where a process ended.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use lockstep_repl::state::{State, TABLE};
use lockstep_types::coverage;
use parking_lot::Mutex;

use crate::disk::{Call, CallKind, Verdict};
use crate::world::Side;

/// A named place where a process can be made to end: at a call of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CrashPoint {
    side: Side,
    kind: CallKind,
    /// What the file is for.
    file: FileClass,
    when: When,
}

/// What a file of a store is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileClass {
    /// The bytes of a file.
    Content,
    /// The intent log.
    Log,
    /// The key-value store.
    Names,
    /// Role and marks.
    Role,
    /// PAW, SAW, times.
    Table,
    /// Anything else: format, directories.
    Other,
}

/// Where in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    Before,
    Within,
    After,
}

impl FileClass {
    /// Those in which much hangs on single calls.
    pub const TELLING: [Self; 5] = [
        Self::Content,
        Self::Log,
        Self::Names,
        Self::Role,
        Self::Table,
    ];

    /// What the file at a path is for.
    pub fn of(path: &str) -> Self {
        let is_in =
            |directory: &str| path == directory || path.starts_with(&format!("{directory}/"));
        match path {
            _ if is_in("content") => Self::Content,
            _ if is_in("log") => Self::Log,
            _ if is_in("tables") => Self::Table,
            _ if path.starts_with("names") => Self::Names,
            _ if path.starts_with("role") => Self::Role,
            _ => Self::Other,
        }
    }
}

impl CrashPoint {
    /// The place where `verdict` ends the process of a side.
    pub fn new(side: Side, call: &Call<'_>, verdict: Verdict) -> Self {
        Self {
            side,
            kind: call.kind,
            file: FileClass::of(call.path),
            when: match verdict {
                Verdict::CrashAfter => When::After,
                Verdict::CrashTorn(_) | Verdict::CrashInside { .. } => When::Within,
                _ => When::Before,
            },
        }
    }
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            side,
            kind,
            file,
            when,
        } = self;
        write!(f, "{side:?}: {when:?} {kind:?} of {file:?}")
    }
}

/// What a schedule, or many, have met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Pairs of state and event, in words.
    pub pairs: BTreeSet<String>,
    /// Places where a process ended.
    pub crash_points: BTreeSet<CrashPoint>,
}

impl Met {
    /// Adds what another has met.
    pub fn add(&mut self, other: Self) {
        self.pairs.extend(other.pairs);
        self.crash_points.extend(other.crash_points);
    }
}

impl Met {
    /// The rows of the state table that were not met, but for those of a node without a peer: in a
    /// schedule each has one.
    pub fn missed(&self) -> Vec<String> {
        let rows = TABLE
            .iter()
            .filter(|(state, ..)| *state != State::Unmirrored);
        rows.map(|(state, trigger, ..)| coverage::transition(trigger, state))
            .filter(|pair| !self.pairs.contains(pair))
            .collect()
    }
}

/// Collects what a schedule meets. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Coverage(Arc<Mutex<BTreeSet<CrashPoint>>>);

impl Coverage {
    /// A process ended at a place.
    pub fn crashed_at(&self, point: CrashPoint) {
        self.0.lock().insert(point);
    }

    /// All that was met on this thread since it was last asked.
    pub fn met(&self) -> Met {
        Met {
            pairs: coverage::take_transitions(),
            crash_points: self.0.lock().clone(),
        }
    }
}
