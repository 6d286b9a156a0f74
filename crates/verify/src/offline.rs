//! The comparison of two copies without their nodes: stores of stopped nodes, or manifests of them.
//!
//! Both copies are walked at the same time, in the order of their paths. So neither copy has to be on the machine of the other one,
//! and memory does not grow with their size.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use lockstep_fs::export::{ExportError, HEADER, list};
use thiserror::Error;

use crate::manifest_row::{COLUMNS, ManifestRow};
use crate::report::LISTED_MAX;

/// Lines of one copy that are read before the other copy has as many.
const LINES_AHEAD: usize = 256;

/// A copy of a datastore that no node uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfflineCopy {
    /// The directory of a store.
    Store(PathBuf),
    /// The file of a manifest.
    Manifest(PathBuf),
}

/// The reason for which copies cannot be compared.
#[derive(Debug, Error)]
pub enum OfflineError {
    /// The store cannot be read, or its node runs.
    #[error(transparent)]
    Store(#[from] ExportError),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is no complete manifest.
    #[error(
        "{} is no complete manifest{}: make one with `lockstep export NAME --manifest FILE`",
        path.display(), line.map_or_else(String::new, |line| format!(" (line {line})"))
    )]
    NoManifest {
        /// The file.
        path: PathBuf,
        /// The first line that fits no manifest.
        line: Option<u64>,
    },
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfflineReport {
    /// Number of names in either copy, with the root.
    pub names: u64,
    /// Bytes in the files that both copies have. A file counts once for each of its names.
    pub bytes: u64,
    /// Number of differences.
    pub total: u64,
    /// The first [`LISTED_MAX`] differences.
    pub differences: Vec<NameDifference>,
}

/// A difference between two copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameDifference {
    /// The path, escaped as in a manifest.
    pub path: String,
    /// Number of the inode: in the first copy, if that copy has the path.
    pub ino: u64,
    /// The kind of difference.
    pub what: NameDifferenceKind,
}

/// A kind of difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameDifferenceKind {
    /// One copy has the path: the first one, or the second one.
    OnlyIn {
        /// Whether the first copy has the path.
        first: bool,
    },
    /// A column of the manifest has other values.
    Column {
        /// The column.
        name: &'static str,
        /// The value in the first copy, and the value in the second one.
        values: [String; 2],
    },
}

impl OfflineCopy {
    /// The copy at a path: a directory is a store, and a file is a manifest.
    pub fn at(path: &Path) -> Self {
        if path.is_dir() {
            Self::Store(path.into())
        } else {
            Self::Manifest(path.into())
        }
    }

    /// Sends the lines, until the receiver is gone.
    fn send_lines(&self, lines: &LineSender) {
        let sent = match self {
            Self::Store(dir) => send_store(dir, lines),
            Self::Manifest(file) => send_manifest(file, lines),
        };
        if let Err(error) = sent {
            let _ = lines.send(Err(error));
        }
    }
}

type LineSender = SyncSender<Result<ManifestRow, OfflineError>>;

fn send_store(dir: &Path, lines: &LineSender) -> Result<(), OfflineError> {
    let mut number = 0;
    let mut unread = None;
    list(dir, &mut |line| {
        number += 1;
        let Some(row) = ManifestRow::of(line) else {
            unread = Some(number);
            return ControlFlow::Break(());
        };
        match lines.send(Ok(row)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    match unread {
        None => Ok(()),
        line => Err(OfflineError::NoManifest {
            path: dir.into(),
            line,
        }),
    }
}

fn send_manifest(path: &Path, lines: &LineSender) -> Result<(), OfflineError> {
    let read = |source| OfflineError::Read {
        path: path.into(),
        source,
    };
    let broken = |line| OfflineError::NoManifest {
        path: path.into(),
        line,
    };
    let mut file = BufReader::new(File::open(path).map_err(read)?).lines();
    let is_partial = path.extension().is_some_and(|end| end == "partial");
    let header = file.next().transpose().map_err(read)?;
    if is_partial || header.as_deref() != Some(HEADER) {
        return Err(broken(None));
    }
    let mut last: Option<ManifestRow> = None;
    for (number, line) in (2..).zip(file) {
        let line = line.map_err(read)?;
        // The destination of that export could not take a part. The other lines describe the store all the same.
        if line.starts_with("\\lost") {
            continue;
        }
        let row = ManifestRow::of(line).filter(|row| {
            let before = last.as_ref();
            before.is_none_or(|before| before.order(row) == Ordering::Less)
        });
        let row = row.ok_or_else(|| broken(Some(number)))?;
        last = Some(row.clone());
        if lines.send(Ok(row)).is_err() {
            break;
        }
    }
    // An empty store has its root.
    last.map_or_else(|| Err(broken(None)), |_| Ok(()))
}

/// Compares two copies. `progress` is called for each name, with the numbers so far.
// The copies belong to no node, so there is no host.
#[expect(clippy::disallowed_methods)]
pub fn compare_offline(
    copies: &[OfflineCopy; 2],
    progress: &mut dyn FnMut(&OfflineReport),
) -> Result<OfflineReport, OfflineError> {
    thread::scope(|scope| {
        let [mut first, mut second] = copies.each_ref().map(|copy| {
            let (sender, receiver) = sync_channel(LINES_AHEAD);
            scope.spawn(move || copy.send_lines(&sender));
            Rows {
                receiver,
                next: None,
            }
        });
        let mut report = OfflineReport::default();
        while let Some((one, other)) = next_pair(&mut first, &mut second)? {
            report.note(one.as_ref(), other.as_ref());
            progress(&report);
        }
        Ok(report)
    })
}

/// The rows of a copy.
struct Rows {
    receiver: Receiver<Result<ManifestRow, OfflineError>>,
    next: Option<ManifestRow>,
}

impl Rows {
    fn peek(&mut self) -> Result<Option<&ManifestRow>, OfflineError> {
        if self.next.is_none() {
            self.next = self.receiver.recv().ok().transpose()?;
        }
        Ok(self.next.as_ref())
    }
}

type RowPair = (Option<ManifestRow>, Option<ManifestRow>);

/// The rows of the next path, of the copies that have it; `None` at the end of both.
fn next_pair(first: &mut Rows, second: &mut Rows) -> Result<Option<RowPair>, OfflineError> {
    let order = match (first.peek()?, second.peek()?) {
        (None, None) => return Ok(None),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (Some(one), Some(other)) => one.order(other),
    };
    let one = if order.is_le() {
        first.next.take()
    } else {
        None
    };
    let other = if order.is_ge() {
        second.next.take()
    } else {
        None
    };
    Ok(Some((one, other)))
}

impl OfflineReport {
    /// Whether the copies are identical.
    pub const fn is_identical(&self) -> bool {
        self.total == 0
    }

    fn note(&mut self, one: Option<&ManifestRow>, other: Option<&ManifestRow>) {
        self.names += 1;
        match (one, other) {
            (Some(one), Some(other)) => {
                if one.is_file() && other.is_file() {
                    self.bytes += one.size();
                }
                self.note_columns(one, other);
            }
            (Some(row), None) | (None, Some(row)) => {
                let first = one.is_some();
                self.add(row, NameDifferenceKind::OnlyIn { first });
            }
            (None, None) => {}
        }
    }

    fn note_columns(&mut self, one: &ManifestRow, other: &ManifestRow) {
        let pairs = one.columns().zip(other.columns());
        for (name, (one_value, other_value)) in COLUMNS.iter().zip(pairs) {
            if one_value != other_value {
                let values = [one_value, other_value].map(str::to_owned);
                self.add(one, NameDifferenceKind::Column { name, values });
            }
        }
    }

    fn add(&mut self, row: &ManifestRow, what: NameDifferenceKind) {
        self.total += 1;
        if self.differences.len() < LISTED_MAX {
            self.differences.push(NameDifference {
                path: row.path().to_owned(),
                ino: row.ino(),
                what,
            });
        }
    }
}
