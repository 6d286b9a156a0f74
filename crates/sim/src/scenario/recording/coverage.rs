//! The coverage of schedules: transitions of the state table, and crash points.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use lockstep_repl::state::{State, TABLE};
use lockstep_types::coverage;
use lockstep_types::settings::Role;
use parking_lot::Mutex;

use crate::disk::{Call, CallKind, Verdict};

/// A kind of disk call at which a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CrashPoint {
    role: Role,
    kind: CallKind,
    /// The purpose of the file.
    file: FileClass,
    when: When,
}

/// The purpose of a file in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileClass {
    /// The content of a file.
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

/// The part of a call that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    Before,
    Within,
    After,
}

impl FileClass {
    /// The classes in which a single call decides much.
    pub const CRITICAL: [Self; 5] = [
        Self::Content,
        Self::Log,
        Self::Names,
        Self::Role,
        Self::Table,
    ];

    /// Returns the purpose of the file at a path.
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
    /// Returns the point at which `verdict` ends the process of a node.
    pub fn new(role: Role, call: &Call<'_>, verdict: Verdict) -> Self {
        Self {
            role,
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
            role,
            kind,
            file,
            when,
        } = self;
        write!(f, "{role:?}: {when:?} {kind:?} of {file:?}")
    }
}

/// The coverage of one schedule or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Pairs of state and event, in words.
    pub transitions: BTreeSet<String>,
    /// Points at which a process ended.
    pub crash_points: BTreeSet<CrashPoint>,
}

impl Coverage {
    /// Adds the coverage of another schedule.
    pub fn add(&mut self, other: Self) {
        self.transitions.extend(other.transitions);
        self.crash_points.extend(other.crash_points);
    }

    /// Returns the rows of the state table that are not covered, without the rows of a node without
    /// a peer: every node of a schedule has a peer.
    pub fn missing(&self) -> Vec<String> {
        let rows = TABLE
            .iter()
            .filter(|(state, ..)| *state != State::Unmirrored);
        rows.map(|(state, trigger, ..)| coverage::transition(trigger, state))
            .filter(|pair| !self.transitions.contains(pair))
            .collect()
    }
}

/// Records the coverage of a schedule. Clones share one record.
#[derive(Clone, Debug, Default)]
pub struct CoverageRecorder(Arc<Mutex<BTreeSet<CrashPoint>>>);

impl CoverageRecorder {
    /// Records that a process ended at a point.
    pub fn record_crash(&self, point: CrashPoint) {
        self.0.lock().insert(point);
    }

    /// Takes the coverage of this thread since the last call.
    pub fn take(&self) -> Coverage {
        Coverage {
            transitions: coverage::take_transitions(),
            crash_points: self.0.lock().clone(),
        }
    }
}
